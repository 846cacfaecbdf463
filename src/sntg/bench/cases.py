"""What the bench measures: cases, in groups that are compared with each other and therefore take turns on the machine.

On a GPU the data have CIFAR-10's shapes and random content, so that no dataset is needed: a step takes as long on any
pixels. On a CPU they are the small datasets themselves.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from sntg.data import Dataset, Split, entry
from sntg.errors import UsageError, unknown
from sntg.models import PRECISIONS
from sntg.training import Config, Inputs, load_inputs, resolve
from sntg.training.automatic import best_engine, best_precision
from sntg.training.config import LARGEST, steps_an_epoch
from sntg.training.engines import ENGINES

SNTG = "+sntg"
SUPERVISED = "supervised"
BASES = ("pi", "tempens", "mt", "vat", "vat+ent")  # what the graph term's overhead is measured on
METHODS = (SUPERVISED, *(name for base in BASES for name in (base, base + SNTG)))
EVERY_WAY = "pi+sntg"  # the method that is measured with every engine and precision
IMAGES = "cifar10"
LABELS = {IMAGES: 4000, "two-moons": 12, "digits": 20}
BETWEEN_EPOCHS = 500  # steps on the small datasets, whose own epochs end every few, with bookkeeping


@dataclass(frozen=True)
class Case:
    """One way to run one method on one dataset."""

    dataset: str
    method: str
    engine: str
    precision: str

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}, {self.engine}, {self.precision}"


Group = list[Case]


def plan(device: str) -> list[Group]:
    """Every case for a device, in the order they are measured.

    >>> [f"{case.method} {case.engine}" for case in plan("cpu")[0]]
    ['pi+sntg eager', 'pi+sntg compiled', 'pi eager']
    """
    if torch.device(device).type == "cuda":
        return _gpu_plan({method: automatic(IMAGES, method, device) for method in METHODS})
    compared = [*((base + SNTG, base) for base in BASES), (SUPERVISED,)]
    return [
        [case for method in methods for case in _cpu_cases(name, method, device)]
        for name in ("two-moons", "digits")
        for methods in compared
    ]


def automatic(dataset: str, method: str, device: str) -> Case:
    """What `auto` means for a run.

    >>> str(automatic("digits", "vat", "cpu"))
    'vat on digits, eager, float32'
    """
    where, model = torch.device(device), resolve(dataset, LABELS[dataset], method).model
    engine = best_engine(where, method, model, run_steps(dataset, method))
    return Case(dataset, method, engine, best_precision(where, method))


def run_steps(dataset: str, method: str) -> int:
    """How many steps a run has by its recipe.

    >>> run_steps("two-moons", "pi")
    30000
    """
    return resolve(dataset, LABELS[dataset], method).epochs * epoch_steps(dataset, method)


def epoch_steps(dataset: str, method: str) -> int:
    """How many steps an epoch has by the recipe.

    >>> epoch_steps("two-moons", "pi")
    60
    """
    return steps_an_epoch(resolve(dataset, LABELS[dataset], method), entry(dataset).points)


def _cpu_cases(dataset: str, method: str, device: str) -> list[Case]:
    best = automatic(dataset, method, device)
    others = ("eager", "compiled") if method == EVERY_WAY else ("eager",)
    return list(dict.fromkeys([best, *(replace(best, engine=e) for e in others)]))


def _gpu_plan(auto: Mapping[str, Case]) -> list[Group]:
    """`auto`: what it means for each method. That is measured first, so that it finds nothing compiled before."""
    pairs = [[auto[base + SNTG], auto[base]] for base in BASES]
    best = auto[EVERY_WAY].precision
    first = [best, *(p for p in PRECISIONS if p != best)]
    every_way = [replace(auto[EVERY_WAY], engine=e, precision=p) for p in first for e in reversed(ENGINES)]
    eager = [replace(auto[m], engine="eager") for m in METHODS if m != EVERY_WAY]
    alone = [auto[SUPERVISED]]
    return [pairs[0], *([c] for c in every_way if c not in pairs[0]), *pairs[1:], alone, *([c] for c in eager)]


def chosen(kind: str, text: str | None, valid: Iterable[str]) -> tuple[str, ...]:
    """The names in a comma-separated text, all of the valid ones if there is none; others are refused.

    >>> chosen("engine", "eager, graph", ENGINES)
    ('eager', 'graph')
    """
    known = tuple(valid)
    names = known if text is None else tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)
    return names


def narrowed(
    groups: list[Group], methods: Collection[str], engines: Collection[str], precisions: Collection[str]
) -> list[Group]:
    """The cases that were asked for, still in their groups."""

    def wanted(case: Case) -> bool:
        return case.method in methods and case.engine in engines and case.precision in precisions

    left = [[case for case in group if wanted(case)] for group in groups]
    if not any(left):
        there = "; ".join(sorted({f"{c.method} {c.engine} {c.precision}" for group in groups for c in group}))
        raise UsageError(f"none of the bench's cases on this device fits the choice; there are: {there}")
    return [group for group in left if group]


def config_of(case: Case, device: str) -> Config:
    """The recipe's settings. No evaluation falls among the steps: it is timed by itself."""
    how: dict[str, Any] = {"device": device, "engine": case.engine, "precision": case.precision, "eval_every": LARGEST}
    if case.dataset != IMAGES:
        how["epoch_steps"] = BETWEEN_EPOCHS
    return resolve(case.dataset, LABELS[case.dataset], case.method, **how)


def inputs_of(config: Config) -> Inputs:
    """What a case trains on; images are on the device already, so that copying them is no part of a start."""
    return random_images(config.labels, config.device) if config.dataset == IMAGES else load_inputs(config)


def random_images(labels: int, device: str, points: int = 50_000, test_points: int = 10_000) -> Inputs:
    """Noise in CIFAR-10's shapes.

    >>> random_images(20, "cpu", points=100, test_points=10).data.event
    (3, 32, 32)
    """
    y, test_y = (torch.arange(n, device=device) % 10 for n in (points, test_points))
    x, test_x = (torch.randn(n, 3, 32, 32, device=device) for n in (points, test_points))
    shown = torch.where(torch.arange(points, device=device) < labels, y, -1)
    split = Split(shown, torch.zeros(0, dtype=torch.long))
    return Inputs(Dataset("random", x, y, test_x, test_y, classes=10), shown, split)
