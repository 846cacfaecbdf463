"""What follows a convolution in training, fused for the GPU: minus batch mean, plus bias, leaky ReLU, pooling, dropout.

Each of these steps is a few operations a number, so it costs what reading and writing the image costs, and done one by
one they cost half as much as the convolutions. Here each is done in registers between one read and one write. The mean
takes a read of its own, before; so a pass is two kernels forward and two backward. The kernels are in `kernels.py`.

The functions are custom operators of PyTorch: `torch.compile` keeps each as it is and differentiates through it.

Image tensors are (groups, n, C, H, W) in channels-last memory; a group is one view of one batch, with a mean of its
own. A gradient of a gradient is not defined.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sntg.models import kernels

NARROWEST = 32  # channels in a block; C must be a multiple

# Launch parameters, for a GPU with about 130 multiprocessors. They depend on shapes alone, and so do the sums' bits.
PROGRAMS = 256  # about two a multiprocessor
WARPS = 16  # of 32 threads in a program; a thread then has a few vectors of 16 bytes, and registers for two programs
BLOCK_BYTES = 2**15  # that a program moves at a time: enough of them are under way to keep the memory busy
FEWEST_ROWS = 128  # in a slice; below this, adding up the slices costs more than the rows
MOST_SLICES = 128  # of the rows of a group, for the same reason


def can_fuse(x: Tensor, channels: int) -> bool:
    """Whether the functions here apply to the output, with that many channels, of a convolution of x."""
    return kernels.AVAILABLE and x.is_cuda and x.dtype != torch.float64 and channels % NARROWEST == 0


def centred_leaky(y: Tensor, b: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """leaky_relu(y - mean + b) and mean, the batch mean; b and mean are (groups, C) in float32.

    The result has y's shape, dtype and layout. The mean is for running statistics: no gradient flows through it.
    """
    a, mean = torch.ops.sntg.centred_leaky(y, b, slope)
    return a, mean


def centred_leaky_pooled(y: Tensor, b: Tensor, mask: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """max_pool2d(leaky_relu(y - mean + b), 2) * mask and mean, for even H and W; the mask gets no gradient."""
    pooled, mean, _ = torch.ops.sntg.centred_leaky_pooled(y, b, mask, slope)
    return pooled, mean


class Launch(NamedTuple):
    """How the rows of every group are shared out among programs; `kernels.py` explains the grid."""

    grid: tuple[int, int, int]
    sizes: dict[str, int]

    @classmethod
    def over(cls, x: Tensor, reads: int) -> "Launch":
        """For kernels that walk over the rows of x, (groups, n, H, W, C), and move `reads` rows as wide for each.

        Enough slices to fill the GPU, but none of few rows.
        """
        groups, rows, C = x.shape[0], x.shape[1:4].numel(), x.shape[4]
        columns = 2 * NARROWEST if C % (2 * NARROWEST) == 0 else NARROWEST
        across = C // columns
        slices = min(MOST_SLICES, ceil_div(PROGRAMS, groups * across), ceil_div(rows, FEWEST_ROWS))
        slice_rows = ceil_div(rows, slices)
        block_rows = BLOCK_BYTES // (reads * columns * x.element_size())
        sizes = {
            "M": rows,
            "slice_rows": slice_rows,
            "C": C,
            "ROWS": min(block_rows, power_of_two(slice_rows)),
            "COLUMNS": columns,
            "num_warps": WARPS,
        }
        return cls((across, ceil_div(rows, slice_rows), groups), sizes)

    def sums(self, kernel: Any, x: Tensor, *more: Tensor | float) -> Tensor:
        """The partial sums, (groups, slices, C), that a `*_sums` kernel leaves."""
        _, slices, groups = self.grid
        partial = torch.empty((groups, slices, self.sizes["C"]), dtype=torch.float32, device=x.device)
        self.run(kernel, partial, x, *more)
        return partial

    def finish(self, kernel: Any, partial: Tensor, *more: Tensor | float, **constants: int) -> None:
        """Runs the kernel that begins with adding up the partial sums."""
        slices = partial.shape[1]
        self.run(kernel, partial, *more, SLICES=slices, SLICES_P2=power_of_two(slices), **constants)

    def run(self, kernel: Any, partial: Tensor, *more: Tensor | float, **constants: int) -> None:
        # Triton launches on the current device, PyTorch's own operators on their tensors'.
        with torch.cuda.device_of(partial):  # type: ignore[no-untyped-call]
            kernel[self.grid](partial, *more, **self.sizes, **constants)


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


def new_images(like: Tensor, H: int, W: int, dtype: torch.dtype) -> Tensor:
    """As many images with as many channels, of another size; channels-last."""
    groups, n, C = like.shape[:3]
    return torch.empty((groups, n, H, W, C), dtype=dtype, device=like.device).permute(0, 1, 4, 2, 3)


def new_channels(like: Tensor) -> Tensor:
    """One float32 for each group and channel of the images."""
    return torch.empty((like.shape[0], like.shape[2]), dtype=torch.float32, device=like.device)


# The operators. Each has a function that makes its results, still empty: the operator fills them, and for a compiler,
# which asks for shapes and strides only, they are the answer.


def new_leaky(y: Tensor, b: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    return new_images(y, y.shape[3], y.shape[4], y.dtype), new_channels(y)


@torch.library.custom_op("sntg::centred_leaky", mutates_args=())
def leaky(y: Tensor, b: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    a, mean = new_leaky(y, b, slope)
    y = matrix(y)
    launch = Launch.over(y, reads=1)
    partial = launch.sums(kernels.row_sums, y)
    launch.finish(kernels.centred_leaky, partial, y, b, a, mean, *b.stride(), slope)
    return a, mean


def new_leaky_backward(da: Tensor, a: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    return new_images(a, a.shape[3], a.shape[4], a.dtype), new_channels(a)


@torch.library.custom_op("sntg::centred_leaky_backward", mutates_args=())
def leaky_backward(da: Tensor, a: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    dy, db = new_leaky_backward(da, a, slope)
    da, a = matrix(da), matrix(a)
    launch = Launch.over(a, reads=2)
    partial = launch.sums(kernels.gradient_sums, da, a, slope)
    launch.finish(kernels.gradient, partial, da, a, dy, db, slope)
    return dy, db


def new_pooled(y: Tensor, b: Tensor, mask: Tensor, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    size = y.shape[3] // 2, y.shape[4] // 2
    return new_images(y, *size, y.dtype), new_channels(y), new_images(y, *size, torch.uint8)


@torch.library.custom_op("sntg::centred_leaky_pooled", mutates_args=())
def pooled(y: Tensor, b: Tensor, mask: Tensor, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    p, mean, code = new_pooled(y, b, mask, slope)
    W = y.shape[4]
    y, mask = matrix(y), matrix(mask)
    partial = Launch.over(y, reads=1).sums(kernels.row_sums, y)
    launch = Launch.over(mask, reads=4)
    launch.finish(kernels.centred_leaky_pooled, partial, y, b, mask, p, code, mean, *b.stride(), slope, W=W)
    return p, mean, code


def new_pooled_backward(dp: Tensor, mask: Tensor, code: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    return new_images(code, 2 * code.shape[3], 2 * code.shape[4], dp.dtype), new_channels(code)


@torch.library.custom_op("sntg::centred_leaky_pooled_backward", mutates_args=())
def pooled_backward(dp: Tensor, mask: Tensor, code: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    dy, db = new_pooled_backward(dp, mask, code, slope)
    W = dy.shape[4]
    dp, mask, code = matrix(dp), matrix(mask), matrix(code)
    launch = Launch.over(mask, reads=4)
    partial = launch.sums(kernels.pooled_gradient_sums, dp, mask, code, slope)
    launch.finish(kernels.gradient_pooled, partial, dp, mask, code, dy, db, slope, W=W)
    return dy, db


def save_leaky(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keeps a, which the next convolution keeps anyway: its sign is the sign of what the leaky ReLU saw."""
    a, mean = output
    ctx.save_for_backward(a)
    save_rest(ctx, mean, slope=inputs[-1])


