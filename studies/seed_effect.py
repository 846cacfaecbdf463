"""What a seed adds to the error of a full run on CIFAR-10, whatever the method.

    python studies/seed_effect.py

A seed draws the 4000 labels and the first weights, whatever the method. If it moves all methods alike, then a run that
misses the paper by as much as its seed adds had an unlucky draw; a defect would not depend on the seed. Writes
docs/results/cifar10/seed-effect.png; the tables in docs/cifar10.md come from here through studies/tables.py.
"""

import json
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
from scipy import stats

from sntg.figures.style import COLOURS, new_figure, save

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "cifar10"
SEEDS, PAPER_RUNS = range(4), 10


class Method(NamedTuple):
    """A row of the table: its run folders are FOLDER-seed-0 and so on."""

    title: str
    folder: str
    prototype: float
    paper: tuple[float, float]  # mean and deviation over PAPER_RUNS


METHODS = [
    Method("Pi", "pi-4000", 12.66, (12.36, 0.31)),
    Method("Pi+SNTG, k = 0.1", "pi-sntg-k0.1-4000", 10.71, (11.00, 0.13)),
    Method("TempEns+SNTG, k = 0.4", "tempens-sntg-4000", 11.05, (10.93, 0.14)),
]


class SeedEffect(NamedTuple):
    """Two-way analysis of variance, methods by seeds, a run each."""

    added: list[float]  # by each seed, to the mean of its methods
    rest: float  # deviation of what neither method nor seed explains
    p: float  # that seeds add nothing


def errors(folder: str) -> dict[int, float]:
    """Test error (%) of the last epoch by seed, of the runs there are."""
    files = {seed: RESULTS / f"{folder}-seed-{seed}" / "result.json" for seed in SEEDS}
    return {seed: json.loads(file.read_text())["error"] for seed, file in files.items() if file.exists()}


def of_labels_alone() -> tuple[list[float], float]:
    """Test errors (%) of a plain classifier that sees only a seed's labels, and their mean over twenty seeds."""
    found = json.loads((RESULTS / "label-sets.json").read_text())
    return [found["errors"][seed] for seed in SEEDS], found["mean"]


def seed_effect(runs: list[list[float]]) -> SeedEffect:
    """Takes the errors of each method (rows) with each seed (columns) apart."""
    table = np.array(runs)
    rows, columns = table.shape
    added = table.mean(0) - table.mean()
    rest = table - table.mean(1, keepdims=True) - added
    freedom = columns - 1, (rows - 1) * (columns - 1)
    variance = (rest**2).sum() / freedom[1]
    ratio = rows * (added**2).sum() / freedom[0] / variance
    return SeedEffect(added.tolist(), float(variance**0.5), float(stats.f.sf(ratio, *freedom)))


def runs_table() -> str:
    """Every method's error by seed, beside the paper's and the prototype's; p is Welch's."""
    head = [*(f"seed {s}" for s in SEEDS), "mean", "prototype", "paper", "p"]
    rows = ["| | " + " | ".join(head) + " |", "|---" * (1 + len(head)) + "|"]
    for title, folder, prototype, paper in METHODS:
        found = errors(folder)
        cells = [f"[{found[s]:.2f}](results/cifar10/{folder}-seed-{s})" if s in found else "" for s in SEEDS]
        ours = mean(found.values()), stdev(found.values())
        p = stats.ttest_ind_from_stats(*ours, len(found), *paper, PAPER_RUNS, equal_var=False).pvalue
        cells += [f"{ours[0]:.2f} ± {ours[1]:.2f} (n = {len(found)})", f"{prototype:.2f}"]
        cells += [f"{paper[0]:.2f} ± {paper[1]:.2f}", f"{p:.2f}"]
        rows.append(f"| {title} | " + " | ".join(cells) + " |")
    labels = " | ".join(f"{e:.1f}" for e in of_labels_alone()[0])
    return "\n".join([*rows, f"| a plain classifier on the labels alone | {labels} | | | | |"])


def effect_table() -> str:
    """What each seed adds, of those that every method was run with."""
    found = [errors(method.folder) for method in METHODS]
    seeds = sorted(set.intersection(*map(set, found)))
    effect = seed_effect([[runs[seed] for seed in seeds] for runs in found])
    rows = ["| | " + " | ".join(f"seed {s}" for s in seeds) + " |", "|---" * (1 + len(seeds)) + "|"]
    for method, runs in zip(METHODS, found, strict=True):
        centre = mean(runs[s] for s in seeds)
        rows.append(f"| {method.title} | " + " | ".join(f"{runs[s] - centre:+.2f}" for s in seeds) + " |")
    rows.append("| **mean** | " + " | ".join(f"**{e:+.2f}**" for e in effect.added) + " |")
    unexplained = f"Explained by neither method nor seed: a deviation of {effect.rest:.2f}."
    return "\n".join([*rows, "", f"{unexplained} That seeds add nothing: p = {effect.p:.3f}."])


def draw(path: Path) -> None:
    """Errors of the runs over those of the labels alone, with the paper's means as lines."""
    figure = new_figure(6.5, 4.2)
    axes = figure.subplots()
    alone, usual = of_labels_alone()
    for colour, method in zip(COLOURS, METHODS, strict=False):
        points = sorted((alone[seed], error) for seed, error in errors(method.folder).items())
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=method.title)
        axes.axhline(method.paper[0], color=colour, linestyle="--", linewidth=1)
    axes.axvline(usual, color="#999999", linestyle=":", label="mean of twenty sets of labels")
    above = axes.secondary_xaxis("top")
    above.set_xticks(alone, [f"seed {seed}" for seed in SEEDS], rotation=45, ha="left")
    axes.set_xlabel("error of a plain classifier on the seed's labels alone (%)")
    axes.set_ylabel("test error of the full run (%); dashed: the paper")
    axes.legend(frameon=False)
    save(figure, path)


if __name__ == "__main__":
    draw(RESULTS / "seed-effect.png")
