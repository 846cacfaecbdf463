"""How PyTorch computes while a run trains, whatever its caller lets it: the same bits every time, and float32 in full.

All of it are switches of the whole process, which are put back afterwards.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sntg.errors import UsageError

FULL, TF32, UNSAID = "ieee", "tf32", "none"
BACKENDS: Any = torch.backends  # its types do not know all of its switches


def check_surroundings(device: str) -> None:
    """Refuses to train where the caller has made PyTorch compute in a way that a run cannot, or would not tell of.

    >>> with torch.no_grad():
    ...     check_surroundings("cpu")
    Traceback (most recent call last):
    sntg.errors.UsageError: gradients are off here (torch.no_grad or inference_mode): begin the run outside
    """
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        raise UsageError("gradients are off here (torch.no_grad or inference_mode): begin the run outside")
    if torch.is_autocast_enabled(torch.device(device).type):
        raise UsageError("torch.autocast is on here, and a run has its own precision: begin it outside, precision=...")
    if torch.get_default_dtype() != torch.float32:
        raise UsageError(
            f"PyTorch's default dtype is {torch.get_default_dtype()} here, and a run's is float32: put it back"
        )
    if torch.get_default_device().type != "cpu":
        raise UsageError(
            f"PyTorch's default device is {torch.get_default_device()} here, and a run has its own: put it back to the"
            " CPU, and give the run device=..."
        )


@contextmanager
def repeatable() -> Iterator[None]:
    """Inside, convolutions have kernels that give the same bits every time, chosen by rule and not by timing.

    >>> with repeatable():
    ...     torch.backends.cudnn.deterministic
    True
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    try:
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


@contextmanager
def full_float32(tf32_convolutions: bool) -> Iterator[None]:
    """Inside, products of float32 numbers are computed in float32; those of a GPU's convolutions in TF32 if wanted.

    PyTorch has two sets of switches for it, and refuses to tell what the older ones say where the newer ones disagree.
    Its compiler asks both. So both are set, to the same. (Afterwards all say what they said before; but convolutions no
    more follow a general switch that changes later, where PyTorch does not tell that they did.)

    >>> torch.set_float32_matmul_precision("medium")
    >>> with full_float32(tf32_convolutions=False):
    ...     torch.get_float32_matmul_precision()
    'highest'
    >>> torch.get_float32_matmul_precision()
    'medium'
    >>> torch.set_float32_matmul_precision("highest")
    """
    cudnn, mkldnn = BACKENDS.cudnn, BACKENDS.mkldnn
    convolutions = cudnn.conv, cudnn.rnn  # the older switch is for both
    products = BACKENDS.cuda.matmul, mkldnn.matmul, mkldnn.conv
    # A switch that says nothing follows the general ones. While those say nothing either, that of each product tells
    # what is its own: put back, it follows as it did.
    before = _set(convolutions, FULL) + _set((BACKENDS, cudnn), UNSAID) + _set(products, FULL)
    matmul, allow_tf32 = torch.get_float32_matmul_precision(), _allows_tf32()
    try:
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = tf32_convolutions
        _set(convolutions, TF32 if tf32_convolutions else FULL)
        _set(products, FULL)
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32 = allow_tf32
        for place, precision in before:
            place.fp32_precision = precision


def _set(places: Iterable[Any], precision: str) -> list[tuple[Any, str]]:
    """Sets the newer switches one after the other; returns what each of them said just before."""
    before = []
    for place in places:
        before.append((place, place.fp32_precision))
        place.fp32_precision = precision
    return before


def _allows_tf32() -> bool:
    """What the older switch of cuDNN says, where the newer ones say no: it is refused where they disagree."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return True


@contextmanager
def sums_in_order() -> Iterator[None]:
    """Inside, what several pairs contribute to the gradient of a row they share is added up in a fixed order.

    Otherwise the threads of a GPU, or of a CPU, add it as they come. It makes all indexed writes slower, and pairs that
    share no row, which are the default, do without. PyTorch's switch for it would also fill all new memory with NaN,
    which is left out: what we allocate we write.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    with warnings.catch_warnings():
        # cuBLAS adds up in order as long as each stream has a workspace of its own, as ours have.
        warnings.filterwarnings("ignore", ".*CuBLAS")
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            memory.fill_uninitialized_memory = filled
