"""What a seed adds to the error of a full run on CIFAR-10, whatever the method.

    python studies/seed_effect.py

A seed draws the labels, the first weights and the order of the images, the same for every method. If it moves all
methods alike, then that part of what a run misses the paper by is its seed's. How much of it the seed's labels tell is
held against a plain classifier that sees only those (studies/label_sets.py). Writes
docs/results/cifar10/seed-effect.png; tables in docs/cifar10.md and docs/cifar10-statistics.md come from here through
studies/tables.py.
"""

import gzip
import json
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sntg.figures.style import COLOURS, new_figure, save

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "cifar10"
LAST = 10  # epochs whose errors on the training images are averaged


class Figures(NamedTuple):
    """Mean and deviation of n runs."""

    mean: float
    deviation: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f} (n = {self.n})"


class Method(NamedTuple):
    """A row of the tables: its run folders are FOLDER-seed-0 and so on."""

    title: str
    folder: str
    prototype: float
    paper: Figures


PI_SNTG = Method("Pi+SNTG, k = 0.1", "pi-sntg-k0.1-4000", 10.71, Figures(11.00, 0.13, 10))
METHODS = [
    Method("Pi", "pi-4000", 12.66, Figures(12.36, 0.31, 10)),
    PI_SNTG,
    Method("TempEns+SNTG, k = 0.4", "tempens-sntg-4000", 11.05, Figures(10.93, 0.14, 10)),
]


class Effect(NamedTuple):
    """Two-way analysis of variance of a table with a run in each cell: what its columns, say seeds, add."""

    added: list[float]  # by each column, to the mean of all
    rest: float  # deviation of what neither row nor column explains
    freedom: int  # what `rest` is known by
    f_test: float  # how likely columns differ at least as much if they add nothing
    permutation: float  # the same, by exchanging cells within each row


class Run(NamedTuple):
    """A full run's errors (%): on the test images, and the teacher's on the training images in the last epochs."""

    test: float
    training: float


def read_run(folder: Path) -> Run:
    """The errors of the run in a folder of the results."""
    lines = gzip.decompress((folder / "metrics.jsonl.gz").read_bytes()).splitlines()
    history = [json.loads(line) for line in lines]
    return Run(history[-1]["error"], mean(epoch["teacher_error"] for epoch in history[-LAST:]))


def runs_of(method: Method) -> dict[int, Run]:
    """The method's runs by seed."""
    folders = sorted(RESULTS.glob(f"{method.folder}-seed-*"))
    return {int(folder.name.rpartition("-")[2]): read_run(folder) for folder in folders}


def of_labels_alone() -> tuple[list[float], Figures]:
    """Test errors (%) of a plain classifier that sees only a seed's labels, by seed and as a whole."""
    errors = json.loads((RESULTS / "label-sets.json").read_text())["errors"]
    return errors, Figures(mean(errors), stdev(errors), len(errors))


def interval(ours: Figures, paper: Figures) -> tuple[float, float]:
    """Welch's 95 % confidence interval of the difference of two means."""
    a, b = (f.deviation**2 / f.n for f in (ours, paper))
    freedom = (a + b) ** 2 / (a**2 / (ours.n - 1) + b**2 / (paper.n - 1))
    half = float(stats.t.ppf(0.975, freedom)) * (a + b) ** 0.5
    return ours.mean - paper.mean - half, ours.mean - paper.mean + half


def next_run(ours: Figures) -> tuple[float, float]:
    """The 95 % prediction interval of one more run like these."""
    half = float(stats.t.ppf(0.975, ours.n - 1)) * ours.deviation * (1 + 1 / ours.n) ** 0.5
    return ours.mean - half, ours.mean + half


def column_effect(cells: list[list[float]]) -> Effect:
    """Takes what the columns of a table add apart from what its rows do."""
    table = np.array(cells)
    rows, columns = table.shape
    added = table.mean(0) - table.mean()
    rest = table - table.mean(1, keepdims=True) - added
    freedom = columns - 1, (rows - 1) * (columns - 1)
    variance = (rest**2).sum() / freedom[1]
    ratio = rows * (added**2).sum() / freedom[0] / variance
    f_test = float(stats.f.sf(ratio, *freedom))
    return Effect(added.tolist(), float(variance**0.5), freedom[1], f_test, _permutation_test(table))


