"""The layers whose linear map is a convolution of images, with kernels of our own for a GPU.

Layers, and how their tensors are shaped, are explained in `layers.py`; the kernels in `shifted.py` for the layers whose
normalisation is mean-only, and in `fused.py` for those that have a full one.
"""

from math import gcd
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sntg.models.fused import Fused, normalised_leaky, normalised_leaky_pooled
from sntg.models.layers import BN_EPS, LEAK, BatchNorm, Layer, WeightNorm
from sntg.models.linearised import LinearMap
from sntg.models.means import NO_TAPS, Taps, tap_sums, weight_and_shift
from sntg.models.noise import Dropout
from sntg.models.operators import can_fuse
from sntg.models.patches import EIGHT, as_1x1, from_patches, to_patches
from sntg.models.shifted import biased_leaky, biased_leaky_pooled, shifted_leaky, shifted_leaky_pooled
from sntg.models.slices import MOST_SLICES, largest_batch


class Passed(NamedTuple):
    """What a layer passes on: images and, where it knows them, their sums, which `means.py` explains."""

    images: Tensor
    sums: Tensor | None = None


Trace = list[LinearMap]  # what the layers of a pass do to tangents and gradients


class ConvMap(Layer):
    """A square convolution of images. padding: "same" keeps the image's size, "valid" pads nothing.

    What follows a convolution takes a GPU half as long as the convolution, if PyTorch does it. So there are kernels for
    it, which apply to images in the layout of tensor cores. A `trace` is for those who want to know the layer's
    derivative in x: where kernels can tell it they append what it does to tangents and gradients, else nothing.
    """

    fused = False  # whether it may use the kernels
    feeds = NO_TAPS  # the convolution that comes next

    def __init__(self, outputs: int, inputs: int, size: int, padding: str = "valid") -> None:
        super().__init__(outputs, inputs, size, size)
        self.taps = Taps(size, size // 2 if padding == "same" else 0)
        self.dtype: torch.dtype | None = None  # what it computes in; None = its weight's
        self.channels_last = False  # how it lays images out in memory

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.dtype is not None:
            x, weight = x.to(self.dtype), weight.to(self.dtype)
        if weight.ndim == 5 and len(weight) == 1:  # a stack of one needs no groups
            weight, bias = weight.flatten(0, 1), None if bias is None else bias.flatten()
        if weight.ndim == 4:
            y = self._convolution(x.flatten(0, -4), weight, bias)
            return y.reshape(*x.shape[:-3], *y.shape[1:])
        # Independent runs are the groups of one grouped convolution.
        runs, outputs = weight.shape[:2]
        images = x.flatten(1, -4).transpose(0, 1).flatten(1, 2)
        bias = None if bias is None else bias.flatten()
        y = F.conv2d(images, weight.flatten(0, 1), bias, padding=self.taps.padding, groups=runs)
        separated = y.reshape(len(y), runs, outputs, *y.shape[-2:]).transpose(0, 1)
        return separated.reshape(*x.shape[:-3], *separated.shape[2:])

    def activated(self, x: Tensor, sums: Tensor | None = None, trace: Trace | None = None) -> Passed:
        """What the next layer sees: the layer and its leaky ReLU. sums: those of x, where the layer before told."""
        if not self._fuses(x):
            return Passed(F.leaky_relu(self(x), LEAK))
        if self.training:
            return self.fused_pass(x, sums, None, trace)
        weight, bias = self.folded()
        y = self.linear_map(x, weight)
        return Passed(biased_leaky(_grouped(y), self._grouped_values(bias, y), LEAK).view(y.shape))

    def pooled(self, x: Tensor, dropout: Dropout, sums: Tensor | None = None, trace: Trace | None = None) -> Passed:
        """What the next block sees: 2 x 2 max-pooling and dropout besides."""
        rows, columns = map(self.taps.outputs, x.shape[-2:])
        if not self._fuses(x) or rows % 2 or columns % 2:
            return Passed(dropout(max_pool(self.activated(x, sums).images)))
        if self.training:
            return self.fused_pass(x, sums, dropout, trace)
        weight, bias = self.folded()
        y = self.linear_map(x, weight)
        pooled = biased_leaky_pooled(_grouped(y), self._grouped_values(bias, y), LEAK)
        return Passed(pooled.view(*y.shape[:-2], *pooled.shape[-2:]))

    def fused_pass(self, x: Tensor, sums: Tensor | None, dropout: Dropout | None, trace: Trace | None) -> Passed:
        """`activated`, or with a dropout `pooled`, through the kernels in training mode.

        The sums are of use where the normalisation is mean-only, and the trace where it is not.
        """
        raise NotImplementedError

    def _fuses(self, x: Tensor) -> bool:
        """Whether the kernels do it: in evaluation they have no derivative."""
        wanted = self.fused and not self.initialising and (self.training or not torch.is_grad_enabled())
        return wanted and can_fuse(x, self.b.shape[-1])

    def _grouped_values(self, values: Tensor, y: Tensor, rows: int | None = None) -> Tensor:
        """One value an output, (*runs, outputs), for each group of so many rows in the pass, (groups, outputs)."""
        by_run = values if values.ndim == 2 else values.reshape(-1, values.shape[-1])
        groups = y.shape[:-3].numel() // (y.shape[-4] if rows is None else rows)
        if groups == len(by_run):
            return by_run
        return by_run.expand(groups, -1) if len(by_run) == 1 else by_run.repeat_interleave(groups // len(by_run), 0)

    def _in_patches(self, channels: int) -> bool:
        """Whether images of so few channels are convolved as patches."""
        return self.channels_last and channels < EIGHT

    def _convolution(self, images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self._in_patches(images.shape[1]):
            return self._conv2d(images, weight, bias, self.taps.padding)
        return self._conv2d(to_patches(images, *self.taps), as_1x1(weight), bias)

    def _conv2d(self, images: Tensor, weight: Tensor, bias: Tensor | None = None, padding: int = 0) -> Tensor:
        if self.channels_last:
            images, weight = _channels_last(images, weight)
        elif not weight.is_contiguous():
            weight = weight.contiguous()
        return F.conv2d(images, weight, bias, padding=padding)


class Conv(ConvMap, WeightNorm):
    """A weight-normed convolution with mean-only batch normalisation.

    >>> Conv(4, 3, 3, padding="same")(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 4, 8, 8])
    """

    def fused_pass(self, x: Tensor, sums: Tensor | None, dropout: Dropout | None, trace: Trace | None) -> Passed:
        x = x.to(self.V.dtype if self.dtype is None else self.dtype)
        if sums is None:
            sums = tap_sums(_grouped(x), self.taps)
        y, shift = self._shifted_map(x, sums)
        if dropout is None:
            done = shifted_leaky(_grouped(y), shift, LEAK, self.feeds)
        else:
            mask = dropout.drawn(y[..., ::2, ::2])
            done = shifted_leaky_pooled(_grouped(y), shift, _grouped(mask), LEAK, self.feeds)
        return Passed(_shaped(done.output, y.shape[:-2] + done.output.shape[-2:]), done.sums)

    def _shifted_map(self, x: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The convolution's output, and what is to be added to it: the bias minus the batch's mean."""
        (size, padding), images = self.taps, x.flatten(0, -4)
        C, H, W = images.shape[1:]
        patches = self._in_patches(C)
        length = size * size * C + (-size * size * C % EIGHT if patches else 0)
        V, g, b = self.V.reshape(-1, C, size, size), self.g.reshape(-1), self.b.reshape(-1)
        pixels = x.shape[-4] * self.taps.outputs(H) * self.taps.outputs(W)
        weight, shift, mean = weight_and_shift(V, g, b, sums, pixels, length, x.dtype)
        if self.track_statistics:  # asked here too: a compiler would trace what `track` then leaves alone
            self.track(self.running_mean, mean)
        if patches:
            y = self._conv2d(to_patches(images, size, padding), weight[..., None, None])
        else:
            y = self._conv2d(images, weight.view(-1, size, size, C).permute(0, 3, 1, 2), padding=padding)
        return y.reshape(*x.shape[:-3], *y.shape[1:]), shift

    def _fuses(self, x: Tensor) -> bool:
        """In training the kernels know one run and one batch."""
        one = not self.first_rows and self.b.numel() == self.b.shape[-1]
        return super()._fuses(x) and (one or not self.training)


class BatchNormConv(ConvMap, BatchNorm):
    """A convolution with full batch normalisation.

    >>> BatchNormConv(4, 3, 3)(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 4, 6, 6])
    """

    def fused_pass(self, x: Tensor, sums: Tensor | None, dropout: Dropout | None, trace: Trace | None) -> Passed:
        y = self.linear_map(x, self.weight())
        unit, first = self._units(y)
        g, b = (self._grouped_values(values, y, unit) for values in (self.g, self.b))
        if dropout is None:
            done = normalised_leaky(_grouped(y, unit), g, b, LEAK, BN_EPS, first)
        else:
            mask = dropout.drawn(y[..., ::2, ::2])
            done = normalised_leaky_pooled(_grouped(y, unit), g, b, _grouped(mask, unit), LEAK, BN_EPS, first)
        return Passed(self._passed(y, done, trace))

    def _fuses(self, x: Tensor) -> bool:
        return super()._fuses(x) and self._few_groups(x)

    def _few_groups(self, x: Tensor) -> bool:
        """Whether the kernels can tell two batches apart: in one view, and if their sizes have a common factor."""
        if not self.first_rows:
            return True
        unit, first = self._units(x)
        return x.shape[:-4].numel() == 1 and largest_batch(x.shape[-4] // unit, first) <= MOST_SLICES

    def _units(self, y: Tensor) -> tuple[int, int]:
        """How many rows the kernels take for a group, and how many groups are the first of two batches, 0 if it is one.

        Two batches are cut into groups of one size.
        """
        rows = y.shape[-4]
        if not self.first_rows:
            return rows, 0
        unit = gcd(self.first_rows, self.second_rows(rows))
        return unit, self.first_rows // unit

    def _passed(self, y: Tensor, done: Fused, trace: Trace | None) -> Tensor:
        """The layer's output, after its running statistics have moved and its derivative is in the trace."""
        if self.track_statistics:  # asked here too: a compiler would trace what `track` then leaves alone
            self.track(self.running_mean, done.channels[0])
            self.track(self.running_var, done.channels[1])
        output = _shaped(done.output, y.shape[:-2] + done.output.shape[-2:])
        if trace is not None and not self.first_rows:
            trace.append(self._linear(y.shape, output.shape, done.linear))
        return output

    def _linear(self, y: torch.Size, output: torch.Size, rest: LinearMap) -> LinearMap:
        """The convolution and the rest of the layer, whose images have the given shapes, as a linear map."""
        weight = self.weight()
        return LinearMap(
            push=lambda t: _shaped(rest.push(_grouped(self.linear_map(t, weight))), output),
            pull=lambda u: self.transposed_map(_shaped(rest.pull(_grouped(u)), y), weight),
        )

    def transposed_map(self, y: Tensor, weight: Tensor) -> Tensor:
        """The transpose of `linear_map`, for one run: each pixel of x gets what comes back from all that it went to."""
        weight = (weight.flatten(0, 1) if weight.ndim == 5 else weight).to(y.dtype)
        x = self._transposed_convolution(y.flatten(0, -4), weight)
        return x.reshape(*y.shape[:-3], *x.shape[1:])

    def _transposed_convolution(self, images: Tensor, weight: Tensor) -> Tensor:
        if not self._in_patches(weight.shape[1]):
            images, weight = _channels_last(images, weight) if self.channels_last else (images, weight)
            return F.conv_transpose2d(images, weight, padding=self.taps.padding)
        patches = F.conv_transpose2d(*_channels_last(images, as_1x1(weight)))
        return from_patches(patches, weight.shape[1], *self.taps)


def _channels_last(images: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    last = torch.channels_last
    if not images.is_contiguous(memory_format=last):  # mostly they are: a compiler need not even hear of it
        images = images.contiguous(memory_format=last)
    if not weight.is_contiguous(memory_format=last):
        weight = weight.contiguous(memory_format=last)
    return images, weight


def _grouped(y: Tensor, rows: int | None = None) -> Tensor:
    """Images as (groups, rows, channels, height, width): so many rows to a group, or all that are together."""
    rows = y.shape[-4] if rows is None else rows
    return _shaped(y, torch.Size([y.shape[:-3].numel() // rows, rows, *y.shape[-3:]]))


def _shaped(x: Tensor, shape: torch.Size) -> Tensor:
    """x in that shape. Where it has it nothing is done: a compiler takes milliseconds for an operation it hears of."""
    return x if x.shape == shape else x.reshape(shape)


def max_pool(x: Tensor) -> Tensor:
    """2 x 2 max-pooling of images with any leading axes."""
    pooled = F.max_pool2d(x.flatten(0, -4), 2)
    return pooled.reshape(*x.shape[:-2], *pooled.shape[-2:])
