"""The values each dataset and method is trained with, and where each value comes from.

A recipe is data: rows of values for the datasets and methods whose names fit a pattern (`*` stands for anything),
later rows overriding earlier ones. A row may hold only for some numbers of labels, for noisy labels, or without
augmentation. How the values of the small sets were chosen is in docs/synthetic.md and docs/digits.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sntg.data import count_rows, data_folder, entry
from sntg.errors import UsageError
from sntg.methods import parse
from sntg.training.config import ARGUMENTS, LARGEST, Config, check_types, config_from

RAMPS = ("ramp_up", "ramp_down", "graph_start", "graph_ramp", "early_epochs")
PAPER, LAINE, TARVAINEN, MIYATO, OURS = "paper", "Pi/TempEns code", "Mean Teacher code", "VAT code", "ours"
SNTG_CODE = "SNTG code"


@dataclass(frozen=True)
class Case:
    """What a recipe may depend on besides the dataset and the method."""

    labels: int
    all_labels: bool
    label_noise: float
    augment: bool


@dataclass(frozen=True)
class Row:
    """Values for the datasets and methods that fit, in the cases that fit; `source` says who has them from where.

    datasets, methods: patterns, separated by blanks.
    labels: a number of labels, "all" or "some"; noise: the least percentage of noisy labels; augment: with or without.
    """

    datasets: str
    methods: str
    source: str
    values: dict[str, Any]
    labels: int | str | None = None
    noise: float | None = None
    augment: bool | None = None

    def fits(self, dataset: str, method: str, case: Case) -> bool:
        """Whether the row holds for a run."""
        return (
            any(fnmatchcase(dataset, pattern) for pattern in self.datasets.split())
            and any(fnmatchcase(method, pattern) for pattern in self.methods.split())
            and self.labels in (None, case.labels, "all" if case.all_labels else "some")
            and (self.noise is None or case.label_noise >= self.noise)
            and self.augment in (None, case.augment)
        )


IMAGES = "mnist fashion-mnist svhn cifar10 cifar100"

# Laine & Aila's settings, which the paper keeps for the Pi model and temporal ensembling, and SNTG's on top of them.
PI = {"model": "conv13", "normalisation": "mean-only", "epochs": 300, "batch": 100, "lr": 3e-3, "beta2": 0.999}
PI |= {"ramp_up": 80, "ramp_down": 50, "w_max": 100.0, "consistency": "mse", "noise": 0.15, "dropout": 0.5}
PI |= {"bn_momentum": 0.999}
GRAPH = {"k": 0.4, "margin": 1.0, "graph": "hard"}
IN_THE_CODE = {
    "pairs": "half",
    "label_factor": True,
    "skip_first": True,
    "graph_labels": "merge",
    "ema": 0.999,
    "report": "ema",
}
IN_THE_CODE |= {"split": "balanced", "decay": "gauss", "stepwise": False, "padding": "reflect"}

# Steps of Mean Teacher's and VAT's code, in epochs of 500 and 400 steps.
MEAN_TEACHER = {"stepwise": True, "skip_first": False}
SVHN_500 = {"epoch_steps": 500, "early_momentum": 0.99, "early_epochs": 80, "label_factor": False, "stepwise": True}
ONE_LABELLED = {"batch": 99, "labelled_batch": 1, "w_max": 1.0}
ALL_LABELLED = {"batch": 100, "labelled_batch": 0, "w_max": 100.0}
VAT = {"batch": 128, "labelled_batch": 32, "w_max": 1.0, "label_factor": False, "ramp_up": 0, "consistency": "kl"}
VAT_IMAGES = {"epoch_steps": 400, "lr": 1e-3, "ramp_down": 40, "decay": "linear", "stepwise": True, "padding": "zero"}
VAT_IMAGES |= {"normalisation": "batch", "bn_momentum": 0.99, "bn_batches": 100, "noise": 0.0, "report": "raw"}

# The synthetic sets: 500 epochs with the down-ramp over the last sixth; what differs by method was tuned for it.
PLANE = {"ramp_down": 83, "noise": 0.05, "report": "raw"}
LATE_GRAPH = {"graph_start": 200, "graph_ramp": 80}  # the first predictions would only freeze their own mistakes

# The digits: 11 steps an epoch, so the running means must move faster than in a run of 150,000 steps.
DIGITS = {"model": "small", "translate": 2, "epochs": 60, "ramp_up": 24, "ramp_down": 12, "bn_momentum": 0.98}
DIGITS |= {"lr": 3e-3, "dropout": 0.2, "w_max": 30.0, "report": "raw"}

RECIPES: list[Row] = [
    Row("two-moons four-spins", "*", PAPER, {"epochs": 500, "lr": 1e-3}),
    Row("two-moons four-spins", "*", OURS, {**PLANE, **LATE_GRAPH}),
    Row("two-moons", "*", OURS, {"noise": 0.08, "w_max": 100.0, "k": 0.03}),
    Row("two-moons", "pi", OURS, {"noise": 0.05, "lr": 3e-3}),
    Row("two-moons", "vat*", OURS, {"epsilon": 0.3}),
    Row("four-spins", "*", OURS, {"w_max": 1000.0, "k": 0.01}),
    Row("four-spins", "pi", OURS, {"ramp_up": 200}),
    Row("four-spins", "vat*", OURS, {"epsilon": 0.1}),
    Row("digits", "*", OURS, {**DIGITS, "k": 0.4, "graph_start": 18, "graph_ramp": 12}),
    Row("digits", "mt*", OURS, {"ema": 0.98}),  # as for the running means
    Row("two-moons four-spins digits", "mt*", TARVAINEN, {"report": "ema"}),
    Row("two-moons four-spins digits", "vat*", MIYATO, VAT),
    # The entropy term has VAT's clean pass differentiated; without it, the clean pass's features would cost a backward
    # pass more, so there the graph term takes those of the paper's student, the pass of x + r.
    Row("*", "vat*", OURS, {"graph_features": "clean"}),
    Row("*", "vat+sntg", PAPER, {"graph_features": "perturbed"}),
    # The paper's image sets: what they share,
    Row(IMAGES, "*", PAPER, PI | GRAPH),
    Row(IMAGES, "*", SNTG_CODE, IN_THE_CODE),
    Row("mnist fashion-mnist svhn", "*", SNTG_CODE, {"whitening": "norm"}),
    Row("mnist fashion-mnist", "*", PAPER, {"lr": 1e-4, "flip": False, "translate": 0}),
    Row("svhn", "*", PAPER, {"flip": False, "translate": 2}),
    Row("cifar10 cifar100", "*", PAPER, {"whitening": "zca", "flip": True}),
    Row("cifar10 cifar100", "*", LAINE, {"translate": 2}),
    # then method by method.
    Row("svhn", "supervised", TARVAINEN, SVHN_500 | {"epochs": 80, "ramp_down": 20}, labels="some"),
    Row("svhn", "supervised", TARVAINEN, {"batch": 0, "labelled_batch": 100}, labels="some"),
    Row("svhn", "supervised", TARVAINEN, SVHN_500 | {"epochs": 360, "ramp_down": 50}, labels="all"),
    Row(IMAGES, "tempens*", LAINE, {"alpha": 0.6}),
    Row("svhn cifar10", "tempens*", PAPER, {"w_max": 30.0}),
    Row("svhn", "tempens*", PAPER, {"lr": 1e-3}),
    Row("svhn", "tempens*", PAPER, {"w_max": 50.0}, labels=250),
    Row("svhn", "tempens*", SNTG_CODE, {"epochs": 150}, labels="all"),
    Row("svhn", "tempens*", SNTG_CODE, {"w_max": 300.0}, labels="all", noise=1e-9),
    Row("svhn", "tempens*", SNTG_CODE, {"w_max": 3000.0}, labels="all", noise=50.0),
    Row(IMAGES, "mt*", TARVAINEN, MEAN_TEACHER),
    Row("mnist fashion-mnist", "mt*", OURS, {"lr": 1e-3}),  # its code has no MNIST
    Row("cifar10 cifar100", "mt*", TARVAINEN, {"whitening": "gcn-zca", "epoch_steps": 500}),
    Row("svhn", "mt*", TARVAINEN, SVHN_500 | ONE_LABELLED | {"epochs": 360}, labels="some"),
    Row("svhn", "mt*", TARVAINEN, SVHN_500 | ALL_LABELLED | {"epochs": 360}, labels="all"),
    Row(IMAGES, "vat*", MIYATO, VAT | VAT_IMAGES),
    Row("cifar10 cifar100", "vat*", MIYATO, {"epochs": 500, "whitening": "scale-zca", "epsilon": 8.0}),
    Row("cifar10 cifar100", "vat*", MIYATO, {"epsilon": 10.0}, augment=False),
    Row("svhn", "vat*", MIYATO, {"epochs": 120, "whitening": "scale", "epsilon": 3.5, "split": "unbalanced"}),
    Row("svhn", "vat*", MIYATO, {"normalisation": "batch-logits"}),
    Row("svhn", "vat*", MIYATO, {"epsilon": 2.5}, augment=False),
    Row("mnist fashion-mnist", "vat*", OURS, {"epochs": 120, "whitening": "scale", "epsilon": 2.0}),
    Row(IMAGES + " digits", "*", PAPER, {"flip": False, "translate": 0}, augment=False),
]


@dataclass(frozen=True)
class Recipe:
    """A recipe's values, and the source of each."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def recipe(
    dataset: str, method: str, labels: int | str = "some", label_noise: float = 0.0, augment: bool = True
) -> Recipe:
    """The recipe for a dataset, a method and a number of labels ("some" = not all, no number with a row of its own).

    >>> recipe("cifar10", "tempens+sntg", 4000).values["w_max"]
    30.0
    >>> recipe("cifar10", "tempens+sntg", 4000).sources["w_max"]
    'paper'
    """
    count = labels if isinstance(labels, int) else -1
    case = Case(count, labels == "all" or count == entry(dataset).points, label_noise, augment)
    found = Recipe()
    for row in _rows(dataset, str(parse(method)), case):
        found.values.update(row.values)
        found.sources.update(dict.fromkeys(row.values, row.source))
    return found


