"""Which part of a seed moves the error of a full run on CIFAR-10: its labels, or all else it draws.

    python studies/crossed_runs.py

TempEns+SNTG with the labels of one seed and the first weights, order and noise of another, in every combination
(`sntg train ... --split FILE --seed N`). Writes docs/results/cifar10/crossed-runs.png; the tables in
docs/cifar10-statistics.md come from here through studies/tables.py.
"""

from pathlib import Path
from statistics import mean

from scipy import stats
from seed_effect import METHODS, RESULTS, Effect, column_effect, read_run

from sntg.figures.style import COLOURS, new_figure, save

(METHOD,) = (method for method in METHODS if method.folder.startswith("tempens"))
SEEDS = range(3)
DEFECT = 0.4  # points above the prototype that count as one


def folder_of(labels: int, seed: int) -> Path:
    """The folder of the run with the labels of one seed and all else of another. Seed 0's own was made twice: this is
    the later one, of code that trains as the others' does."""
    crossed = RESULTS / f"{METHOD.folder}-labels-{labels}-seed-{seed}"
    return crossed if crossed.exists() or labels != seed else RESULTS / f"{METHOD.folder}-seed-{seed}"


def errors(images: str) -> list[list[float]]:
    """The runs' errors (%) on test or training images, a row for each set of labels."""
    return [[getattr(read_run(folder_of(labels, seed)), images) for seed in SEEDS] for labels in SEEDS]


def first_against_others(effect: Effect) -> tuple[float, float, float]:
    """How far the first column is above the mean of the others, with the ends of the 95 % confidence interval."""
    columns = len(effect.added)
    rows = 1 + effect.freedom // (columns - 1)
    above = effect.added[0] - mean(effect.added[1:])
    half = float(stats.t.ppf(0.975, effect.freedom)) * effect.rest * (1 / rows + 1 / (rows * (columns - 1))) ** 0.5
    return above, above - half, above + half


def crossed_table(images: str) -> str:
    """Errors by labels and all else, with what a row and a column adds."""
    table = errors(images)
    labels, others = column_effect([list(column) for column in zip(*table, strict=True)]), column_effect(table)
    head = [f"{images} images", *(f"all else of seed {seed}" for seed in SEEDS), "these labels add"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for seed, row, added in zip(SEEDS, table, labels.added, strict=True):
        links = (
            f"[{e:.2f}](results/cifar10/{folder_of(seed, other).name})" for other, e in zip(SEEDS, row, strict=True)
        )
        rows.append(f"| labels of seed {seed} | " + " | ".join(links) + f" | **{added:+z.2f}** |")
    average = mean(map(mean, table))
    rows.append("| all else adds | " + " | ".join(f"**{a:+z.2f}**" for a in others.added) + f" | mean {average:.2f} |")
    notes = []
    for part, effect in (("the labels", labels), ("all else", others)):
        above, low, high = first_against_others(effect)
        notes.append(f"With {part} of seed 0 instead of another's: {above:+.2f} ({low:+.2f} to {high:+.2f}, 95 %).")
    return "\n".join([*rows, "", *notes, f"What neither explains has a deviation of {others.rest:.2f}."])


def draw(path: Path) -> None:
    """A line for each set of labels, over whose weights, order and noise the run had."""
    figure = new_figure(8.5, 3.6)
    for axes, images in zip(figure.subplots(1, 2), ("test", "training"), strict=True):
        for seed, row in zip(SEEDS, errors(images), strict=True):
            axes.plot(SEEDS, row, "o-", color=COLOURS[seed], label=f"labels of seed {seed}")
        axes.set_xticks(list(SEEDS), [f"seed {seed}" for seed in SEEDS])
        axes.set_xlabel("whose weights, order and noise")
        axes.set_ylabel(f"error on {images} images (%)")
    test, training = figure.axes
    bound = test.axhline(METHOD.prototype + DEFECT, color="#999999", linestyle=":")
    paper = test.axhline(METHOD.paper.mean, color="#999999", linestyle="--")
    test.legend([bound, paper], [f"{DEFECT} above the prototype", "the paper's mean"])
    training.legend()  # the colours, for both
    save(figure, path)


if __name__ == "__main__":
    draw(RESULTS / "crossed-runs.png")
