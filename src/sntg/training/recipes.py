"""The values each dataset and method is trained with, where they differ from Config's defaults.

A recipe is data: rows of (dataset, method, values), later rows overriding earlier ones; `*` in a name stands for
anything. How the values of the small sets were chosen is in docs/synthetic.md and docs/digits.md.
"""

from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any

from sntg.methods import parse
from sntg.training.config import Config, config_from

RAMPS = ("ramp_up", "ramp_down", "graph_start", "graph_ramp")
Row = tuple[str, str, dict[str, Any]]

# The synthetic sets: 500 epochs with the down-ramp over the last sixth; what differs by method was tuned for it.
PLANE = {"epochs": 500, "ramp_down": 83, "lr": 1e-3, "noise": 0.05}
LATE_GRAPH = {"graph_start": 200, "graph_ramp": 80}  # the first predictions would only freeze their own mistakes

# The digits: 11 steps an epoch, so the running means must move faster than in a run of 150,000 steps.
DIGITS = {"model": "small", "translate": 2, "epochs": 60, "ramp_up": 24, "ramp_down": 12, "bn_momentum": 0.98}
DIGITS |= {"lr": 3e-3, "dropout": 0.2, "w_max": 30.0}

RECIPES: list[Row] = [
    ("two-moons", "*", {**PLANE, "noise": 0.08, "w_max": 100.0, "k": 0.03, **LATE_GRAPH}),
    ("two-moons", "pi", {"noise": 0.05, "lr": 3e-3}),
    ("two-moons", "vat*", {"epsilon": 0.3}),
    ("four-spins", "*", {**PLANE, "w_max": 1000.0, "k": 0.01, **LATE_GRAPH}),
    ("four-spins", "pi", {"ramp_up": 200}),
    ("four-spins", "vat*", {"epsilon": 0.1}),
    ("digits", "*", {**DIGITS, "k": 0.4, "graph_start": 18, "graph_ramp": 12}),
    ("digits", "mt*", {"ema": 0.98}),  # as for the running means
    ("*", "vat*", {"w_max": 1.0, "label_factor": False, "ramp_up": 0, "batch": 128}),
]


def recipe(dataset: str, method: str) -> dict[str, Any]:
    """The recipe's values for a dataset and a method.

    >>> recipe("digits", "pi")["model"]
    'small'
    """
    name = str(parse(method))
    values: dict[str, Any] = {}
    for row_dataset, row_method, row in RECIPES:
        if fnmatchcase(dataset, row_dataset) and fnmatchcase(name, row_method):
            values |= row
    return values


def resolve(dataset: str, labels: int, method: str, seed: int = 0, **settings: Any) -> Config:
    """A full config: the defaults, then the recipe, then what the caller sets.

    A caller who sets another number of epochs gets ramps of the same share of them, unless they are set too.

    >>> resolve("two-moons", 12, "pi", epochs=3).epochs
    3
    """
    method = str(parse(method))
    values = recipe(dataset, method)
    if 1 <= settings.get("epochs", 0) < float("inf"):  # any other number of them is refused by Config
        values |= _scaled_ramps(values, settings["epochs"])
    values |= settings
    return config_from({"dataset": dataset, "labels": labels, "method": method, "seed": seed} | values)


def _scaled_ramps(values: dict[str, Any], epochs: int) -> dict[str, int]:
    """The recipe's ramps for another number of epochs."""
    defaults = {f.name: f.default for f in fields(Config)}
    share = epochs / values.get("epochs", defaults["epochs"])
    full = {key: values.get(key, defaults[key]) for key in RAMPS}
    return {key: max(1, round(length * share)) if length else 0 for key, length in full.items()}
