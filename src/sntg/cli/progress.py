"""A run as the terminal shows it: a bar with time left and the latest figures, or plain lines where there is none."""

import errno
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NoReturn

from rich.console import Console
from rich.progress import Progress, TaskID

from sntg.errors import DivergenceError
from sntg.terminal import progress_bar
from sntg.training import (
    SERIES,
    Config,
    Record,
    RunFolder,
    Stack,
    Stopped,
    Trained,
    config_to_resume,
    final_errors,
    is_series,
    read_series,
    resume,
    resume_series,
    run,
    run_series,
    seeds_done,
)
from sntg.training.config import device_name
from sntg.training.run_folder import CONFIG

PLAIN_LINES = 20  # how many lines a whole run prints when there is no terminal
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GLANCE = 2.0  # seconds between two looks at the losses within an epoch


class Display:
    """Shows how far a run is, or a series of runs that differ in their seed."""

    def __init__(self, configs: Sequence[Config], console: Console, bar: Progress, done: int = 0) -> None:
        """done: how many of the runs were finished before."""
        self.config = configs[0]
        self.console = console
        self.bar = bar
        self.task: TaskID = bar.add_task(self.config.method, total=None)
        self.looked = time.monotonic()
        self.error = ""
        self.unspoken = True  # how the steps are executed is known when the first is taken
        self.runs, self.done = len(configs), done
        self.taken: dict[int, int] = {}  # steps, by the seed: several runs of a series may be under way
        self.ended: dict[int, list[int]] = {}  # the seeds that have ended an epoch, until its figures come

    def say_how(self, config: Config) -> None:
        """Names the engine and the precision that `auto` came to, or that were asked for."""
        self.unspoken = False
        self._print(f"engine {config.engine}, {config.precision}, on {device_name(config.device)}")

    def on_step(self, stack: Stack) -> None:
        """Moves the bar; every other second it shows the losses of the epoch so far."""
        if self.unspoken:
            self.say_how(stack.configs[0])
        self.taken[stack.configs[0].seed] = stack.step
        if stack.step % stack.epoch_steps == 0:
            seeds = [stack.configs[r].seed for r in stack.living]
            self.ended.setdefault(stack.step // stack.epoch_steps, []).extend(seeds)
        before, passes = self.done // len(stack.configs), self.runs // len(stack.configs)
        taken = before * stack.steps + sum(self.taken.values())
        self.bar.update(self.task, completed=taken, total=passes * stack.steps)
        now = time.monotonic()
        free = stack.device.type == "cpu"  # a GPU would have to be waited for, in the midst of an epoch
        if free and stack.log.steps and self.console.is_terminal and now - self.looked > GLANCE:
            self.bar.update(self.task, description=self.error + _terms(stack.log.means()[stack.living[0]]))
            self.looked = now

    def on_epoch(self, records: list[Record]) -> None:
        """Shows an epoch's figures, with the seeds' mean error: on a terminal every epoch's, elsewhere some.

        Where not all seeds of a series are at it, it says which.
        """
        record, epochs = records[0], self.config.epochs
        self.error = _errors(records)
        seeds = self.ended.pop(record["epoch"], [])
        line = (_named(seeds) if 0 < len(seeds) < self.runs else "") + describe(records)
        self.bar.update(self.task, description=line)
        every = max(1, epochs // PLAIN_LINES)
        if not self.console.is_terminal and (record["epoch"] % every == 0 or record["epoch"] == epochs):
            self._print(f"epoch {record['epoch']}/{epochs}  {line}")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def train_with_progress(configs: Sequence[Config], out: Path, series: bool = False) -> None:
    """Trains a run or a series into a folder, showing how far it is; Ctrl-C stops it where it can go on from."""

    def work(display: Display) -> list[Trained]:
        if series:
            return run_series(configs, out, display.on_epoch, display.on_step)
        return [run(configs[0], out, lambda record: display.on_epoch([record]), display.on_step)]

    _show(configs, out, work)


def resume_with_progress(out: Path, data: str) -> None:
    """Goes on with a run or a series, showing how far it is."""

    def warn(message: str) -> None:
        print(f"sntg: {message}", file=sys.stderr)

    def work(display: Display) -> list[Trained]:
        if series:
            return resume_series(out, data, display.on_epoch, display.on_step, warn)
        return [resume(out, data, lambda record: display.on_epoch([record]), display.on_step, warn)]

    series = is_series(out)
    configs = read_series(out) if series else [config_to_resume(RunFolder(out), data)]
    _show(configs, out, work, seeds_done(out) if series else 0)


def _show(configs: Sequence[Config], out: Path, work: Callable[[Display], list[Trained]], before: int = 0) -> None:
    console = Console(stderr=True)
    try:
        with progress_bar(console) as bar:
            done = work(Display(configs, console, bar, before))
    except Stopped as stop:
        _stop(f"stopped; `sntg resume {shlex.quote(str(out))}` goes on", 128 + stop.signal)
    except KeyboardInterrupt:  # before training, or the second one
        _stop("stopped" + _hint(out, "goes on from its last checkpoint"), 130)
    except OSError as e:
        cure = "when there is room again" if e.errno in FULL else "when that is put right"
        _stop(f"stopped by the system: {e}" + _hint(out, f"goes on {cure}"), 1)
    except DivergenceError:
        for seed, error in (final_errors(out) if is_series(out) else {}).items():
            print(f"seed {seed}: {error:.2f} % error")  # the others have come to their end
        raise
    for trained in done:
        print(_outcome(trained))
    if len(configs) > 1:
        errors = final_errors(out).values()
        print(f"{len(errors)} seeds: {mean(errors):.2f} % error on average, deviation {stdev(errors):.2f}")
    print(f"run folder: {out}")


def _outcome(trained: Trained) -> str:
    """A finished run in a line."""
    config, last = trained.config, trained.history[-1]
    what = f"{config.method} on {config.dataset}, {config.labels} labels, seed {config.seed}"
    where = "held-out training points" if config.validation else "test points"
    others = f"averaged weights {last['ema_error']:.2f}, raw {last['student_error']:.2f}"
    return f"{what}: {trained.error:.2f} % error on {len(trained.data.test_y)} {where} ({others})"


def _stop(line: str, code: int) -> NoReturn:
    print(f"sntg: {line}", file=sys.stderr)
    sys.exit(code)


def _hint(out: Path, what: str) -> str:
    """What to do with a run that was begun."""
    begun = (out / CONFIG).exists() or (out / SERIES).exists()
    return f"; `sntg resume {shlex.quote(str(out))}` {what}" if begun else ""


def describe(records: list[Record]) -> str:
    """The figures of an epoch in one line, which may be cut short: the error of all, and the first run's losses."""
    return _errors(records) + _terms(records[0]["loss"])


def _named(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}  "


def _terms(losses: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in losses.items())


def _errors(records: list[Record]) -> str:
    """The error, or the seeds' mean error."""
    errors = [record["error"] for record in records if record["error"] is not None]
    return f"error {mean(errors):.2f} %  " if errors else ""
