"""Removes from PyTorch's cache what a process that was killed while it compiled may have left half-written there.

On a CPU PyTorch hands C++ to the system's compiler, which writes its files under their final names. A part of one, left
by Ctrl-C, a kill or a lack of memory, is taken for whole ever after: a library that cannot be loaded, or crashes the
process, or a precompiled header that the compiler does without. So a process that compiles leaves a mark in the cache
until it is done. Who finds the mark of one that is gone deletes what was written since: at worst something is compiled
twice.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

MARKS = "sntg-compiling"  # the folder of the marks; their names begin with the time, in nanoseconds
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
    with FileLock(mark):
        yield  # on any error the mark stays: the compiler may have been stopped with us
        mark.unlink()


def sweep(marks: Path, caches: set[Path]) -> None:
    """Deletes what compilers have written into the caches since the first mark of a process that is gone."""
    for mark in sorted(marks.iterdir()):
        try:
            with FileLock(mark, timeout=0):
                since = int(mark.name.partition("-")[0]) - TICK
                for file in (file for cache in caches for file in cache.glob("*/*")):
                    with suppress(FileNotFoundError):  # somebody else sweeps, too
                        if file.suffix in BY_THE_COMPILER and file.stat().st_mtime_ns >= since:
                            file.unlink()
                mark.unlink(missing_ok=True)
        except Timeout:  # it still compiles
            continue
