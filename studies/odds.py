"""How likely chance alone explains what docs/cifar10.md and docs/cifar10-search.md say of full runs on CIFAR-10.

    python studies/odds.py

Prints the tables at the end of docs/cifar10-statistics.md, where `tables.py` puts them.
"""

from collections.abc import Sequence
from statistics import mean, stdev

import numpy as np
from scipy import stats
from seed_effect import METHODS, PI_SNTG, RESULTS, Figures, column_effect, of_labels_alone, read_run, runs_of

PROTOTYPE_K4 = [11.65, 11.74]  # Pi+SNTG with k = 0.4, two seeds
# Pi+SNTG, k = 0.1, with something changed: its run folders and the seeds that count. Seed 1 is left out where a variant
# was picked because of its run with that seed.
VARIANTS = {
    "ZCA fitted in float32": ("float32-zca-", (0, 1, 2, 3)),
    "labels in both branches": ("both-labels-", (0, 2, 3)),
}


def figures(errors: list[float]) -> Figures:
    return Figures(mean(errors), stdev(errors), len(errors))


def one_more(ours: Figures, other: float) -> float:
    """Of one more run like ours to lie as far from their mean as the other does, on either side."""
    t = abs(ours.mean - other) / (ours.deviation * (1 + 1 / ours.n) ** 0.5)
    return float(2 * stats.t.sf(t, ours.n - 1))


def one_more_seed(ours: list[list[float]], other: list[float]) -> float:
    """The same of a seed with which several methods were run, (seeds, methods): Hotelling's T^2."""
    seeds, methods = np.shape(ours)
    off = np.mean(ours, 0) - other
    t2 = off @ np.linalg.solve(np.cov(ours, rowvar=False).reshape(methods, methods), off) / (1 + 1 / seeds)
    return float(stats.f.sf(t2 * (seeds - methods) / (methods * (seeds - 1)), methods, seeds - methods))


def k4_cost() -> float:
    """What k = 0.4 costs Pi+SNTG over 0.1, in the mean of the seeds that were run with both."""
    with_k1 = runs_of(PI_SNTG)
    return mean(error - with_k1[seed].test for seed, error in k4_errors().items())


def k4_errors() -> dict[int, float]:
    """Pi+SNTG with k = 0.4, by seed."""
    folders = RESULTS.glob("pi-sntg-4000-seed-*")
    return {int(folder.name.rpartition("-")[2]): read_run(folder).test for folder in folders}


def variant_adds(name: str, seeds: Sequence[int], images: str) -> list[float]:
    """What a variant adds to Pi+SNTG's errors on test or training images, seed by seed."""
    with_it, as_ever = (
        [getattr(read_run(RESULTS / f"pi-sntg-{kind}k0.1-4000-seed-{seed}"), images) for seed in seeds]
        for kind in (name, "")
    )
    return [changed - error for changed, error in zip(with_it, as_ever, strict=True)]


def odds_table() -> str:
    """Everything that is quoted, a line each."""
    errors = {method: [run.test for run in runs_of(method).values()] for method in METHODS}
    rows = {}
    for method, found in errors.items():
        ours, paper = figures(found), method.paper
        rows[f"{method.title}: one more run as far off as the prototype's"] = one_more(ours, method.prototype)
        welch = stats.ttest_ind_from_stats(*ours, *paper, equal_var=False).pvalue
        rows[f"{method.title}: as far from the paper's mean (Welch)"] = float(welch)
        rows[f"{method.title}: a spread as far from the paper's (F)"] = other_spread(ours, paper)
    tempens = METHODS[-1]
    without = [run.test for seed, run in runs_of(tempens).items() if seed]
    rows[f"the same of {tempens.title}, without seed 0"] = other_spread(figures(without), tempens.paper)
    common = [list(seed) for seed in zip(*errors.values(), strict=False)]
    prototype = [method.prototype for method in METHODS]
    rows["all three: one more seed as far off as the prototype's three runs (Hotelling)"] = one_more_seed(
        common, prototype
    )
    missed = mean(errors[PI_SNTG]) - PI_SNTG.prototype
    for method in (METHODS[0], tempens):
        shifted = figures([error - missed for error in errors[method]])
        rows[f"{method.title}: one more run as far off, were ours {missed:.2f} better"] = one_more(
            shifted, method.prototype
        )
    pi, with_graph = errors[METHODS[0]], errors[PI_SNTG]
    gains = figures([before - after for before, after in zip(pi, with_graph, strict=False)])
    rows["one more gain of SNTG as far off as the prototype's"] = one_more(
        gains, METHODS[0].prototype - PI_SNTG.prototype
    )
    four = list(k4_errors().values())
    above = f"{mean(four):.2f} with k = 0.4, {mean(four) - mean(PROTOTYPE_K4):+.2f} above the prototype's two"
    rows[f"Pi+SNTG: {above} (t, equal variances)"] = float(stats.ttest_ind(four, PROTOTYPE_K4).pvalue)
    moved = [error + k4_cost() for error in with_graph]
    above = (
        f"{mean(moved):.2f} expected with k = 0.4, {mean(moved) - mean(PROTOTYPE_K4):+.2f} above the prototype's two"
    )
    rows[f"Pi+SNTG: {above} (t, equal variances)"] = float(stats.ttest_ind(moved, PROTOTYPE_K4).pvalue)
    for title, (name, seeds) in VARIANTS.items():
        for images in ("test", "training"):
            added = variant_adds(name, seeds, images)
            test = stats.ttest_1samp(added, 0)
            low, high = test.confidence_interval()
            figure = f"{mean(added):+.2f} ({low:+.2f} to {high:+.2f}, 95 %) on {images} images"
            tried = ", ".join(map(str, seeds))
            rows[f"Pi+SNTG with {title}: {figure}, seeds {tried} (t, paired)"] = float(test.pvalue)
    for images in ("test", "training"):
        cells = [[getattr(runs_of(method)[seed], images) for seed in range(1, 6)] for method in METHODS]
        effect = column_effect(cells)
        rows[f"seeds 1 to 5 differ as much on {images} images (F)"] = effect.f_test
        rows[f"the same by permutation, {images} images"] = effect.permutation
    return "\n".join(
        ["| if there is nothing but chance | p |", "|---|---|", *(f"| {k} | {p:.3f} |" for k, p in rows.items())]
    )


def other_spread(ours: Figures, paper: Figures) -> float:
    """Of deviations to differ as much, on either side."""
    above = stats.f.sf((ours.deviation / paper.deviation) ** 2, ours.n - 1, paper.n - 1)
    return float(2 * min(above, 1 - above))


def correlations_table() -> str:
    """How the correlation with the labels alone depends on the seeds: leaving one out, and as they came."""
    alone, with_graph = of_labels_alone()[0], [run.test for run in runs_of(PI_SNTG).values()]

    def row(name: str, seeds: list[int]) -> str:
        fit = stats.linregress(np.take(alone, seeds), np.take(with_graph, seeds))
        return f"| {name} | {fit.rvalue:.2f} | {fit.pvalue:.3f} |"

    every = list(range(len(with_graph)))
    left_out = [row(f"all but {seed}", [s for s in every if s != seed]) for seed in every]
    first = [row(f"0 to {last}", every[: last + 1]) for last in every[5:]]
    return "\n".join(["| seeds | correlation | p |", "|---|---|---|", *first, *left_out])


if __name__ == "__main__":
    print(odds_table(), correlations_table(), sep="\n\n")
