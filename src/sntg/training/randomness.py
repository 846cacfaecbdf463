"""A run's own random numbers, and the same bits every time: what a resumed run needs to end where it would have."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from sntg.training.config import Config


@contextmanager
def own_randomness(config: Config) -> Iterator[None]:
    """Seeds torch's generators for the run and gives the caller's back afterwards; asks for kernels that give the same
    bits every time; and on a GPU makes that one the current one.

    >>> from sntg.training import resolve
    >>> drawn = []
    >>> for seed in (0, 1, 0):
    ...     with own_randomness(resolve("two-moons", 12, "pi", seed=seed)):
    ...         drawn.append(float(torch.rand(())))
    >>> drawn[0] == drawn[2] != drawn[1]
    True
    """
    device = torch.device(config.device)
    on_gpu = device.type == "cuda"
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32
    with (
        torch.cuda.device(device) if on_gpu else nullcontext(),
        torch.random.fork_rng([device] if on_gpu else []),
        sums_in_order() if config.pairs != "half" else nullcontext(),
    ):
        # torch.manual_seed would seed every GPU, and nobody would put the others back.
        torch.default_generator.manual_seed(config.seed)
        if on_gpu:
            torch.cuda.manual_seed(config.seed)
        try:
            cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = True, False, config.precision == "tf32"
            yield
        finally:
            cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before


@contextmanager
def sums_in_order() -> Iterator[None]:
    """Inside, what several pairs contribute to the gradient of a row they share is added up in a fixed order.

    Otherwise the threads of a GPU, or of a CPU, add it as they come. It makes all indexed writes slower, and pairs that
    share no row, which are the default, do without. It holds for the whole process, as PyTorch's switch does.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        # cuBLAS adds up in order as long as each stream has a workspace of its own, as ours have.
        warnings.filterwarnings("ignore", ".*CuBLAS")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
