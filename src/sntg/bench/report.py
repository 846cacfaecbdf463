"""What the bench tells: a JSON file that is whole after every group of cases, and tables."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from sntg.bench.cases import METHODS
from sntg.bench.measure import Row
from sntg.bench.provenance import Hardware
from sntg.data import entry
from sntg.errors import UsageError
from sntg.files import write_text
from sntg.models import PRECISIONS
from sntg.terminal import print_table
from sntg.training.engines import ENGINES
from sntg.training.run_folder import hold

Cells = dict[str, str]
BEYOND = 1e18  # of whatever is measured, there is less
BUSY = 2.0  # a factor between the blocks of a case that no calm machine shows


@dataclass
class Results:
    """All that a bench found so far. complete: whether every case that was asked for is in it."""

    provenance: dict[str, str]
    hardware: Hardware
    matrix_product: dict[str, float] = field(default_factory=dict)  # TFLOP/s by precision
    rows: list[Row] = field(default_factory=list)
    overheads: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False

    @property
    def measured(self) -> list[Row]:
        """The rows that have figures, in the order of the tables."""
        return sorted((row for row in self.rows if not row.failed), key=order)

    def add(self, rows: list[Row], overheads: list[dict[str, Any]], rates: dict[str, float]) -> None:
        """Takes in what a group of cases came to: all of it, or nothing if Ctrl-C comes, for it is a single call."""
        together = {"rows": self.rows + rows, "overheads": self.overheads + overheads, "matrix_product": rates}
        vars(self).update(together)

    def write(self, path: Path) -> None:
        """Writes it all as JSON."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Results":
        """What `write` wrote; a KeyError, TypeError or the like if it was something else that wrote the file."""
        found = json.loads(path.read_text())
        if not all(isinstance(found[part], dict) for part in ("provenance", "hardware", "matrix_product")):
            raise TypeError
        if not (isinstance(found["complete"], bool) and isinstance(found["provenance"]["command"], str)):
            raise TypeError
        rows = [Row(**row) for row in found["rows"]]
        rates, ratios = found["matrix_product"].values(), (overhead["ratio"] for overhead in found["overheads"])
        if not all(0 < rate < BEYOND for rate in chain(rates, ratios)):  # nor is it NaN
            raise ValueError
        if not all(0 <= figure < BEYOND for figure in _figures(rows)):
            raise ValueError
        if len({(row.dataset, row.method, row.asked, row.precision) for row in rows}) < len(rows):
            raise ValueError
        return cls(**found | {"rows": rows})

    def go_on(self, provenance: dict[str, str], hardware: Hardware) -> None:
        """Refuses to go on by another source or on another machine: the figures would not be of one kind."""
        source = "commit", "sntg", "source"
        before = {key: self.provenance.get(key) for key in source} | self.hardware
        now = {key: provenance[key] for key in source} | hardware
        for key in before | now:
            then, here = before.get(key), now.get(key)
            if then != here:
                raise UsageError(f"the bench was of {key} = {then}, and here it is {here}: begin a new one")
        self.provenance["continued"] = provenance["date"]


