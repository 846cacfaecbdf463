"""What the demo runs: three methods on three small datasets, with the recipes' settings but for those named here."""

from typing import Any

from sntg.methods import parse
from sntg.training import Config, resolve

METHODS = ("supervised", "pi", "pi+sntg")
LABELS = {"two-moons": 12, "four-spins": 12, "digits": 20}

# Where the demo departs from the recipe to fit into a minute or two; the page lists each departure and why.
DEPARTURES: dict[str, dict[str, Any]] = {
    "two-moons": {"eval_every": 25},
    "four-spins": {"eval_every": 25},
    "digits": {"eval_every": 10},
}


def plan(seed: int) -> list[Config]:
    """The demo's runs.

    >>> len(plan(0))
    9
    """
    return [resolve(d, labels, m, seed, **DEPARTURES[d]) for d, labels in LABELS.items() for m in METHODS]


def cost(config: Config) -> float:
    """About how long an epoch takes, in arbitrary units: rows through the network times the network's size."""
    views = 1 if parse(config.method).base == "supervised" else 2
    return views * {"mlp": 6000.0, "small": 27 * 1200.0}[config.model]


def departures(config: Config) -> dict[str, tuple[Any, Any]]:
    """The settings that differ from the recipe's: name -> (recipe's value, the demo's)."""
    full = resolve(config.dataset, config.labels, config.method, config.seed).as_dict()
    return {k: (full[k], v) for k, v in config.as_dict().items() if v != full[k] and k != "eval_every"}