def _permutation_test(table: NDArray[np.float64]) -> float:
    """The share of orders of the cells within rows that let columns differ at least as much.

    Of all orders where there are few, of a hundred thousand drawn ones where there are more.
    """

    def spread(*rows: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        of_means: NDArray[np.float64] = np.mean(rows, axis=0).var(axis=axis)
        return of_means

    test = stats.permutation_test(
        tuple(table), spread, permutation_type="pairings", alternative="greater", n_resamples=99_999, rng=0
    )
    return float(test.pvalue)


def runs_table() -> str:
    """Every method's error by seed, beside the paper's and the prototype's."""
    found = {method: runs_of(method) for method in METHODS}
    seeds = sorted(set().union(*found.values()))
    head = [*(f"seed {s}" for s in seeds), "mean", "one more (95 %)", "prototype", "paper", "above the paper (95 %)"]
    rows = ["| | " + " | ".join(head) + " |", "|---" * (1 + len(head)) + "|"]
    for method, runs in found.items():
        cells = [f"[{runs[s].test:.2f}](results/cifar10/{method.folder}-seed-{s})" if s in runs else "" for s in seeds]
        errors = [run.test for run in runs.values()]
        ours = Figures(mean(errors), stdev(errors), len(errors))
        low, high = interval(ours, method.paper)
        above = f"{ours.mean - method.paper.mean:+.2f} ({low:+.2f} to {high:+.2f})"
        more = "{:.2f} to {:.2f}".format(*next_run(ours))
        cells += [str(ours), more, f"{method.prototype:.2f}", str(method.paper), above]
        rows.append(f"| {method.title} | " + " | ".join(cells) + " |")
    labels = " | ".join(f"{of_labels_alone()[0][s]:.1f}" for s in seeds)
    return "\n".join([*rows, f"| a plain classifier on the labels alone | {labels} | | | | | |"])


def effect_table(images: str) -> str:
    """What each seed adds to the error on test or training images, of those that every method was run with."""
    found = [runs_of(method) for method in METHODS]
    seeds = sorted(set.intersection(*map(set, found)))
    errors = [[getattr(runs[seed], images) for seed in seeds] for runs in found]
    rows = [f"| {images} images | " + " | ".join(f"seed {s}" for s in seeds) + " |", "|---" * (1 + len(seeds)) + "|"]
    for method, row in zip(METHODS, errors, strict=True):
        rows.append(f"| {method.title} | " + " | ".join(f"{error - mean(row):+.2f}" for error in row) + " |")
    effect = column_effect(errors)
    rows.append("| **mean** | " + " | ".join(f"**{e:+.2f}**" for e in effect.added) + " |")
    odds = f"p = {effect.f_test:.3f} by an F test, {effect.permutation:.3f} by permutation"
    return "\n".join([*rows, "", f"The rest has a deviation of {effect.rest:.2f}; if seeds added nothing, {odds}."])


class Line(NamedTuple):
    """A straight line through points, and what it says at one place."""

    correlation: float
    p: float
    slope: float
    there: float
    error: float  # standard error of `there`
    freedom: int


def line_at(x: list[float], y: list[float], place: Figures) -> Line:
    """The line through points (x, y), where x is at a mean that is itself known by n values only."""
    fit = stats.linregress(x, y)
    there, freedom = fit.intercept + fit.slope * place.mean, len(x) - 2
    rest = np.array(y) - fit.intercept - fit.slope * np.array(x)
    spread = 1 / len(x) + (place.mean - mean(x)) ** 2 / (np.var(x) * len(x))
    variance = (rest**2).sum() / freedom * spread + (fit.slope * place.deviation) ** 2 / place.n
    return Line(fit.rvalue, fit.pvalue, fit.slope, there, float(variance**0.5), freedom)


def labels_table() -> str:
    """How the errors of the method with the most seeds follow those of a plain classifier on the seed's labels."""
    method = max(METHODS, key=lambda m: len(runs_of(m)))
    runs, (alone, usual) = runs_of(method), of_labels_alone()
    head = [f"{method.title}, {len(runs)} seeds", "correlation", "p", "slope", f"with labels as usual (n = {usual.n})"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines = {}
    for images in ("test", "training"):
        line = line_at([alone[s] for s in runs], [getattr(run, images) for run in runs.values()], usual)
        figures = f"{line.correlation:.2f} | {line.p:.3f} | {line.slope:.2f} | {line.there:.2f}"
        rows.append(f"| {images} images | {figures} |")
        lines[images] = line
    test, paper = lines["test"], method.paper
    error = (test.error**2 + paper.deviation**2 / paper.n) ** 0.5
    half = float(stats.t.ppf(0.975, test.freedom)) * error
    above = test.there - paper.mean
    interval = f"{above - half:+.2f} to {above + half:+.2f}, 95 %"
    note = f"With labels as usual: {above:+.2f} above the paper ({interval}), and "
    return "\n".join([*rows, "", note + f"{test.there - method.prototype:+.2f} above the prototype."])


def gain_table() -> str:
    """What the graph term takes off Pi's error seed by seed, beside the paper's and the prototype's difference."""
    pi, with_graph = METHODS[:2]
    before, after = runs_of(pi), runs_of(with_graph)
    seeds = sorted(set(before) & set(after))
    head = ["SNTG takes off Pi's error", *(f"seed {s}" for s in seeds), "mean (95 %)", "prototype", "paper"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    others = {"test": [pi.prototype - with_graph.prototype, pi.paper.mean - with_graph.paper.mean]}
    for images in ("test", "training"):
        gains = [getattr(before[s], images) - getattr(after[s], images) for s in seeds]
        low, high = stats.ttest_1samp(gains, 0).confidence_interval()
        cells = [*(f"{gain:.2f}" for gain in gains), f"{mean(gains):.2f} ({low:.2f} to {high:.2f})"]
        cells += [f"{gain:.2f}" for gain in others.get(images, [])]
        cells += [""] * (len(head) - 1 - len(cells))
        rows.append(f"| {images} images | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def draw(path: Path) -> None:
    """Errors of the runs over those of the labels alone, with the paper's means as lines."""
    figure = new_figure(7.5, 4.4)
    axes = figure.subplots()
    alone, usual = of_labels_alone()
    seeds = set()
    for colour, method in zip(COLOURS, METHODS, strict=False):
        runs = runs_of(method)
        seeds |= set(runs)
        axes.plot([alone[s] for s in runs], [run.test for run in runs.values()], "o", color=colour, label=method.title)
        axes.axhline(method.paper.mean, color=colour, linestyle="--", linewidth=1)
    axes.axvline(usual.mean, color="#999999", linestyle=":", label=f"mean of {usual.n} sets of labels")
    above = axes.secondary_xaxis("top")
    above.set_xticks([alone[s] for s in sorted(seeds)], map(str, sorted(seeds)))
    above.set_xlabel("seed")
    axes.set_xlabel("error of a plain classifier on the seed's labels alone (%)")
    axes.set_ylabel("test error of the full run (%); dashed: the paper")
    figure.legend(loc="outside lower center", ncols=4)  # no place inside that runs to come may not need
    save(figure, path)


if __name__ == "__main__":
    draw(RESULTS / "seed-effect.png")
