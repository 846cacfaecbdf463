"""What follows a convolution in training, fused for the GPU: batch normalisation, leaky ReLU, pooling, dropout.

Each of these steps is a few operations a number, so it costs what reading and writing the image costs, and done one by
one they cost half as much as the convolutions. Here each is done in registers between one read and one write. The
batch's statistics take a read of their own, before; so a pass is two kernels forward and two backward. The kernels are
in `kernels.py`.

The functions are custom operators of PyTorch: `torch.compile` keeps each as it is and differentiates through it. What
PyTorch cannot do with such operators is carry a tangent through them, or differentiate their gradients. So a function
also returns its derivative as a linear map, made of operators that nobody differentiates: VAT asks for it.

Image tensors are (groups, n, C, H, W) in channels-last memory; a group is one view of one batch, with statistics of its
own; or they hold two batches, the `first` groups one and the others another (0 where each group is a batch). g and b
are (groups, C) in float32; without g the normalisation is mean-only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sntg.models import grid, kernels
from sntg.models.launch import NARROWEST, Launch
from sntg.models.linearised import LinearMap


def can_fuse(x: Tensor, channels: int) -> bool:
    """Whether the functions here apply to the output, with that many channels, of a convolution of x."""
    return grid.AVAILABLE and x.is_cuda and x.dtype != torch.float64 and channels % NARROWEST == 0


class Fused(NamedTuple):
    """What the functions return; all but `output` is without gradient."""

    output: Tensor  # of y's dtype, channels-last
    channels: Tensor  # (kinds, groups, C) in float32: the batch's mean; with g also its variance, and more
    linear: LinearMap  # the derivative in y


def normalised_leaky(y: Tensor, g: Tensor | None, b: Tensor, slope: float, eps: float, first: int = 0) -> Fused:
    """leaky_relu((y - mean) * g / sqrt(variance + eps) + b), or leaky_relu(y - mean + b) without g."""
    a, channels = torch.ops.sntg.normalised_leaky(y, g, b, slope, eps, first)
    seen = a if g is None else y

    def linear(t: Tensor, push: bool) -> Tensor:
        result: Tensor = torch.ops.sntg.leaky_linear(t, seen, channels, slope, first, push)[0]
        return result

    return Fused(a, channels, LinearMap(lambda t: linear(t, True), lambda u: linear(u, False)))


def normalised_leaky_pooled(
    y: Tensor, g: Tensor | None, b: Tensor, mask: Tensor, slope: float, eps: float, first: int = 0
) -> Fused:
    """max_pool2d(normalised_leaky, 2) * mask, for even H and W; the mask gets no gradient."""
    pooled, channels, code = torch.ops.sntg.normalised_leaky_pooled(y, g, b, mask, slope, eps, first)
    passed = (None if g is None else y, mask, code, channels, slope, first)

    def pull(u: Tensor) -> Tensor:
        dy: Tensor = torch.ops.sntg.pooled_pull(u, *passed)[0]
        return dy

    return Fused(pooled, channels, LinearMap(lambda t: torch.ops.sntg.pooled_push(t, *passed), pull))


def biased_leaky(y: Tensor, b: Tensor, slope: float) -> Tensor:
    """leaky_relu(y + b), for evaluation: without gradient, and in the memory of y if that is channels-last."""
    y, none = matrix(y), no_mean(y)
    handed = y, None, b, y, none, *strides(None, b), slope, 0.0
    Launch.over(y, reads=1).finish(kernels.normalised_leaky, none, *handed, FULL=False)
    return images(y)


def biased_leaky_pooled(y: Tensor, b: Tensor, slope: float) -> Tensor:
    """max_pool2d(leaky_relu(y + b), 2) for even H and W, for evaluation: without gradient."""
    pooled, code = new_pooled(y)
    kept, none = matrix(torch.ones_like(pooled)), no_mean(y)
    handed = matrix(y), None, b, kept, pooled, code, none, *strides(None, b), slope, 0.0
    Launch.over(kept, reads=4).finish(kernels.normalised_leaky_pooled, none, *handed, W=y.shape[4], FULL=False)
    return pooled


def no_mean(y: Tensor) -> Tensor:
    """What a mean-only layer is handed that is to take off no mean: one slice of each group, of mean zero."""
    return torch.zeros((1, y.shape[0], 1, y.shape[2]), dtype=torch.float32, device=y.device)


def matrix(x: Tensor) -> Tensor:
    """Images in the memory the kernels read, (groups, n, H, W, C); a copy only if they are not channels-last."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def images(x: Tensor) -> Tensor:
    """The inverse of `matrix`."""
    return x.permute(0, 1, 4, 2, 3)


