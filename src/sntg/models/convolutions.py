"""The layers whose linear map is a convolution of images, with kernels of our own for a GPU.

Layers, and how their tensors are shaped, are explained in `layers.py`, the kernels in `fused.py`.
"""

from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

from sntg.models.fused import (
    Fused,
    biased_leaky,
    biased_leaky_pooled,
    can_fuse,
    normalised_leaky,
    normalised_leaky_pooled,
)
from sntg.models.launch import MOST_SLICES, largest_batch
from sntg.models.layers import BN_EPS, LEAK, BatchNorm, Layer, WeightNorm
from sntg.models.linearised import LinearMap
from sntg.models.noise import Dropout
from sntg.models.patches import EIGHT, as_1x1, from_patches, to_patches


class ConvMap(Layer):
    """A square convolution of images. padding: "same" keeps the image's size, "valid" pads nothing.

    Training spends as long on what follows the convolution as on half of it, so a GPU has kernels for that, `fused.py`;
    they apply to images in the layout of its tensor cores. A `trace` is for those who want to know the layer's
    derivative in x: where it has kernels it appends what it does to tangents and gradients, else nothing.
    """

    fused = False  # whether it may use the kernels

    def __init__(self, outputs: int, inputs: int, size: int, padding: str = "valid") -> None:
        super().__init__(outputs, inputs, size, size)
        self.padding = size // 2 if padding == "same" else 0
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
        y = F.conv2d(images, weight.flatten(0, 1), bias, padding=self.padding, groups=runs)
        separated = y.reshape(len(y), runs, outputs, *y.shape[-2:]).transpose(0, 1)
        return separated.reshape(*x.shape[:-3], *separated.shape[2:])

    def activated(self, x: Tensor, trace: list[LinearMap] | None = None) -> Tensor:
        """What the next layer sees: the layer and its leaky ReLU."""
        if not self._fuses(x):
            return F.leaky_relu(self(x), LEAK)
        if not self.training:
            weight, bias = self.folded()
            y = self.linear_map(x, weight)
            return biased_leaky(_grouped(y), self._grouped_values(bias, y), LEAK).view(y.shape)
        y = self.linear_map(x, self.weight())
        unit, first = self._units(y)
        done = normalised_leaky(_grouped(y, unit), *self._group_parameters(y), LEAK, BN_EPS, first)
        return self._passed(y, done, trace)

    def pooled(self, x: Tensor, dropout: Dropout, trace: list[LinearMap] | None = None) -> Tensor:
        """What the next block sees: 2 x 2 max-pooling and dropout besides."""
        rows, columns = (size + 2 * self.padding - self.V.shape[-1] + 1 for size in x.shape[-2:])
        if not self._fuses(x) or rows % 2 or columns % 2:
            dropped: Tensor = dropout(max_pool(self.activated(x)))
            return dropped
        if not self.training:
            weight, bias = self.folded()
            y = self.linear_map(x, weight)
            pooled = biased_leaky_pooled(_grouped(y), self._grouped_values(bias, y), LEAK)
            return pooled.view(*y.shape[:-2], *pooled.shape[-2:])
        y = self.linear_map(x, self.weight())
        mask = dropout.drawn(y[..., ::2, ::2])
        unit, first = self._units(y)
        parameters = self._group_parameters(y)
        done = normalised_leaky_pooled(_grouped(y, unit), *parameters, _grouped(mask, unit), LEAK, BN_EPS, first)
        return self._passed(y, done, trace)

    def _fuses(self, x: Tensor) -> bool:
        """Whether the kernels do it: in evaluation they have no derivative."""
        wanted = self.fused and not self.initialising and (self.training or not torch.is_grad_enabled())
        return wanted and can_fuse(x, self.b.shape[-1]) and self._few_groups(x)

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

    def _group_parameters(self, y: Tensor) -> tuple[Tensor | None, Tensor]:
        """The scale, where there is one, and the bias, (groups, outputs)."""
        scale = None if self.scale is None else self._grouped_values(self.scale, y)
        return scale, self._grouped_values(self.b, y)

    def _grouped_values(self, values: Tensor, y: Tensor) -> Tensor:
        """One value an output, (*runs, outputs), for each group of rows in the pass, (groups, outputs)."""
        by_run = values if values.ndim == 2 else values.reshape(-1, values.shape[-1])
        groups = y.shape[:-3].numel() // self._units(y)[0]
        if groups == len(by_run):
            return by_run
        return by_run.expand(groups, -1) if len(by_run) == 1 else by_run.repeat_interleave(groups // len(by_run), 0)

    def _passed(self, y: Tensor, done: Fused, trace: list[LinearMap] | None) -> Tensor:
        """The layer's output, after its running statistics have moved and its derivative is in the trace."""
        if self.track_statistics:  # asked here too: a compiler would trace what `track` then leaves alone
            for kind, name in enumerate(("running_mean", "running_var")[: len(done.channels)]):
                self.track(getattr(self, name), done.channels[kind])
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

    def _convolution(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self.channels_last:
            return F.conv2d(images, weight, bias, padding=self.padding)
        if images.shape[1] >= EIGHT:
            return F.conv2d(*_channels_last(images, weight), bias, padding=self.padding)
        patches = to_patches(images, weight.shape[-1], self.padding)
        return F.conv2d(*_channels_last(patches, as_1x1(weight)), bias)

    def _transposed_convolution(self, images: Tensor, weight: Tensor) -> Tensor:
        if not self.channels_last:
            return F.conv_transpose2d(images, weight, padding=self.padding)
        if weight.shape[1] >= EIGHT:
            return F.conv_transpose2d(*_channels_last(images, weight), padding=self.padding)
        patches = F.conv_transpose2d(*_channels_last(images, as_1x1(weight)))
        return from_patches(patches, weight.shape[1], weight.shape[2], self.padding)


class Conv(ConvMap, WeightNorm):
    """A weight-normed convolution with mean-only batch normalisation.

    >>> Conv(4, 3, 3, padding="same")(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 4, 8, 8])
    """


class BatchNormConv(ConvMap, BatchNorm):
    """A convolution with full batch normalisation.

    >>> BatchNormConv(4, 3, 3)(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 4, 6, 6])
    """


def _channels_last(images: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    last = torch.channels_last
    if not images.is_contiguous(memory_format=last):  # mostly they are: a compiler need not even hear of it
        images = images.contiguous(memory_format=last)
    return images, weight.contiguous(memory_format=last)


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
