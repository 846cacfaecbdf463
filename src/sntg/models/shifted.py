"""What follows the convolution of a mean-only layer, fused for the GPU: bias minus mean, leaky ReLU, pooling, dropout.

The shift is known before (`means.py`), so each function goes over the images once, and so does its gradient: one read
and one write of what else would take a pass for every step. On the way they find the sums of the output that the next
layer's mean will be made of, one for each of that layer's taps. The kernels are in `shifted_kernels.py`.

Images, sums and shifts are shaped as `operators.py` and `means.py` say.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sntg.models import shifted_kernels as kernels
from sntg.models.lines import Lines
from sntg.models.means import NO_TAPS, Taps
from sntg.models.operators import images, matrix, new_images, new_pooled, operator


class Shifted(NamedTuple):
    """What the functions return."""

    output: Tensor  # of y's dtype, channels-last
    sums: Tensor  # (groups, taps, C)


def shifted_leaky(y: Tensor, shift: Tensor, slope: float, taps: Taps) -> Shifted:
    """leaky_relu(y + shift), and its sums for a convolution with these taps."""
    return Shifted(*torch.ops.sntg.shifted_leaky(y, shift, slope, *taps))


def shifted_leaky_pooled(y: Tensor, shift: Tensor, mask: Tensor, slope: float, taps: Taps) -> Shifted:
    """max_pool2d(leaky_relu(y + shift), 2) * mask, for even H and W; the mask gets no gradient."""
    pooled, sums, _ = torch.ops.sntg.shifted_leaky_pooled(y, shift, mask, slope, *taps)
    return Shifted(pooled, sums)


def biased_leaky(y: Tensor, b: Tensor, slope: float) -> Tensor:
    """leaky_relu(y + b), for evaluation: without gradient, and in the memory of y if that is channels-last."""
    y = matrix(y)
    Lines.over(y, reads=1).sums(kernels.shifted_leaky, NO_TAPS, 0, y, b.contiguous(), y, slope)
    return images(y)


def biased_leaky_pooled(y: Tensor, b: Tensor, slope: float) -> Tensor:
    """max_pool2d(leaky_relu(y + b), 2) for even H and W, for evaluation: without gradient."""
    pooled, code = new_pooled(y)
    kept = matrix(torch.ones_like(pooled))
    handed = matrix(y), b.contiguous(), kept, pooled, code, slope
    Lines.over(kept, reads=4).sums(kernels.shifted_leaky_pooled, NO_TAPS, 0, *handed)
    return pooled


@operator("shifted_leaky")
def leaky(y: Tensor, shift: Tensor, slope: float, size: int, padding: int) -> tuple[Tensor, Tensor]:
    a = new_images(y, y.shape[3], y.shape[4], y.dtype)
    y, taps = matrix(y), Taps(size, padding)
    lines = Lines.over(y, reads=1)
    partial = lines.sums(kernels.shifted_leaky, taps, size, y, shift.contiguous(), a, slope)
    return a, lines.add(partial, taps)


@operator("shifted_leaky_gradient")
def leaky_gradient(
    da: Tensor, d_sums: Tensor, a: Tensor, slope: float, size: int, padding: int
) -> tuple[Tensor, Tensor]:
    """The gradients of y and of the shift."""
    dy = new_images(da, da.shape[3], da.shape[4], da.dtype)
    da, a = matrix(da), matrix(a)
    lines = Lines.over(da, reads=2)
    handed = da, d_sums.contiguous(), a, dy, slope
    partial = lines.sums(kernels.leaky_gradient, Taps(size, padding), 1, *handed)
    return dy, lines.add(partial, Taps(1, 0)).flatten(1)


@operator("shifted_leaky_pooled")
def pooled(
    y: Tensor, shift: Tensor, mask: Tensor, slope: float, size: int, padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    p, code = new_pooled(y)
    y, mask, taps = matrix(y), matrix(mask), Taps(size, padding)
    lines = Lines.over(mask, reads=4)
    partial = lines.sums(kernels.shifted_leaky_pooled, taps, size, y, shift.contiguous(), mask, p, code, slope)
    return p, lines.add(partial, taps), code


@operator("shifted_leaky_pooled_gradient")
def pooled_gradient(
    dp: Tensor, d_sums: Tensor, mask: Tensor, code: Tensor, slope: float, size: int, padding: int
) -> tuple[Tensor, Tensor]:
    """The gradients of y and of the shift."""
    dy = new_images(code, 2 * code.shape[3], 2 * code.shape[4], dp.dtype)
    dp, mask, code = matrix(dp), matrix(mask), matrix(code)
    lines = Lines.over(mask, reads=4)
    handed = dp, d_sums.contiguous(), mask, code, dy, slope
    partial = lines.sums(kernels.pooled_gradient, Taps(size, padding), 1, *handed)
    return dy, lines.add(partial, Taps(1, 0)).flatten(1)


def save_leaky(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keeps a, which the next convolution keeps anyway: it tells what the slope was."""
    a, _ = output
    ctx.save_for_backward(a)
    ctx.constants = inputs[2:]


def save_pooled(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keeps a byte a window instead of its four pixels."""
    _, _, mask, *ctx.constants = inputs
    _, _, code = output
    ctx.save_for_backward(mask, code)
    ctx.mark_non_differentiable(code)


def differentiate_leaky(ctx: Any, da: Tensor, d_sums: Tensor) -> tuple[Tensor | None, ...]:
    dy, d_shift = torch.ops.sntg.shifted_leaky_gradient(da, d_sums, *ctx.saved_tensors, *ctx.constants)
    return dy, d_shift, None, None, None


def differentiate_pooled(ctx: Any, dp: Tensor, d_sums: Tensor, _: None) -> tuple[Tensor | None, ...]:
    dy, d_shift = torch.ops.sntg.shifted_leaky_pooled_gradient(dp, d_sums, *ctx.saved_tensors, *ctx.constants)
    return dy, d_shift, None, None, None, None


leaky.register_autograd(differentiate_leaky, setup_context=save_leaky)
pooled.register_autograd(differentiate_pooled, setup_context=save_pooled)
