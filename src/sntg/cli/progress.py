"""A run as the terminal shows it: a bar with time left and the latest figures, or plain lines where there is none."""

import errno
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import Progress, TaskID

from sntg.terminal import progress_bar
from sntg.training import Config, Record, RunFolder, Stack, Stopped, Trained, config_to_resume, resume, run
from sntg.training.config import device_name
from sntg.training.run_folder import CONFIG

PLAIN_LINES = 20  # how many lines a whole run prints when there is no terminal
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GLANCE = 2.0  # seconds between two looks at the losses within an epoch: a look makes a GPU wait


class Display:
    """Shows how far a run is."""

    def __init__(self, config: Config, console: Console, bar: Progress) -> None:
        self.config = config
        self.console = console
        self.bar = bar
        self.task: TaskID = bar.add_task(config.method, total=None)
        self.looked = time.monotonic()
        self.error = ""
        self.unspoken = True  # how the steps are executed is known when the first is taken

    def say_how(self, config: Config) -> None:
        """Names the engine and the precision that `auto` came to, or that were asked for."""
        self.unspoken = False
        line = f"engine {config.engine}, {config.precision}, on {device_name(config.device)}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def on_step(self, runs: Stack) -> None:
        """Moves the bar; every other second it shows the losses of the epoch so far."""
        if self.unspoken:
            self.say_how(runs.configs[0])
        self.bar.update(self.task, completed=runs.step, total=runs.steps)
        now = time.monotonic()
        if runs.log.steps and self.console.is_terminal and now - self.looked > GLANCE:
            self.bar.update(self.task, description=_terms(runs.log.means()[0]) + self.error)
            self.looked = now

    def on_epoch(self, record: Record) -> None:
        """Shows an epoch's figures, on a terminal each, elsewhere some."""
        self.error = _error(record)
        self.bar.update(self.task, description=describe(record))
        epochs = self.config.epochs
        every = max(1, epochs // PLAIN_LINES)
        if not self.console.is_terminal and (record["epoch"] % every == 0 or record["epoch"] == epochs):
            line = f"epoch {record['epoch']}/{epochs}  {describe(record)}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def train_with_progress(config: Config, out: Path) -> None:
    """Trains into a folder, showing how far it is; Ctrl-C stops it where it can go on from."""
    _show(config, out, lambda display: run(config, out, display.on_epoch, display.on_step))


def resume_with_progress(out: Path, data: str) -> None:
    """Goes on with a run, showing how far it is."""

    def warn(message: str) -> None:
        print(f"sntg: {message}", file=sys.stderr)

    config = config_to_resume(RunFolder(out), data)
    _show(config, out, lambda display: resume(out, data, display.on_epoch, display.on_step, warn))


def _show(config: Config, out: Path, work: Callable[[Display], Trained]) -> None:
    console = Console(stderr=True)
    try:
        with progress_bar(console) as bar:
            trained = work(Display(config, console, bar))
    except Stopped as stop:
        _stop(f"stopped; `sntg resume {shlex.quote(str(out))}` goes on", 128 + stop.signal)
    except KeyboardInterrupt:  # before training, or the second one
        _stop("stopped" + _hint(out, "goes on from its last checkpoint"), 130)
    except OSError as e:
        cure = "when there is room again" if e.errno in FULL else "when that is put right"
        _stop(f"stopped by the system: {e}" + _hint(out, f"goes on {cure}"), 1)
    what = f"{config.method} on {config.dataset}, {config.labels} labels, seed {config.seed}"
    where = "held-out training points" if config.validation else "test points"
    last = trained.history[-1]
    others = f"averaged weights {last['ema_error']:.2f}, raw {last['student_error']:.2f}"
    print(f"{what}: {trained.error:.2f} % error on {len(trained.data.test_y)} {where} ({others})")
    print(f"run folder: {out}")


def _stop(line: str, code: int) -> NoReturn:
    print(f"sntg: {line}", file=sys.stderr)
    sys.exit(code)


def _hint(out: Path, what: str) -> str:
    """What to do with a run that was begun."""
    return f"; `sntg resume {shlex.quote(str(out))}` {what}" if (out / CONFIG).exists() else ""


def describe(record: Record) -> str:
    """The figures of an epoch in one line."""
    return _terms(record["loss"]) + _error(record)


def _terms(losses: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in losses.items())


def _error(record: Record) -> str:
    return "" if record["error"] is None else f"  error {record['error']:.2f} %"
