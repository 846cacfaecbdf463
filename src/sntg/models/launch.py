"""How kernels are launched, and when they are compiled. By how many programs, `slices.py` and `lines.py` say.

Triton compiles a kernel when it is first launched, half a second each. But PyTorch's compiler asks for the results'
shapes long before, with tensors that hold nothing. Nothing is launched then; instead a thread begins to compile the
kernel, while the compiler goes on.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

NARROWEST = 32  # channels in a block; C must be a multiple

# Launch parameters, for a GPU with about 130 multiprocessors. They depend on shapes alone, and so do the sums' bits.
PROGRAMS = 512  # about four a multiprocessor
WARPS = 8  # of 32 threads in a program; a thread then has a few vectors of 16 bytes, and registers for four programs
STAGES = 3  # blocks of a program that are under way at a time: enough of them to keep the memory busy


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


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n.

    >>> [power_of_two(n) for n in (1, 3, 4, 57)]
    [1, 4, 4, 64]
    """
    return 1 << (n - 1).bit_length()