def new_images(like: Tensor, H: int, W: int, dtype: torch.dtype) -> Tensor:
    """As many images with as many channels, of another size; channels-last."""
    groups, n, C = like.shape[:3]
    return images(torch.empty((groups, n, H, W, C), dtype=dtype, device=like.device))


def new_channels(like: Tensor, kinds: int) -> Tensor:
    """So many float32 for each group and channel of the images."""
    return torch.empty((kinds, like.shape[0], like.shape[2]), dtype=torch.float32, device=like.device)


def strides(g: Tensor | None, b: Tensor) -> tuple[int, ...]:
    return (*((0, 0) if g is None else g.stride()), *b.stride())


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function that launches kernels an operator of that name.

    A compiler asks what an operator returns with tensors that hold nothing. The function itself can tell: it launches
    nothing then, but what it returns has the shapes and strides of the results.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        made = torch.library.custom_op(f"sntg::{name}", function, mutates_args=())
        made.register_fake(function)
        return made

    return decorate


KEPT = {False: 1, True: 5}  # kinds of `channels`, by whether the normalisation is a full one


def is_full(channels: Tensor) -> bool:
    return channels.shape[0] == KEPT[True]


@operator("normalised_leaky")
def leaky(y: Tensor, g: Tensor | None, b: Tensor, slope: float, eps: float, first: int) -> tuple[Tensor, Tensor]:
    full = g is not None
    a, channels = new_images(y, y.shape[3], y.shape[4], y.dtype), new_channels(y, KEPT[full])
    y = matrix(y)
    launch = Launch.over(y, 1 + full, first)
    partial = launch.sums(kernels.moments, 1 + full, y, FULL=full)
    launch.finish(kernels.normalised_leaky, partial, y, g, b, a, channels, *strides(g, b), slope, eps, FULL=full)
    return a, channels


@operator("leaky_linear")
def linear(t: Tensor, seen: Tensor, channels: Tensor, slope: float, first: int, push: bool) -> tuple[Tensor, Tensor]:
    """The tangent of a from t, that of y; or (the gradient of y from t, that of a; the gradients of b and g)."""
    full = is_full(channels)
    result, sums = new_images(t, t.shape[3], t.shape[4], t.dtype), new_channels(t, 1 + full)
    flags = {"PUSH": push, "FULL": full}
    t, seen = matrix(t), matrix(seen)
    launch = Launch.over(t, 2 * len(sums), first)
    partial = launch.sums(kernels.linear_sums, len(sums), t, seen, channels, slope, **flags)
    launch.finish(kernels.linear, partial, t, seen, channels, result, sums, slope, **flags)
    return result, sums


