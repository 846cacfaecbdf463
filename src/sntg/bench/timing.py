"""Clocks: seconds that include what the device still has to do, and how fast it multiplies matrices at its best."""

import time
from collections.abc import Callable, Sequence
from math import ceil

import torch

from sntg.models import PRECISIONS

ROUNDS = 9  # blocks of steps of each case; cases that are compared take turns, block by block
UNMEASURED = 10  # steps before the clock starts
EVALUATIONS = 3  # timed, of which the median counts
SECONDS, FEWEST, MOST = 1.0, 20, 400  # a case is measured for about that long, and for so many steps
SIDE = {"cuda": 8192, "cpu": 1024}  # of the square matrices
PRODUCTS, TIMINGS = 5, 20  # products in a timing; timings, of which the best counts

Work = Callable[[], object]


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Work, device: torch.device, times: int = 1) -> float:
    """How long the device takes for some work, done so many times.

    >>> seconds(lambda: None, torch.device("cpu")) < 60
    True
    """
    wait(device)
    started = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return time.perf_counter() - started


def block_length(step_seconds: float, steps: int | None = None) -> int:
    """How many steps make a block, for about a second in all rounds together, or for so many steps in all.

    >>> block_length(step_seconds=0.01), block_length(step_seconds=10.0), block_length(0.01, steps=9)
    (12, 3, 1)
    """
    in_all = min(max(SECONDS / step_seconds, FEWEST), MOST) if steps is None else steps
    return ceil(in_all / ROUNDS)


def take_turns(works: Sequence[Work], lengths: Sequence[int], device: torch.device) -> list[list[float]]:
    """The seconds one call of each takes, a figure a round. Whatever else the machine does meets all of them alike.

    >>> [len(figures) for figures in take_turns([lambda: None, lambda: None], [1, 2], torch.device("cpu"))]
    [9, 9]
    """
    found: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for mine, work, length in zip(found, works, lengths, strict=True):
            mine.append(seconds(work, device, length) / length)
    return found


def matrix_rate(precision: str, device: torch.device) -> float:
    """The TFLOP/s of a large square matrix product, best of several timings."""
    side = SIDE[device.type]
    a, b = (torch.randn(side, side, device=device).to(PRECISIONS[precision] or torch.float32) for _ in range(2))
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, matmul.fp32_precision
    try:
        matmul.allow_tf32 = precision == "tf32"
        torch.mm(a, b)
        best = min(seconds(lambda: torch.mm(a, b), device, PRODUCTS) for _ in range(TIMINGS))
    finally:
        matmul.allow_tf32, matmul.fp32_precision = before  # both: to the compiler's cache False is not what was there
    return 2 * side**3 * PRODUCTS / best / 1e12
