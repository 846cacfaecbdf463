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

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sntg.models import grid, kernels
from sntg.models.linearised import LinearMap

NARROWEST = 32  # channels in a block; C must be a multiple

# Launch parameters, for a GPU with about 130 multiprocessors. They depend on shapes alone, and so do the sums' bits.
PROGRAMS = 512  # about four a multiprocessor
WARPS = 8  # of 32 threads in a program; a thread then has a few vectors of 16 bytes, and registers for four programs
BLOCK_BYTES = 2**14  # that a program moves at a time
STAGES = 3  # blocks of a program that are under way at a time: enough of them to keep the memory busy
FEWEST_ROWS = 128  # in a slice; below this, adding up the slices costs more than the rows
MOST_SLICES = 128  # of the rows of a batch, for the same reason


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
    pooled, _, code = new_pooled(y, None, b, y, slope, 0.0, 0)
    kept, none = matrix(torch.ones_like(pooled)), no_mean(y)
    handed = matrix(y), None, b, kept, pooled, code, none, *strides(None, b), slope, 0.0
    Launch.over(kept, reads=4).finish(kernels.normalised_leaky_pooled, none, *handed, W=y.shape[4], FULL=False)
    return pooled


def no_mean(y: Tensor) -> Tensor:
    """What a mean-only layer is handed that is to take off no mean: one slice of each group, of mean zero."""
    return torch.zeros((1, y.shape[0], 1, y.shape[2]), dtype=torch.float32, device=y.device)


class Launch(NamedTuple):
    """How the rows of every group are shared out among programs; `grid.py` explains how."""

    grid: tuple[int, int, int]
    sizes: dict[str, int]
    first: int

    @classmethod
    def over(cls, x: Tensor, reads: int, first: int = 0) -> "Launch":
        """For kernels that walk over the rows of x, (groups, n, H, W, C), and hold `reads` rows as wide for each.

        Enough slices to fill the GPU, but none of few rows. A full normalisation holds twice what a mean-only one does.
        """
        groups, rows, C = x.shape[0], x.shape[1:4].numel(), x.shape[4]
        columns = 2 * NARROWEST if C % (2 * NARROWEST) == 0 else NARROWEST
        across = C // columns
        most = MOST_SLICES // largest_batch(groups, first)
        slices = min(most, ceil_div(PROGRAMS, groups * across), ceil_div(rows, FEWEST_ROWS))
        slice_rows = ceil_div(rows, slices)
        block_rows = BLOCK_BYTES // (reads * columns * x.element_size())
        sizes = {
            "M": rows,
            "slice_rows": slice_rows,
            "C": C,
            "ROWS": min(block_rows, power_of_two(slice_rows)),
            "COLUMNS": columns,
            "STAGES": STAGES,
            "num_warps": WARPS,
        }
        return cls((across, ceil_div(rows, slice_rows), groups), sizes, first)

    def sums(self, kernel: Any, kinds: int, x: Tensor, *more: Any, **constants: Any) -> Tensor:
        """What a kernel finds in each slice, (kinds, groups, slices, C)."""
        _, slices, groups = self.grid
        partial = torch.empty((kinds, groups, slices, self.sizes["C"]), dtype=torch.float32, device=x.device)
        self.run(kernel, partial, x, *more, **constants)
        return partial

    def finish(self, kernel: Any, partial: Tensor, *more: Any, **constants: Any) -> None:
        """Runs the kernel that begins with putting the slices together."""
        self.run(kernel, partial, *more, slices=partial.shape[2], first=self.first, MOST=MOST_SLICES, **constants)

    def run(self, kernel: Any, partial: Tensor, *more: Any, **constants: Any) -> None:
        # Triton launches on the current device, PyTorch's own operators on their tensors'.
        with torch.cuda.device_of(partial):  # type: ignore[no-untyped-call]
            kernel[self.grid](partial, *more, **self.sizes, **constants)


