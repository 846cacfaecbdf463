"""Mean-only batch normalisation whose mean is known before the convolution runs, for the GPU.

The mean of a convolution's output is linear in its input: with S_t the sum over all pixels that tap t of the kernel
meets (at the borders it meets fewer), and M output pixels,

    mean of (W * x) = sum_t W_t S_t / M.

So a layer is handed the sums of its input beside the input. Bias and mean are then one number a channel, the shift
b - mean, and all that follows the convolution is one pass over the images (`shifted.py`), which leaves the sums for the
next layer. With the mean unknown it would be two passes. The way back is as short: what the mean takes out of a
gradient leaves through the sums.

Here are the sums of images that no layer has left any of, and a layer's weight and shift from its parameters and sums:
one operator, since the mean is that of the weight as the convolution reads it, rounded to 16 bits. (Where the product
rounds what it reads, in tf32, the mean does not.) Its kernels are in `mean_kernels.py`.

Sums are (groups, taps, C), shifts and means (groups, outputs), in float32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sntg.models import mean_kernels as kernels
from sntg.models.launch import ceil_div, launch, power_of_two
from sntg.models.operators import operator

WARPS = 8  # of a program, which has a row of the weight
ROWS, COLUMNS = 128, 32  # of the weight that a program holds, where outputs are added up


class Taps(NamedTuple):
    """The square kernel of a convolution: its size, and how far the input is padded. Size 0 is no convolution."""

    size: int
    padding: int

    def outputs(self, length: int) -> int:
        """How many lines, or pixels of a line, come out where so many go in."""
        return length + 2 * self.padding - self.size + 1

    def met(self, length: int, device: torch.device | None = None) -> Tensor:
        """(size, length): whether a tap in that row, or column, of the kernel meets a line, or pixel, of the input.

        >>> Taps(3, 1).met(4).int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1],
                [0, 1, 1, 1]], dtype=torch.int32)
        """
        taps, places = (torch.arange(size, device=device) for size in (self.size, length))
        output = places - taps[:, None] + self.padding
        return (output >= 0) & (output < self.outputs(length))


NO_TAPS = Taps(0, 0)


def tap_sums(x: Tensor, taps: Taps) -> Tensor:
    """The sums of images (groups, n, C, H, W).

    >>> tap_sums(torch.ones(1, 1, 1, 4, 4), Taps(3, 1)).view(3, 3)
    tensor([[ 9., 12.,  9.],
            [12., 16., 12.],
            [ 9., 12.,  9.]])
    """
    images = x.sum(1, dtype=torch.float32)
    lines, pixels = (taps.met(length, x.device).float() for length in x.shape[-2:])
    by_pixel = (images[..., None, :] * pixels).sum(-1)  # (groups, C, H, size); products of matrices might be in tf32
    sums = (by_pixel[..., None, :, :] * lines[..., None]).sum(-2)  # (groups, C, size, size)
    return sums.flatten(-2).transpose(1, 2)


class MeanOnlyLayer(NamedTuple):
    """What a mean-only layer computes with."""

    weight: Tensor  # (outputs, length): g V / ||V||, tap by tap, channel by channel, and zeros up to the length
    shift: Tensor  # b - mean
    mean: Tensor  # without gradient


def weight_and_shift(
    V: Tensor, g: Tensor, b: Tensor, sums: Tensor, pixels: int, length: int, dtype: torch.dtype
) -> MeanOnlyLayer:
    """V (outputs, C, size, size), g and b (outputs,) in float32; pixels: M, of a group's outputs."""
    weight, shift, mean, _ = torch.ops.sntg.mean_only_layer(V, g, b, sums, pixels, length, dtype)
    return MeanOnlyLayer(weight, shift, mean)


@operator("mean_only_layer")
def layer(
    V: Tensor, g: Tensor, b: Tensor, sums: Tensor, pixels: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fourth result is ||V||."""
    weight = torch.empty((len(V), length), dtype=dtype, device=V.device)
    shift, mean = (torch.empty((len(sums), len(V)), dtype=torch.float32, device=V.device) for _ in range(2))
    norms = torch.empty((len(V),), dtype=torch.float32, device=V.device)
    handed = *(t.contiguous() for t in (V, g, b, sums)), weight, shift, mean, norms
    launch(kernels.mean_only_layer, (len(V), 1, 1), handed, sizes(V, sums, pixels, length))
    return weight, shift, mean, norms


@operator("mean_only_layer_gradient")
def gradient(
    d_weight: Tensor, d_shift: Tensor, V: Tensor, g: Tensor, sums: Tensor, norms: Tensor, pixels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of V, g and b."""
    dV, dg, db = (torch.empty(t.shape, dtype=torch.float32, device=V.device) for t in (V, g, g))
    handed = *(t.contiguous() for t in (d_weight, d_shift, V, g, sums)), norms, dV, dg, db
    launch(kernels.parameters_gradient, (len(V), 1, 1), handed, sizes(V, sums, pixels, d_weight.shape[1]))
    return dV, dg, db


@operator("tap_sums_gradient")
def sums_gradient(d_shift: Tensor, weight: Tensor, taps: int, C: int, pixels: int) -> Tensor:
    """The gradient of the sums."""
    (groups, outputs), K = d_shift.shape, taps * C
    d_sums = torch.empty((groups, taps, C), dtype=torch.float32, device=weight.device)
    sizes = {"outputs": outputs, "K": K, "length": weight.shape[1], "pixels": pixels}
    constants = sizes | {"ROWS": ROWS, "COLUMNS": COLUMNS}
    handed = d_shift.contiguous(), weight, d_sums
    launch(kernels.sums_gradient, (ceil_div(K, COLUMNS), groups, 1), handed, constants)
    return d_sums


def sizes(V: Tensor, sums: Tensor, pixels: int, length: int) -> dict[str, int]:
    C, taps = V.shape[1], V.shape[2] * V.shape[3]
    shared = {"C": C, "groups": len(sums), "pixels": pixels, "length": length}
    return shared | {"TAPS": taps, "BLOCK": power_of_two(length), "num_warps": WARPS}


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    V, g, _, sums, ctx.pixels, *_ = inputs
    weight, _, mean, norms = output
    ctx.save_for_backward(V, g, sums, weight, norms)
    ctx.mark_non_differentiable(mean, norms)


def differentiate(ctx: Any, d_weight: Tensor, d_shift: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    V, g, sums, weight, norms = ctx.saved_tensors
    found = torch.ops.sntg.mean_only_layer_gradient(d_weight, d_shift, V, g, sums, norms, ctx.pixels)
    d_sums = None
    if ctx.needs_input_grad[3]:  # those of the first layer, whose input is data, do not
        d_sums = torch.ops.sntg.tap_sums_gradient(d_shift, weight, *sums.shape[1:], ctx.pixels)
    return *found, d_sums, None, None, None


layer.register_autograd(differentiate, setup_context=save)
