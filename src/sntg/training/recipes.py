"""The values each dataset and method is trained with, where they differ from Config's defaults.

A recipe is data: rows of (dataset, method, values), later rows overriding earlier ones. "*" is any. How the
values of the small sets were chosen is in docs/synthetic.md and docs/digits.md.
"""

from typing import Any

from sntg.methods import parse
from sntg.training.config import Config

Row = tuple[str, str, dict[str, Any]]

RECIPES: list[Row] = [
    ("two-moons", "*", {"epochs": 500, "ramp_down": 83, "lr": 1e-3, "noise": 0.08, "eval_every": 1}),
    ("four-spins", "*", {"epochs": 500, "ramp_down": 83, "lr": 1e-3, "noise": 0.05, "w_max": 500.0}),
    ("digits", "*", {"model": "small", "translate": 2}),
    ("*", "vat", {"w_max": 1.0, "label_factor": False, "ramp_up": 0, "batch": 128}),
]


def recipe(dataset: str, method: str) -> dict[str, Any]:
    """The recipe's values for a dataset and a method's base and full name.

    >>> recipe("digits", "pi")["model"]
    'small'
    """
    name = parse(method)
    values: dict[str, Any] = {}
    for row_dataset, row_method, row in RECIPES:
        if row_dataset in ("*", dataset) and row_method in ("*", name.base, str(name)):
            values |= row
    return values


def resolve(dataset: str, labels: int, method: str, seed: int = 0, **settings: Any) -> Config:
    """A full config: the defaults, then the recipe, then what the caller sets.

    >>> resolve("two-moons", 12, "pi", epochs=3).epochs
    3
    """
    method = str(parse(method))
    values = recipe(dataset, method) | settings
    return Config(dataset=dataset, labels=labels, method=method, seed=seed, **values)
