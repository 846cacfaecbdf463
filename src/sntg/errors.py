"""The one kind of error a person can cause, what else a person is to be told, and the sentence it is told in."""

from collections.abc import Iterable
from difflib import get_close_matches


class UsageError(ValueError):
    """Something the caller asked for cannot be done; the message says what, with which value, and what to do."""


class DivergenceError(RuntimeError):
    """Training produced a number that is not finite; the message names the loss term and the step."""


class Notice(UserWarning):
    """What was asked for is done, but not quite as it was asked for; the message says how, and why."""


def unknown(kind: str, value: str, valid: Iterable[str]) -> UsageError:
    """The error for a name that does not exist: it shows the nearest valid names, or all of them.

    >>> str(unknown("dataset", "two-mons", ["two-moons", "digits"]))
    "unknown dataset 'two-mons': did you mean 'two-moons'? (valid: digits, two-moons)"
    """
    names = sorted(valid)
    near = get_close_matches(value, names, n=3, cutoff=0.5)
    hint = f": did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return UsageError(f"unknown {kind} {value!r}{hint} (valid: {', '.join(names)})")
