"""A run's own random numbers, and the same bits every time: what a resumed run needs to end where it would have."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from sntg.errors import UsageError
from sntg.training.arithmetic import full_float32, repeatable, sums_in_order
from sntg.training.config import Config

# What the thread that trains holds; it may begin another run within, as a series does. By process, as a forked one has
# none of its parent's threads.
_training: dict[int, threading.RLock] = {}


@contextmanager
def own_randomness(config: Config) -> Iterator[None]:
    """Seeds torch's generators for the run and gives the caller's back afterwards; computes as the run is to compute,
    not as the caller (`arithmetic.py`); and on a GPU makes that one the current one.

    >>> from sntg.training import resolve
    >>> drawn = []
    >>> for seed in (0, 1, 0):
    ...     with own_randomness(resolve("two-moons", 12, "pi", seed=seed)):
    ...         drawn.append(float(torch.rand(())))
    >>> drawn[0] == drawn[2] != drawn[1]
    True
    """
    device = torch.device(config.device)
    with (
        _the_only_thread(),
        torch.cuda.device(device) if device.type == "cuda" else nullcontext(),
        other_draws(device),
        repeatable(),
        full_float32(tf32_convolutions=config.precision == "tf32"),
        sums_in_order() if config.pairs != "half" else nullcontext(),
    ):
        # torch.manual_seed would seed every GPU, and nobody would put the others back.
        torch.default_generator.manual_seed(_apart(config.seed))
        if device.type == "cuda":
            torch.cuda.manual_seed(config.seed)
        yield


@contextmanager
def _the_only_thread() -> Iterator[None]:
    """What PyTorch draws and how it computes is the process's: two threads would take turns at it, unseen."""
    ours = _training.setdefault(os.getpid(), threading.RLock())
    if not ours.acquire(blocking=False):
        raise UsageError(
            "another thread of this process trains, and the two would draw each other's random numbers: begin when it"
            " is done, or in a process of its own"
        )
    try:
        yield
    finally:
        ours.release()


def _apart(seed: int) -> int:
    """What seeds the training. The weights' seed would make a CPU's first noise the weights once more."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Inside, the host draws the numbers of a network's seed, whatever else is drawn in the run it belongs to.

    >>> with initial_weights(0):
    ...     first = torch.rand(())
    >>> with initial_weights(0):
    ...     torch.equal(torch.rand(()), first)
    True
    """
    with other_draws(torch.device("cpu")):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def other_draws(device: torch.device) -> Iterator[None]:
    """Inside, random numbers may be drawn, and what is drawn afterwards does not change by it.

    >>> with other_draws(torch.device("cpu")):
    ...     drawn = torch.rand(())
    >>> torch.equal(torch.rand(()), drawn)
    True
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