def _figures(rows: Sequence[Row]) -> Iterator[float]:
    """All that was measured or counted."""
    for value in chain.from_iterable(vars(row).values() for row in rows):
        numbers = value if isinstance(value, list) else [value]
        yield from (number for number in numbers if isinstance(number, int | float))


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keeps other benches off a file of results, also before there is one; what marks it as taken goes in the end."""
    mark = path.with_name(f".{path.name}.lock")
    lock = hold(mark, str(path))
    try:
        yield
    finally:
        with suppress(OSError):  # some systems keep what is locked; an old mark is in nobody's way
            mark.unlink()
        lock.release()


@contextmanager
def new_file(folder: Path, results: Results) -> Iterator[Path]:
    """A JSON file of its own in the folder, named by the date and the device; nobody else's while it is used.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with new_file(Path(folder), Results({"date": "2026-11-16"}, {"device": "NVIDIA H200"})) as path:
    ...         path.name
    '2026-11-16-nvidia-h200.json'
    """
    device = re.sub(r"[^a-z0-9]+", "-", str(results.hardware["device"]).lower()).strip("-")
    stem = f"{results.provenance['date']}-{device}"
    for number in ("", *(f"-{n}" for n in range(2, 1000))):
        path = folder / f"{stem}{number}.json"
        if path.exists():
            continue
        with ExitStack() as held:
            try:
                held.enter_context(alone(path))
            except (UsageError, PermissionError):  # another bench, perhaps another user's, is about to write it
                continue
            if not path.exists():  # nor has it just been written
                yield path
                return
    raise UsageError(f"{str(folder)!r} has too many results named {stem}: choose another folder, --out")


def order(row: Row) -> tuple[int, int, int]:
    """Where a row stands among those of its dataset.

    >>> order(Row("cifar10", "supervised", "eager", "eager", "float32", auto=False))
    (0, 0, 0)
    """
    return METHODS.index(row.method), list(PRECISIONS).index(row.precision), list(ENGINES).index(row.asked)


def print_results(results: Results) -> None:
    """Prints the tables, and what there is to say of them."""
    for title, rows in tables(results).items():
        print_table(rows, title=title)
    for line in remarks(results):
        print(line)


def tables(results: Results) -> dict[str, list[Cells]]:
    """Two tables a dataset, by their titles."""
    found = {}
    for dataset in dict.fromkeys(row.dataset for row in results.measured):
        mine = [row for row in results.measured if row.dataset == dataset]
        what = f"{mine[0].model} on {dataset}{' (random inputs)' if mine[0].random else ''}"
        found[f"A step of {what}"] = aligned([speed(row) for row in mine])
        found[f"What is around it, {what}"] = aligned([around(row) for row in mine])
    return found


def remarks(results: Results) -> list[str]:
    """The matrix products, the graph term's overhead, what `auto` is worth, and what went wrong.

    >>> remarks(Results({}, {}, {"float32": 51.12}))
    ['* is what auto means on this device', 'a large matrix product in float32: 51.1 TFLOP/s']
    """
    lines = ["* is what auto means on this device"]
    lines += [f"a large matrix product in {name}: {rate:.3g} TFLOP/s" for name, rate in results.matrix_product.items()]
    for found in results.overheads:
        what = f"{found['method']} on {found['dataset']} with +sntg: {found['ratio']:.3f} times the step without"
        lines.append(f"{what} ({_engine(found['engine'], found['asked'])}, {found['precision']})")
    return [*lines, *verdicts(results.measured), *failures(results.rows), *disturbances(results.measured)]


def speed(row: Row) -> Cells:
    """A row of the first table: how long a step takes, and what that makes."""
    return {
        **_how(row),
        "ms": _number(row.ms_per_step, 2),
        "images/s" if entry(row.dataset).images else "points/s": _number(row.images_per_s, 0),
        "TFLOP/s": "-" if row.tflops is None else f"{row.tflops:.3g}",
        "share": "-" if row.share is None else f"{100 * row.share:.0f} %",
    }


def around(row: Row) -> Cells:
    """A row of the second table: what a run needs besides steps."""
    return {
        **_how(row),
        "GiB": _number(row.peak_gib, 2),
        "warm-up s": _number(row.warm_up_s, 1),
        "second s": _number(row.second_warm_up_s, 1),
        "epoch s": _number(row.epoch_s, 2),
        "test s": _number(row.evaluation_s, 3),
    }


def _how(row: Row) -> Cells:
    engine = _engine(row.engine, row.asked)
    return {"method": row.method, "how": f"{engine} {row.precision}{' *' if row.auto else ''}"}


def _engine(engine: str, asked: str) -> str:
    return engine if engine == asked else f"{engine} instead of {asked}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def aligned(rows: Sequence[Cells]) -> list[Cells]:
    """The rows with figures set to the right, under each other, and without columns that have none.

    >>> [row["ms"] for row in aligned([{"method": "pi", "ms": "9.5"}, {"method": "mt", "ms": "12.5"}])]
    [' 9.5', '12.5']
    """
    width = {key: max(len(row[key]) for row in rows) for key in rows[0] if any(row[key] != "-" for row in rows)}
    return [{k: row[k] if k in ("method", "how") else row[k].rjust(w) for k, w in width.items()} for row in rows]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """For every step that ran with several engines in the precision of `auto`: what that is, and which is the fastest.

    A start and the steps of a whole run count: compiling may take longer than it gains.

    >>> way = {"dataset": "digits", "method": "pi", "precision": "float32", "run_steps": 5000}
    >>> eager = Row(**way, asked="eager", engine="eager", auto=True, ms_per_step=2.0)
    >>> verdicts([eager, Row(**way, asked="compiled", engine="compiled", auto=False, ms_per_step=1.0, warm_up_s=3)])
    ['pi on digits: auto is eager, but compiled is faster (a run with its start: eager 10 s, compiled 8 s)']
    """
    lines = []
    for auto in (row for row in rows if row.auto):
        step = auto.dataset, auto.method, auto.precision
        same = [row for row in rows if (row.dataset, row.method, row.precision) == step]
        times = {row.engine: run_seconds(row, row.ms_per_step) for row in same if row.ms_per_step is not None}
        if len(times) > 1:
            fastest = min(times, key=lambda engine: times[engine])
            listed = ", ".join(f"{engine} {seconds:.0f} s" for engine, seconds in times.items())
            verdict = "the fastest" if fastest == auto.engine else f"but {fastest} is faster"
            what = f"{auto.method} on {auto.dataset}: auto is {auto.engine}, {verdict}"
            lines.append(f"{what} (a run with its start: {listed})")
    return lines


def run_seconds(row: Row, ms_per_step: float) -> float:
    """How long a whole run would take; a start that was not timed is one that shares what another has compiled."""
    return (row.warm_up_s or 0.0) + row.run_steps * ms_per_step / 1e3


def disturbances(rows: Sequence[Row]) -> list[str]:
    """A warning where the blocks of one case differ so much that its figure says little.

    >>> row = Row("digits", "pi", "eager", "eager", "float32", auto=True, rounds_ms=[2.0, 2.1, 9.0, 2.2, 8.4])
    >>> disturbances([row])
    ['blocks of one case differ by a factor of up to 4.5: something else keeps this machine busy, so measure again']
    """
    factor = max((max(row.rounds_ms) / min(row.rounds_ms) for row in rows if row.rounds_ms), default=1.0)
    if factor < BUSY:
        return []
    differ = f"blocks of one case differ by a factor of up to {factor:.1f}"
    return [f"{differ}: something else keeps this machine busy, so measure again"]


def failures(rows: Sequence[Row]) -> list[str]:
    """What has no figures, and why."""
    return [f"no figures for {r.method}, {r.asked}, {r.precision}: {r.failed}" for r in rows if r.failed]
