"""What `sntg recipe` and `sntg models` show."""

import re
from dataclasses import fields
from math import prod
from typing import Any

from sntg.errors import UsageError
from sntg.models import MODELS, build
from sntg.models.summary import summarise
from sntg.training import recipe, resolve
from sntg.training.config import ARGUMENTS, Config

MOST_VALUES, MOST_CLASSES = 1_000_000, 100_000  # beyond these the networks would not fit into memory


def recipe_rows(dataset: str, method: str, labels: int | str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each setting: its value and who has it from where.

    >>> recipe_rows("cifar10", "pi", 4000, {"k": 0.1})[0]
    {'setting': 'model', 'value': 'conv13', 'source': 'paper'}
    """
    config = resolve(dataset, labels, method, **settings)
    sources = recipe(dataset, method, labels, config.label_noise, config.augment).sources
    sources |= dict.fromkeys(config.overridden, "scaled with epochs") | dict.fromkeys(settings, "you")
    names = [f.name for f in fields(Config) if f.name not in ARGUMENTS]
    return [{"setting": n, "value": _text(getattr(config, n)), "source": sources.get(n, "ours")} for n in names]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def model_rows(image: str, classes: int, normalisation: str) -> dict[str, list[dict[str, Any]]]:
    """The layers of each network for inputs of the given size.

    >>> list(model_rows("1x28x28", 10, "mean-only"))
    ['mlp', 'small', 'conv13']
    """
    size = re.fullmatch(r"(\d+)x(\d+)x(\d+)", image)
    if not size or 0 in (event := tuple(map(int, size.groups()))):
        raise UsageError(f"--input {image!r} is not channels x height x width: write 3x32x32")
    if prod(event) > MOST_VALUES:
        raise UsageError(f"--input {image} has {prod(event)} values: at most {MOST_VALUES} can be shown")
    if not 2 <= classes <= MOST_CLASSES:
        raise UsageError(f"--classes {classes} is out of range: it must be between 2 and {MOST_CLASSES}")
    built = {name: build(name, event, classes, 0.15, 0.5, normalisation=normalisation) for name in MODELS}
    return {name: summarise(model, event) for name, model in built.items()}
