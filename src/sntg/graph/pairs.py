"""Which pairs of a batch the graph term looks at: the second half of the paper's doubly stochastic sampling."""

import math
from numbers import Integral
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sntg.errors import UsageError, unknown

PairMode = Literal["half", "random", "all"]
PAIR_MODES: dict[str, str] = {
    "half": "(i, i + n//2): n//2 disjoint pairs of a shuffled batch, as the reference code does",
    "random": "s ordered pairs i != j drawn without replacement, as the paper's text says",
    "all": "every ordered pair i != j",
}


Rows = Tensor | slice  # what an axis can be indexed with; a slice costs no copy and no scattered gradient


class Pairs(NamedTuple):
    """The row numbers of each pair's two ends."""

    i: Rows
    j: Rows


def sample_pairs(
    n: int,
    mode: str = "half",
    n_pairs: int | None = None,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Pairs:
    """Pairs among n rows. `n_pairs` is the s of mode "random"; half the batch (the paper's s) if not given.

    >>> sample_pairs(5, "half")
    Pairs(i=slice(0, 2, None), j=slice(2, 4, None))
    """
    check_pairs(n, mode, n_pairs)
    if mode == "half":
        return Pairs(slice(0, n // 2), slice(n // 2, 2 * (n // 2)))
    if mode == "random":
        return _decode(torch.randperm(n * (n - 1), device=device, generator=generator)[: n_pairs or n // 2], n)
    return _decode(torch.arange(n * (n - 1), device=device), n)


def check_pairs(n: int | None, mode: str, n_pairs: int | None) -> None:
    """Refuses what no batch of n rows can give; None where the batch's size is not known yet."""
    if not isinstance(mode, str) or mode not in PAIR_MODES:
        raise unknown("pairs", str(mode), PAIR_MODES)
    if isinstance(n, bool) or not (n is None or isinstance(n, Integral | torch.SymInt)):  # a compiler's, if left open
        raise UsageError(f"n = {n!r} is not a whole number of rows")
    if n is not None and n < 2:
        raise UsageError(f"a batch of {n} has no pairs: the graph term needs at least 2 rows")
    if n_pairs is None:
        return
    if mode != "random":
        raise UsageError(f"n_pairs = {n_pairs} only means something with pairs = random, not {mode}")
    most = math.inf if n is None else n * (n - 1)
    if not isinstance(n_pairs, Integral) or isinstance(n_pairs, bool) or not 1 <= n_pairs <= most:
        limits = "from 1 on" if n is None else f"from 1 to n(n-1) = {most} for a batch of n = {n}"
        raise UsageError(f"n_pairs = {n_pairs!r} is not a whole number {limits}")


def _decode(code: Tensor, n: int) -> Pairs:
    """Number c of the n(n-1) ordered pairs: i is c // (n-1), j the c % (n-1)-th of the other rows."""
    i = code // (n - 1)
    other = code % (n - 1)
    return Pairs(i, other + (other >= i))