def _rows(dataset: str, method: str, case: Case) -> Iterator[Row]:
    return (row for row in RECIPES if row.fits(dataset, method, case))


def resolve(dataset: str, labels: int | str, method: str, seed: int = 0, **settings: Any) -> Config:
    """A full config: the defaults, then the recipe, then what the caller sets.

    `labels` is a number or "all"; an index file (`split_file`) says itself how many there are. A caller who sets
    another number of epochs gets ramps of the same share of them, unless they are set too.

    >>> resolve("two-moons", 12, "pi", epochs=3).epochs
    3
    """
    check_types(settings)
    method = str(parse(method))
    labels = _label_count(dataset, labels, settings)
    training = entry(dataset).points - settings.get("validation", 0)
    values = recipe(
        dataset,
        method,
        "all" if labels == training else labels,
        settings.get("label_noise", 0.0),
        settings.get("augment", True),
    ).values
    if 1 <= settings.get("epochs", 0) <= LARGEST:  # any other number of them is refused by Config
        settings = _scaled_ramps(values, settings["epochs"]) | settings
    # The run may be resumed from another folder than it was started in.
    if settings.get("fixed_from"):
        settings["fixed_from"] = str(Path(settings["fixed_from"]).absolute())
    if settings.get("data"):
        settings["data"] = str(data_folder(settings["data"]).absolute())
    values |= settings | {"overridden": tuple(sorted(set(settings) - ARGUMENTS))}
    return config_from({"dataset": dataset, "labels": labels, "method": method, "seed": seed} | values)


def _label_count(dataset: str, labels: int | str, settings: dict[str, Any]) -> int | str:
    points, held_out = entry(dataset).points, settings.get("validation", 0)
    if settings.get("split_file"):
        named = count_rows(settings["split_file"])
        if labels not in ("all", named):
            raise UsageError(f"labels = {labels}, and the split file {settings['split_file']!r} names {named} points")
        return points - held_out if named == points else named
    return int(points - held_out) if labels == "all" else labels


def _scaled_ramps(values: dict[str, Any], epochs: int) -> dict[str, int]:
    """The recipe's ramps for another number of epochs, those that change."""
    defaults = {f.name: f.default for f in fields(Config)}
    share = epochs / values.get("epochs", defaults["epochs"])
    full = {key: values.get(key, defaults[key]) for key in RAMPS}
    scaled = {key: max(1, round(length * share)) if length else 0 for key, length in full.items()}
    return {key: length for key, length in scaled.items() if length != full[key]}