@operator("normalised_leaky_pooled")
def pooled(
    y: Tensor, g: Tensor | None, b: Tensor, mask: Tensor, slope: float, eps: float, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    full, W = g is not None, y.shape[4]
    (p, code), channels = new_pooled(y), new_channels(y, KEPT[full])
    y, mask = matrix(y), matrix(mask)
    before = Launch.over(y, 1 + full, first)
    partial = before.sums(kernels.moments, 1 + full, y, FULL=full)
    launch = Launch.over(mask, 4, first)
    results = p, code, channels, *strides(g, b)
    launch.finish(kernels.normalised_leaky_pooled, partial, y, g, b, mask, *results, slope, eps, W=W, FULL=full)
    return p, channels, code


def new_pooled(y: Tensor) -> tuple[Tensor, Tensor]:
    """A pooled image, and a byte for each of its pixels that says which one of four it was."""
    size = y.shape[3] // 2, y.shape[4] // 2
    return new_images(y, *size, y.dtype), new_images(y, *size, torch.uint8)


@operator("pooled_push")
def pooled_push(
    t: Tensor, y: Tensor | None, mask: Tensor, code: Tensor, channels: Tensor, slope: float, first: int
) -> Tensor:
    """The tangent of the pooled image from t, that of y. (What is pushed is summed over all pixels, pooled or not.)"""
    full, W = is_full(channels), t.shape[4]
    result, sums = new_images(code, code.shape[3], code.shape[4], t.dtype), new_channels(t, 1 + full)
    t, mask, code = matrix(t), matrix(mask), matrix(code)
    y = None if y is None else matrix(y)
    seen = t if y is None else y  # the sum of a mean-only layer needs nothing besides t
    before = Launch.over(t, 2 * len(sums), first)
    partial = before.sums(kernels.linear_sums, len(sums), t, seen, channels, slope, PUSH=True, FULL=full)
    launch = Launch.over(mask, 4 * len(sums), first)
    launch.finish(kernels.pooled_push, partial, t, y, mask, code, channels, result, sums, slope, W=W, FULL=full)
    return result


@operator("pooled_pull")
def pooled_pull(
    dp: Tensor, y: Tensor | None, mask: Tensor, code: Tensor, channels: Tensor, slope: float, first: int
) -> tuple[Tensor, Tensor]:
    """The gradient of y from that of the pooled image; the gradients of b and g."""
    full = is_full(channels)
    dy = new_images(code, 2 * code.shape[3], 2 * code.shape[4], dp.dtype)
    sums = new_channels(code, 1 + full)
    flags = {"W": dy.shape[4], "FULL": full}
    dp, mask, code = matrix(dp), matrix(mask), matrix(code)
    y = None if y is None else matrix(y)
    before = Launch.over(mask, 4, first)
    partial = before.sums(kernels.pooled_pull_sums, len(sums), dp, y, mask, code, channels, slope, **flags)
    launch = Launch.over(mask, 4 * len(sums), first)
    launch.finish(kernels.pooled_pull, partial, dp, y, mask, code, channels, dy, sums, slope, **flags)
    return dy, sums


def save_leaky(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keeps y; where mean-only a, which the next convolution keeps anyway: it tells what the slope was."""
    y, g, *_ = inputs
    a, channels = output
    ctx.save_for_backward(a if g is None else y, channels)
    save_rest(ctx, inputs, channels)


def save_pooled(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keeps y; where mean-only a byte a window is enough instead of the four pixels."""
    y, g, _, mask, *_ = inputs
    _, channels, code = output
    ctx.save_for_backward(None if g is None else y, mask, code, channels)
    save_rest(ctx, inputs, channels)


def save_rest(ctx: Any, inputs: tuple[Any, ...], channels: Tensor) -> None:
    ctx.slope, _, ctx.first = inputs[-3:]
    ctx.mark_non_differentiable(channels)
    ctx.set_materialize_grads(False)  # or each backward pass would fill zeros for the gradient of `channels`


def differentiate_leaky(ctx: Any, da: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    dy, sums = torch.ops.sntg.leaky_linear(da, *ctx.saved_tensors, ctx.slope, ctx.first, False)
    return dy, *of_parameters(sums), None, None, None


def differentiate_pooled(ctx: Any, dp: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    dy, sums = torch.ops.sntg.pooled_pull(dp, *ctx.saved_tensors, ctx.slope, ctx.first)
    return dy, *of_parameters(sums), None, None, None, None


def of_parameters(sums: Tensor) -> tuple[Tensor | None, Tensor]:
    """The gradients of g, if there is one, and b."""
    return (sums[1] if len(sums) > 1 else None), sums[0]


leaky.register_autograd(differentiate_leaky, setup_context=save_leaky)
pooled.register_autograd(differentiate_pooled, setup_context=save_pooled)
