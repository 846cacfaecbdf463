"""How kernels are launched, and compiled when; and those of `kernels.py` by how many programs for an image tensor.

Triton compiles a kernel when it is first launched, half a second each. But PyTorch's compiler asks for the results'
shapes long before, with tensors that hold nothing. Nothing is launched then; instead a thread begins to compile the
kernel, while the compiler goes on.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

NARROWEST = 32  # channels in a block; C must be a multiple

# Launch parameters, for a GPU with about 130 multiprocessors. They depend on shapes alone, and so do the sums' bits.
PROGRAMS = 512  # about four a multiprocessor
WARPS = 8  # of 32 threads in a program; a thread then has a few vectors of 16 bytes, and registers for four programs
BLOCK_BYTES = 2**14  # that a program moves at a time
STAGES = 3  # blocks of a program that are under way at a time: enough of them to keep the memory busy
FEWEST_ROWS = 128  # in a slice; below this, adding up the slices costs more than the rows
MOST_SLICES = 128  # of the rows of a batch, for the same reason


class Launch(NamedTuple):
    """How the rows of every group are shared out among programs; `grid.py` explains how."""

    grid: tuple[int, int, int]
    sizes: dict[str, int]
    first: int

    @classmethod
    def over(cls, x: Tensor, reads: int, first: int = 0) -> "Launch":
        """For kernels that walk over the rows of x, (groups, n, H, W, C), and hold `reads` rows as wide for each.

        Enough slices to fill the GPU, but none of few rows.
        """
        groups, rows, C = x.shape[0], prod(x.shape[1:4]), x.shape[4]
        if any(isinstance(size, torch.SymInt) for size in x.shape):  # a compiler leaves it open: nothing is to be known
            return cls((1, 1, 1), {"M": rows, "C": C}, first)
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
        """Launches a kernel."""
        launch(kernel, self.grid, (partial, *more), self.sizes | constants)


def launch(kernel: Any, grid: tuple[int, ...], handed: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Launches a kernel, whose first argument is a tensor; where the tensors hold nothing it is compiled only."""
    like = handed[0]
    if isinstance(like, FakeTensor) or like.is_meta:
        if torch.cuda.is_available() and not any(isinstance(value, torch.SymInt) for value in constants.values()):
            dtypes = [value.dtype if isinstance(value, Tensor) else value for value in handed]
            compiling().submit(compile_for, like.device, kernel, dtypes, grid, constants)
        return
    # Triton launches on the current device, PyTorch's own operators on their tensors'.
    with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
        kernel[grid](*handed, **constants)


@cache
def compiling() -> ThreadPoolExecutor:
    """Where kernels are compiled beside all else. One thread is enough: PyTorch's compiler takes longer."""
    return ThreadPoolExecutor(1, thread_name_prefix="kernels")


def compile_for(device: torch.device, kernel: Any, handed: list[Any], grid: tuple[int, ...], constants: Any) -> None:
    """Compiles a kernel for tensors of the dtypes handed. Where it cannot be, that is told when it is launched."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel.warmup(*handed, grid=grid, **constants)


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
