"""The command line: train, resume, recipe, split, data fetch, demo, and lists of what there is. No logic lives here."""

import sys
from concurrent.futures.process import BrokenProcessPool

from sntg.cli.app import app
from sntg.errors import DivergenceError, UsageError

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line; what a person can cause ends in one sentence, never in a traceback.

    Exit codes: 0 done, 1 a run that failed, 2 bad usage, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    try:
        app()
    except UsageError as e:
        _stop(str(e), 2)
    except DivergenceError as e:
        _stop(str(e), 1)
    except OSError as e:  # a disk that fills up in mid-run, say
        _stop(f"stopped by the system: {e}", 1)
    except BrokenProcessPool:
        _stop("a worker process was killed, perhaps for lack of memory: run it again", 1)


def _stop(message: str, code: int) -> None:
    print(f"sntg: {message}", file=sys.stderr)
    sys.exit(code)
