"""`sntg bench`: how fast training steps are on this machine, by method, engine and precision."""

import shlex
import signal
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from sntg.bench.cases import METHODS, Case, Group, chosen, narrowed, plan
from sntg.bench.measure import Bench, Row, overheads
from sntg.bench.plot import draw_bench, panels
from sntg.bench.provenance import hardware, made_by
from sntg.bench.report import Results, alone, new_file, print_results, remarks, tables
from sntg.errors import UsageError
from sntg.models import PRECISIONS
from sntg.terminal import progress_bar
from sntg.training.config import LARGEST, check_device
from sntg.training.engines import ENGINES
from sntg.training.run_folder import check_writable
from sntg.training.stopping import Terminated, sigterm_interrupts

FAILED = 1  # the exit code of a bench that the system has stopped

HOME = Path("benchmarks/results")  # in a checkout


@dataclass(frozen=True)
class Choice:
    """What to measure: comma-separated names, all if None; steps a case, for about a second if None."""

    device: str
    methods: str | None = None
    engines: str | None = None
    precisions: str | None = None
    steps: int | None = None

    @property
    def groups(self) -> list[Group]:
        """The cases; a choice that cannot be is refused.

        >>> [str(case) for case in Choice("cpu", engines="compiled").groups[0]]
        ['pi+sntg on two-moons, compiled, float32']
        """
        check_device(self.device)
        if self.steps is not None and not 1 <= self.steps <= LARGEST:
            raise UsageError(f"--steps {self.steps}: a case is measured for 1 step at least, and {LARGEST} at most")
        methods = chosen("method", self.methods, METHODS)
        engines = chosen("engine", self.engines, ENGINES)
        return narrowed(plan(self.device), methods, engines, chosen("precision", self.precisions, PRECISIONS))

    @property
    def command(self) -> str:
        """The command that makes it, but for where the results go: that is a machine's own affair.

        >>> Choice("cpu", methods="pi, mt").command
        "sntg bench --device cpu --methods 'pi, mt'"
        """
        given = {"methods": self.methods, "engines": self.engines, "precisions": self.precisions, "steps": self.steps}
        words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
        return shlex.join(["sntg", "bench", "--device", self.device, *words])

    @classmethod
    def of(cls, command: str) -> "Choice":
        """The choice that a command makes.

        >>> Choice.of("sntg bench --device cpu --methods 'pi, mt' --steps 9")
        Choice(device='cpu', methods='pi, mt', engines=None, precisions=None, steps=9)
        """
        words = shlex.split(command)[2:]
        given = dict(zip((name.removeprefix("--") for name in words[::2]), words[1::2], strict=True))
        steps = given.pop("steps", None)
        return cls(**given, steps=int(steps) if steps else None)


def run_bench(choice: Choice, out: Path | None = None) -> None:
    """Measures, prints the tables, and writes a JSON file and a plot into `out`: by default benchmarks/results where
    there is such a folder, as in a checkout, and else the current folder. Ctrl-C stops with what there is."""
    groups = choice.groups
    folder = out or (HOME if HOME.is_dir() else Path())
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(made_by(choice.command), hardware(choice.device))
    with new_file(folder, results) as path:
        _run(choice, groups, results, path)


def resume_bench(path: Path) -> None:
    """Measures what is missing in the results of a bench that was stopped, and adds it to them; or draws their plot,
    if that is all that is missing."""
    _earlier(path)  # before a mark is put beside what is no stopped bench's
    check_writable(path.parent)
    with alone(path):
        choice, results, measured = _earlier(path)
        if results.complete:
            _show(results, path)
            return
        groups = choice.groups
        results.go_on(made_by(choice.command), hardware(choice.device))
        strange = sorted(str(case) for case in measured.difference(*groups))
        if strange:
            raise UsageError(f"{path} has figures for {strange[0]}, which `{choice.command}` does not measure")
        _run(choice, [group for group in groups if not measured.issuperset(group)], results, path)


