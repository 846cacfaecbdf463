"""What follows a convolution in training, fused for the GPU: full batch normalisation, leaky ReLU, pooling, dropout.

(Where the normalisation is mean-only, `shifted.py` has it.)

Each of these steps is a few operations a number, so it costs what reading and writing the image costs, and done one by
one they cost half as much as the convolutions. Here each is done in registers between one read and one write. The
batch's statistics take a read of their own, before; so a pass is two kernels forward and two backward. The kernels are
in `kernels.py`.

PyTorch can carry no tangent through such operators (`operators.py`). So a function also returns its derivative as a
linear map, made of operators that nobody differentiates: VAT asks for it.

A group of images is a batch, or the tensors hold two batches, the `first` groups one and the others another (0 where
each group is a batch). g and b are (groups, C) in float32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sntg.models import kernels
from sntg.models.linearised import LinearMap
from sntg.models.operators import matrix, new_images, new_pooled, operator
from sntg.models.slices import Slices

KEPT = 5  # kinds of `channels`


class Fused(NamedTuple):
    """What the functions return; all but `output` is without gradient."""

    output: Tensor  # of y's dtype, channels-last
    channels: Tensor  # (kinds, groups, C) in float32: the batch's mean, its variance, and more
    linear: LinearMap  # the derivative in y


def normalised_leaky(y: Tensor, g: Tensor, b: Tensor, slope: float, eps: float, first: int = 0) -> Fused:
    """leaky_relu((y - mean) * g / sqrt(variance + eps) + b)."""
    a, channels = torch.ops.sntg.normalised_leaky(y, g, b, slope, eps, first)

    def linear(t: Tensor, push: bool) -> Tensor:
        result: Tensor = torch.ops.sntg.leaky_linear(t, y, channels, slope, first, push)[0]
        return result

    return Fused(a, channels, LinearMap(lambda t: linear(t, True), lambda u: linear(u, False)))


def normalised_leaky_pooled(
    y: Tensor, g: Tensor, b: Tensor, mask: Tensor, slope: float, eps: float, first: int = 0
) -> Fused:
    """max_pool2d(normalised_leaky, 2) * mask, for even H and W; the mask gets no gradient."""
    pooled, channels, code = torch.ops.sntg.normalised_leaky_pooled(y, g, b, mask, slope, eps, first)
    passed = (y, mask, code, channels, slope, first)

    def pull(u: Tensor) -> Tensor:
        dy: Tensor = torch.ops.sntg.pooled_pull(u, *passed)[0]
        return dy

    return Fused(pooled, channels, LinearMap(lambda t: torch.ops.sntg.pooled_push(t, *passed), pull))


def new_channels(like: Tensor, kinds: int) -> Tensor:
    """So many float32 for each group and channel of the images."""
    return torch.empty((kinds, like.shape[0], like.shape[2]), dtype=torch.float32, device=like.device)


@operator("normalised_leaky")
def leaky(y: Tensor, g: Tensor, b: Tensor, slope: float, eps: float, first: int) -> tuple[Tensor, Tensor]:
    a, channels = new_images(y, y.shape[3], y.shape[4], y.dtype), new_channels(y, KEPT)
    y = matrix(y)
    slices = Slices.over(y, 2, first)
    partial = slices.sums(kernels.moments, 2, y)
    slices.finish(kernels.normalised_leaky, partial, y, g, b, a, channels, *g.stride(), *b.stride(), slope, eps)
    return a, channels


@operator("leaky_linear")
def linear(t: Tensor, y: Tensor, channels: Tensor, slope: float, first: int, push: bool) -> tuple[Tensor, Tensor]:
    """The tangent of a from t, that of y; or (the gradient of y from t, that of a; the gradients of b and g)."""
    result, sums = new_images(t, t.shape[3], t.shape[4], t.dtype), new_channels(t, 2)
    t, y = matrix(t), matrix(y)
    slices = Slices.over(t, 4, first)
    partial = slices.sums(kernels.linear_sums, 2, t, y, channels, slope, PUSH=push)
    slices.finish(kernels.linear, partial, t, y, channels, result, sums, slope, PUSH=push)
    return result, sums


@operator("normalised_leaky_pooled")
def pooled(
    y: Tensor, g: Tensor, b: Tensor, mask: Tensor, slope: float, eps: float, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    (p, code), channels, W = new_pooled(y), new_channels(y, KEPT), y.shape[4]
    y, mask = matrix(y), matrix(mask)
    partial = Slices.over(y, 2, first).sums(kernels.moments, 2, y)
    results = p, code, channels, *g.stride(), *b.stride()
    slices = Slices.over(mask, 4, first)
    slices.finish(kernels.normalised_leaky_pooled, partial, y, g, b, mask, *results, slope, eps, W=W)
    return p, channels, code


@operator("pooled_push")
def pooled_push(t: Tensor, y: Tensor, mask: Tensor, code: Tensor, channels: Tensor, slope: float, first: int) -> Tensor:
    """The tangent of the pooled image from t, that of y. (What is pushed is summed over all pixels, pooled or not.)"""
    result, sums, W = new_images(code, code.shape[3], code.shape[4], t.dtype), new_channels(t, 2), t.shape[4]
    t, y, mask, code = matrix(t), matrix(y), matrix(mask), matrix(code)
    partial = Slices.over(t, 4, first).sums(kernels.linear_sums, 2, t, y, channels, slope, PUSH=True)
    slices = Slices.over(mask, 8, first)
    slices.finish(kernels.pooled_push, partial, t, y, mask, code, channels, result, sums, slope, W=W)
    return result


@operator("pooled_pull")
def pooled_pull(
    dp: Tensor, y: Tensor, mask: Tensor, code: Tensor, channels: Tensor, slope: float, first: int
) -> tuple[Tensor, Tensor]:
    """The gradient of y from that of the pooled image; the gradients of b and g."""
    dy, sums = new_images(code, 2 * code.shape[3], 2 * code.shape[4], dp.dtype), new_channels(code, 2)
    W = dy.shape[4]
    dp, y, mask, code = matrix(dp), matrix(y), matrix(mask), matrix(code)
    before = Slices.over(mask, 4, first)
    partial = before.sums(kernels.pooled_pull_sums, 2, dp, y, mask, code, channels, slope, W=W)
    slices = Slices.over(mask, 8, first)
    slices.finish(kernels.pooled_pull, partial, dp, y, mask, code, channels, dy, sums, slope, W=W)
    return dy, sums


def save_leaky(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    y, *_ = inputs
    _, channels = output
    ctx.save_for_backward(y, channels)
    save_rest(ctx, inputs, channels)


def save_pooled(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    y, _, _, mask, *_ = inputs
    _, channels, code = output
    ctx.save_for_backward(y, mask, code, channels)
    save_rest(ctx, inputs, channels)


def save_rest(ctx: Any, inputs: tuple[Any, ...], channels: Tensor) -> None:
    ctx.slope, _, ctx.first = inputs[-3:]
    ctx.mark_non_differentiable(channels)
    ctx.set_materialize_grads(False)  # or each backward pass would fill zeros for the gradient of `channels`


def differentiate_leaky(ctx: Any, da: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    dy, (db, dg) = torch.ops.sntg.leaky_linear(da, *ctx.saved_tensors, ctx.slope, ctx.first, False)
    return dy, dg, db, None, None, None


def differentiate_pooled(ctx: Any, dp: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    dy, (db, dg) = torch.ops.sntg.pooled_pull(dp, *ctx.saved_tensors, ctx.slope, ctx.first)
    return dy, dg, db, None, None, None, None


leaky.register_autograd(differentiate_leaky, setup_context=save_leaky)
pooled.register_autograd(differentiate_pooled, setup_context=save_pooled)