def largest_batch(groups: int, first: int) -> int:
    """How many groups it has."""
    return max(first, groups - first) if first else 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n.

    >>> [power_of_two(n) for n in (1, 3, 4, 57)]
    [1, 4, 4, 64]
    """
    return 1 << (n - 1).bit_length()


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


# The operators. Each has a function that makes its results, still empty: the operator fills them, and for a compiler,
# which asks for shapes and strides only, they are the answer.

KEPT = {False: 1, True: 5}  # kinds of `channels`, by whether the normalisation is a full one


def new_leaky(y: Tensor, g: Tensor | None, b: Tensor, slope: float, eps: float, first: int) -> tuple[Tensor, Tensor]:
    return new_images(y, y.shape[3], y.shape[4], y.dtype), new_channels(y, KEPT[g is not None])


@torch.library.custom_op("sntg::normalised_leaky", mutates_args=())
def leaky(y: Tensor, g: Tensor | None, b: Tensor, slope: float, eps: float, first: int) -> tuple[Tensor, Tensor]:
    a, channels = new_leaky(y, g, b, slope, eps, first)
    full, y = g is not None, matrix(y)
    launch = Launch.over(y, 1 + full, first)
    partial = launch.sums(kernels.moments, 1 + full, y, FULL=full)
    launch.finish(kernels.normalised_leaky, partial, y, g, b, a, channels, *strides(g, b), slope, eps, FULL=full)
    return a, channels


def new_linear(
    t: Tensor, seen: Tensor, channels: Tensor, slope: float, first: int, push: bool
) -> tuple[Tensor, Tensor]:
    return new_images(t, t.shape[3], t.shape[4], t.dtype), new_channels(t, 2 if is_full(channels) else 1)


@torch.library.custom_op("sntg::leaky_linear", mutates_args=())
def linear(t: Tensor, seen: Tensor, channels: Tensor, slope: float, first: int, push: bool) -> tuple[Tensor, Tensor]:
    """The tangent of a from t, that of y; or (the gradient of y from t, that of a; the gradients of b and g)."""
    result, sums = new_linear(t, seen, channels, slope, first, push)
    flags = {"PUSH": push, "FULL": is_full(channels)}
    t, seen = matrix(t), matrix(seen)
    launch = Launch.over(t, 2 * len(sums), first)
    partial = launch.sums(kernels.linear_sums, len(sums), t, seen, channels, slope, **flags)
    launch.finish(kernels.linear, partial, t, seen, channels, result, sums, slope, **flags)
    return result, sums


def is_full(channels: Tensor) -> bool:
    return channels.shape[0] == KEPT[True]


def new_pooled(
    y: Tensor, g: Tensor | None, b: Tensor, mask: Tensor, slope: float, eps: float, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    size = y.shape[3] // 2, y.shape[4] // 2
    return new_images(y, *size, y.dtype), new_channels(y, KEPT[g is not None]), new_images(y, *size, torch.uint8)


@torch.library.custom_op("sntg::normalised_leaky_pooled", mutates_args=())
def pooled(
    y: Tensor, g: Tensor | None, b: Tensor, mask: Tensor, slope: float, eps: float, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    p, channels, code = new_pooled(y, g, b, mask, slope, eps, first)
    flags = {"W": y.shape[4], "FULL": g is not None}
    y, mask = matrix(y), matrix(mask)
    before = Launch.over(y, 1 + flags["FULL"], first)
    partial = before.sums(kernels.moments, 1 + flags["FULL"], y, FULL=flags["FULL"])
    launch = Launch.over(mask, 4, first)
    results = p, code, channels, *strides(g, b)
    launch.finish(kernels.normalised_leaky_pooled, partial, y, g, b, mask, *results, slope, eps, **flags)
    return p, channels, code


def new_pooled_push(
    t: Tensor, y: Tensor | None, mask: Tensor, code: Tensor, channels: Tensor, slope: float, first: int
) -> Tensor:
    return new_images(code, code.shape[3], code.shape[4], t.dtype)


@torch.library.custom_op("sntg::pooled_push", mutates_args=())
def pooled_push(
    t: Tensor, y: Tensor | None, mask: Tensor, code: Tensor, channels: Tensor, slope: float, first: int
) -> Tensor:
    """The tangent of the pooled image from t, that of y. (What is pushed is summed over all pixels, pooled or not.)"""
    result = new_pooled_push(t, y, mask, code, channels, slope, first)
    full, W = is_full(channels), t.shape[4]
    sums = new_channels(t, 1 + full)
    t, mask, code = matrix(t), matrix(mask), matrix(code)
    y = None if y is None else matrix(y)
    seen = t if y is None else y  # the sum of a mean-only layer needs nothing besides t
    before = Launch.over(t, 2 * len(sums), first)
    partial = before.sums(kernels.linear_sums, 1 + full, t, seen, channels, slope, PUSH=True, FULL=full)
    launch = Launch.over(mask, 4 * len(sums), first)
    launch.finish(kernels.pooled_push, partial, t, y, mask, code, channels, result, sums, slope, W=W, FULL=full)
    return result


def new_pooled_pull(
    dp: Tensor, y: Tensor | None, mask: Tensor, code: Tensor, channels: Tensor, slope: float, first: int
) -> tuple[Tensor, Tensor]:
    dy = new_images(code, 2 * code.shape[3], 2 * code.shape[4], dp.dtype)
    return dy, new_channels(code, 2 if is_full(channels) else 1)


@torch.library.custom_op("sntg::pooled_pull", mutates_args=())
def pooled_pull(
    dp: Tensor, y: Tensor | None, mask: Tensor, code: Tensor, channels: Tensor, slope: float, first: int
) -> tuple[Tensor, Tensor]:
    """The gradient of y from that of the pooled image; the gradients of b and g."""
    dy, sums = new_pooled_pull(dp, y, mask, code, channels, slope, first)
    flags = {"W": dy.shape[4], "FULL": is_full(channels)}
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


leaky.register_fake(new_leaky)
leaky.register_autograd(differentiate_leaky, setup_context=save_leaky)
linear.register_fake(new_linear)
pooled.register_fake(new_pooled)
pooled.register_autograd(differentiate_pooled, setup_context=save_pooled)
pooled_push.register_fake(new_pooled_push)
pooled_pull.register_fake(new_pooled_pull)
