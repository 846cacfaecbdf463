"""Removes from PyTorch's cache what a process that was killed while it compiled may have left half-written there.

On a CPU PyTorch hands C++ to the system's compiler, which writes its files under their final names. A part of one, left
by Ctrl-C, a kill or a lack of memory, is taken for whole ever after: a library that cannot be loaded, or crashes the
process, or a precompiled header that the compiler does without. So a process that compiles leaves a mark in the cache
until it is done, and holds a lock beside it, which the system takes back from a process that is killed. Who finds a
mark without its lock deletes what was written since.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

from filelock import FileLock

MARKS = "sntg-compiling"  # the folder of the marks; a name is the time, in nanoseconds, and the process
BY_THE_COMPILER = {".so", ".o", ".gch"}  # what PyTorch writes itself appears whole
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
    sweep(marks, {Path(cache_dir()), Path(default_cache_dir())})  # headers are always in the default one
    mark = marks / f"{time.time_ns()}-{os.getpid()}"
    with FileLock(_lock(mark)):
        mark.touch()
        yield  # on any error the mark stays: the compiler may have been stopped with us
        mark.unlink()
    with suppress(OSError):
        _lock(mark).unlink()


def sweep(marks: Path, caches: set[Path]) -> None:
    """Deletes what compilers have written into the caches since the first mark of a process that is gone.

    But nothing that may be of one that still compiles; while there is one, the marks stay for the next.
    """
    found = [mark for mark in marks.iterdir() if re.fullmatch(r"\d+-\d+", mark.name)]
    gone = [mark for mark in found if _is_gone(mark)]
    since, until = (min(map(_begun, some), default=inf) for some in (gone, set(found) - set(gone)))
    for file in (file for cache in caches if gone for file in cache.glob("*/*")):
        with suppress(OSError):  # somebody else sweeps, too, or may and we may not
            if file.suffix in BY_THE_COMPILER and since <= file.stat().st_mtime_ns < until:
                file.unlink()
    for left in (file for mark in gone if until == inf for file in (mark, _lock(mark))):
        with suppress(OSError):
            left.unlink()


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
