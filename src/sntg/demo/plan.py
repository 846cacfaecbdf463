"""What the demo runs: three methods on three small datasets, with the recipes' settings but for those named here."""

from fnmatch import fnmatchcase
from typing import Any

from sntg.methods import parse
from sntg.training import Config, resolve
from sntg.training.recipes import RAMPS

METHODS = ("supervised", "pi", "pi+sntg")
LABELS = {"two-moons": 12, "four-spins": 12, "digits": 20}

# Where the demo departs from the recipe, to be done in two minutes: rows as in the recipes. Four spins is trained in
# full, because a shorter schedule loses arms; supervised-only training has long converged by then.
DEPARTURES: list[tuple[str, str, dict[str, Any]]] = [
    ("two-moons", "*", {"epochs": 200, "eval_every": 25}),
    ("four-spins", "*", {"eval_every": 25}),
    ("digits", "*", {"epochs": 40, "eval_every": 10}),
    ("*-*", "supervised", {"epochs": 100}),
]


def plan(seed: int) -> list[Config]:
    """The demo's runs.

    >>> len(plan(0))
    9
    """
    return [resolve(d, labels, m, seed, **_departing(d, m)) for d, labels in LABELS.items() for m in METHODS]


def _departing(dataset: str, method: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for row_dataset, row_method, row in DEPARTURES:
        if fnmatchcase(dataset, row_dataset) and fnmatchcase(method, row_method):
            values |= row
    return values


def cost(config: Config) -> float:
    """About how long an epoch takes, in arbitrary units: rows through the network times the network's size."""
    views = 1 if parse(config.method).base == "supervised" else 2
    return views * {"mlp": 6000.0, "small": 27 * 1200.0}[config.model]


def departures(config: Config) -> dict[str, tuple[Any, Any]]:
    """The settings that differ from the recipe's: name -> (recipe's value, the demo's). Ramps scale with the epochs."""
    full = resolve(config.dataset, config.labels, config.method, config.seed).as_dict()
    unsaid = {"eval_every", "overridden", "data_hash", "split_hash", "engine", "precision", *RAMPS}
    return {k: (full[k], v) for k, v in config.as_dict().items() if v != full[k] and k not in unsaid}