def _earlier(path: Path) -> tuple[Choice, Results, set[Case]]:
    """What a stopped bench was to measure, by its file, what it has found, and of which cases."""
    try:
        results = Results.read(path)
        for use in (tables, remarks, _title, lambda found: panels(found.rows)):
            use(results)  # what cannot be shown now would fail when all the rest is measured
        measured = {Case(row.dataset, row.method, row.asked, row.precision) for row in results.rows}
        choice = Choice.of(results.provenance["command"])
    except OSError as e:
        raise UsageError(f"{path} cannot be read: {e.strerror}") from None
    except (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        raise UsageError(f"{path} holds no results of this version's `sntg bench`") from None
    if results.complete and (path.with_suffix(".png").exists() or not panels(results.rows)):
        raise UsageError(f"{path} is complete: there is nothing left to measure")
    return choice, results, measured


def _run(choice: Choice, groups: list[Group], results: Results, path: Path) -> None:
    code = 0
    try:
        with sigterm_interrupts():
            _measure_with_bar(groups, Bench(choice.device, choice.steps, results.matrix_product), results, path)
    except (KeyboardInterrupt, OSError) as stop:
        code, by = (FAILED, f" by the system: {stop}") if isinstance(stop, OSError) else (128 + _signal(stop), "")
        if results.rows and code != FAILED:
            with suppress(OSError):  # the tables have it, too
                results.write(path)  # the request may have come while it was written
        left = path.exists() and (code == FAILED or not results.complete)  # the last word may be what found no room
        hint = f"; `sntg bench --resume {shlex.quote(str(path))}` goes on from the figures in it" if left else ""
        print(f"sntg: stopped{by}{hint}", file=sys.stderr)
    if any(row.ms_per_step for row in results.rows):
        _show(results, path, plotted=code != FAILED)
    if code:
        sys.exit(code)


def _show(results: Results, path: Path, plotted: bool = True) -> None:
    """Draws the plot, if it is wanted, and prints the tables."""
    plot, drawn = path.with_suffix(".png"), False
    try:  # first: nobody may be left to print for
        drawn = plotted and draw_bench(panels(results.rows), _title(results), plot)
    except OSError as e:
        again = f"`sntg bench --resume {shlex.quote(str(path))}` draws it when that is put right"
        raise OSError(e.errno, f"the plot {plot} cannot be written: {e.strerror}; {again}") from None
    finally:  # a disk may have no room for it: the figures are measured all the same
        print_results(results)
        if path.exists():
            print(f"results: {path}{f' and {plot.name}' if drawn else ''}", flush=True)


def _signal(stop: KeyboardInterrupt) -> signal.Signals:
    return signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT


def _measure_with_bar(groups: list[Group], bench: Bench, results: Results, path: Path) -> None:
    console = Console(stderr=True)
    with closing(bench), progress_bar(console) as bar:
        bar.speed_estimate_period = 3600.0  # a case may take a minute: the time left is judged by all of them
        task = bar.add_task("", total=sum(len(group) for group in groups))
        for group in groups:
            bar.update(task, description=str(group[0]))
            rows = bench.measure(group)
            results.add(rows, overheads(rows), bench.rates)
            results.write(path)
            bar.advance(task, len(group))
            if not console.is_terminal:
                for row in rows:
                    console.print(_line(row), highlight=False, markup=False, soft_wrap=True)
    results.complete = True
    results.write(path)


def _line(row: Row) -> str:
    figure = f"failed: {row.failed}" if row.ms_per_step is None else f"{row.ms_per_step:.2f} ms a step"
    return f"{row.method} on {row.dataset}, {row.engine}, {row.precision}: {figure}"


def _title(results: Results) -> str:
    """What the plot says above its bars."""
    return f"{results.hardware['device']}, torch {results.hardware['torch']}, {results.provenance['date']}"