def save_pooled(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keeps a byte a window instead of the four pixels."""
    _, mean, code = output
    ctx.save_for_backward(inputs[2], code)
    save_rest(ctx, mean, slope=inputs[-1])


def save_rest(ctx: Any, mean: Tensor, slope: float) -> None:
    ctx.slope = slope
    ctx.mark_non_differentiable(mean)
    ctx.set_materialize_grads(False)  # or each backward pass would fill zeros for the mean's gradient


def differentiate_leaky(ctx: Any, da: Tensor, *_: None) -> tuple[Tensor, Tensor, None]:
    dy, db = torch.ops.sntg.centred_leaky_backward(da, *ctx.saved_tensors, ctx.slope)
    return dy, db, None


def differentiate_pooled(ctx: Any, dp: Tensor, *_: None) -> tuple[Tensor, Tensor, None, None]:
    dy, db = torch.ops.sntg.centred_leaky_pooled_backward(dp, *ctx.saved_tensors, ctx.slope)
    return dy, db, None, None


leaky.register_fake(new_leaky)
leaky.register_autograd(differentiate_leaky, setup_context=save_leaky)
leaky_backward.register_fake(new_leaky_backward)
pooled.register_fake(new_pooled)
pooled.register_autograd(differentiate_pooled, setup_context=save_pooled)
pooled_backward.register_fake(new_pooled_backward)
