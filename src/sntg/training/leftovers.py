"""Removes from PyTorch's cache what a process that was killed while it compiled may have left half-written there.

On a CPU PyTorch hands C++ to the system's compiler, which writes its files under their final names. A part of one, left
by Ctrl-C, a kill or a lack of memory, is taken for whole ever after: a library that cannot be loaded, or crashes the
process, or a precompiled header that the compiler does without. So a process that compiles leaves a mark in the cache
until it is done, and holds a lock beside it, which the system takes back from a process that is killed. Who finds a
mark without its lock deletes what was written since; but first waits for others that still compile, whose files those
may be as well.
"""

import os
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path

from filelock import FileLock

from sntg.errors import Notice
from sntg.training.stopping import stop_if_asked

MARKS = "sntg-compiling"  # the folder of the marks; a name is the time, in nanoseconds, and the process
BY_THE_COMPILER = {".so", ".o", ".gch"}  # what PyTorch writes itself appears whole
PATIENCE = 120.0  # seconds to wait for others that compile; it takes them half a minute
GLANCE = 0.2  # seconds between two looks at them
TICK = 10**9  # nanoseconds that a file's time may lie behind the clock


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, C++ may be compiled; before, what others have left half-written is removed.

    >>> with compiling():
    ...     doubled = 2 * 21
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir  # loads half of the compiler

    marks = Path(cache_dir(), MARKS)
    marks.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with FileLock(_lock(marks)):  # one at a time: nobody begins unseen by who sweeps
            await_others(marks)
            sweep(marks, {Path(cache_dir()), Path(default_cache_dir())})  # headers are always in the default one
            mark = marks / f"{time.time_ns()}-{os.getpid()}"
            held.enter_context(FileLock(_lock(mark)))
            mark.touch()
        yield  # on any error the mark stays: the compiler may have been stopped with us
        mark.unlink()
    with suppress(OSError):
        _lock(mark).unlink()


def sweep(marks: Path, caches: set[Path]) -> None:
    """Deletes what compilers have written into the caches since the first mark of a process that is gone.

    But nothing that may be of one that still compiles; while there is one, the marks stay for the next.
    """
    gone, alive = _found(marks)
    since, until = (min(map(_begun, some), default=inf) for some in (gone, alive))
    for file in (file for cache in caches if gone for file in cache.glob("*/*")):
        with suppress(OSError):  # somebody else sweeps, too, or may and we may not
            if file.suffix in BY_THE_COMPILER and since <= file.stat().st_mtime_ns < until:
                file.unlink()
    for left in (file for mark in gone if until == inf for file in (mark, _lock(mark))):
        with suppress(OSError):
            left.unlink()


def await_others(marks: Path) -> None:
    """Waits while others compile and one that is gone has left what cannot be told from theirs, but not for ever."""
    end, waits = time.monotonic() + PATIENCE, False
    while all(_found(marks)) and time.monotonic() < end:
        if not waits:
            reason = "one run was killed while it compiled, and another still compiles"
            warnings.warn(f"{reason}: this one waits for that, for {PATIENCE:.0f} s at most", Notice, stacklevel=2)
        waits = True
        stop_if_asked()
        time.sleep(GLANCE)


def _found(marks: Path) -> tuple[set[Path], set[Path]]:
    """The marks of processes that are gone, and of those that still compile."""
    found = {mark for mark in marks.iterdir() if re.fullmatch(r"\d+-\d+", mark.name)}
    gone = {mark for mark in found if _is_gone(mark)}
    return gone, {mark for mark in found - gone if mark.exists()}


def _is_gone(mark: Path) -> bool:
    """Whether nobody holds the lock of a mark, which its process has not removed in the meantime."""
    try:
        with FileLock(_lock(mark), timeout=0):
            return mark.exists()
    except OSError:  # it is held, or somebody else's
        return False


def _lock(mark: Path) -> Path:
    return mark.with_name(f"{mark.name}.lock")


def _begun(mark: Path) -> float:
    return int(mark.name.partition("-")[0]) - TICK
