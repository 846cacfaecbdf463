"""The command line: train, resume, recipe, split, data fetch, demo, bench, and lists. No logic lives here."""

import re
import sys
import warnings
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from io import TextIOWrapper
from typing import TextIO

import torch

from sntg.cli.app import app
from sntg.errors import DivergenceError, Notice, UsageError

__all__ = ["app", "main"]

NO_MEMORY = "DefaultCPUAllocator"  # who says so in PyTorch: for the host's memory it has no error of its own
_as_python_does = warnings.showwarning


def main() -> None:
    """Runs the command line; what a person can cause ends in one sentence, never in a traceback.

    Exit codes: 0 done, 1 a run that failed, 2 bad usage, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    warnings.showwarning = _show_warning
    _tell.cache_clear()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name may have what a terminal has no letters for
    try:
        app()
    except UsageError as e:
        _stop(str(e), 2)
    except DivergenceError as e:
        _stop(str(e), 1)
    except OSError as e:  # a disk that fills up in mid-run, say
        _stop(f"stopped by the system: {e}", 1)
    except torch.OutOfMemoryError:
        _stop("the GPU's memory is full: make room there, or use --storage host, smaller batches (--set batch=...)", 1)
    except BrokenProcessPool:
        _stop("a worker process was killed, perhaps for lack of memory: run it again", 1)
    except (MemoryError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and NO_MEMORY not in str(e):
            raise
        _stop(f"the memory is full{_wanted(str(e))}: make room, or use smaller batches (--set batch=...)", 1)
    except Notice as e:  # where Python was told to make errors of warnings
        _stop(str(e), 1)


def _wanted(message: str) -> str:
    """How much memory there was no room for, if PyTorch says so.

    >>> _wanted("... can't allocate memory: you tried to allocate 40000000000 bytes. Error code 12")
    ', there is no room for 37.3 GiB'
    """
    found = re.search(r"allocate (\d+) bytes", message)
    return f", there is no room for {int(found[1]) / 2**30:.1f} GiB" if found else ""


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What a run has to say is a sentence; the rest is Python's."""
    if issubclass(category, Notice):
        _tell(str(message))
    else:
        _as_python_does(message, category, filename, lineno, file, line)


@cache
def _tell(message: str) -> None:
    """Once, however many seeds of a series find it so."""
    print(f"sntg: {message}", file=sys.stderr)


def _stop(message: str, code: int) -> None:
    print(f"sntg: {message}", file=sys.stderr)
    sys.exit(code)
