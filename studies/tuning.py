"""The tuning procedure of the studies, the same for every method.

Every setting of a method's grid is trained on tuning seeds (100-109, or the first of them); the setting
whose mean error, averaged with its neighbours' in the grid, is lowest is chosen. Methods that are compared get grids of
equal size. Seeds 0-9, which the tables report, are trained with the chosen settings after the choice.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from sntg.bench.provenance import made_by
from sntg.files import write_text
from sntg.training import resolve, train, train_all

TUNING_SEEDS = range(100, 110)
Settings = dict[str, Any]
Errors = Callable[[list[Settings], range], list[list[float]]]


def grid(**axes: list[Any]) -> list[Settings]:
    """Every combination of the axes' values."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def stacked(dataset: str, labels: int, method: str, **common: Any) -> Errors:
    """Trains settings x seeds as one stack of runs and gives each setting's errors, a seed each."""

    def errors(settings: list[Settings], seeds: range) -> list[list[float]]:
        configs = [resolve(dataset, labels, method, seed, **common | s) for s in settings for seed in seeds]
        started = time.time()

        def report(records: list[dict[str, Any]]) -> None:
            if records[0]["epoch"] % 20 == 1:
                done = f"epoch {records[0]['epoch']} of {configs[0].epochs}, {time.time() - started:.0f} s"
                print(f"{dataset} {method}: {len(configs)} runs, {done}", flush=True)

        flat = [run.error for run in train(configs, report)]
        return [flat[i : i + len(seeds)] for i in range(0, len(flat), len(seeds))]

    return errors


def one_by_one(dataset: str, labels: int, method: str, **common: Any) -> Errors:
    """Trains settings x seeds as single runs, one a core: what `sntg train` does, and on a CPU as fast as a stack."""

    def errors(settings: list[Settings], seeds: range) -> list[list[float]]:
        configs = [resolve(dataset, labels, method, seed, **common | s) for s in settings for seed in seeds]

        def report(run: int, epoch: int) -> None:
            if epoch == configs[run].epochs:
                print(f"{dataset} {method}: run {run + 1} of {len(configs)} done", flush=True)

        flat = [run.error for run in train_all(configs, report)]
        return [flat[i : i + len(seeds)] for i in range(0, len(flat), len(seeds))]

    return errors


def tune(
    name: str,
    settings: list[Settings],
    errors: Errors,
    out: Path,
    seeds: range = TUNING_SEEDS,
    reach: int = 1,
) -> Settings:
    """Trains the grid on the tuning seeds, writes every error, and returns the chosen settings."""
    found = errors(settings, seeds)
    tried = ranked([{"settings": s, "errors": e} for s, e in zip(settings, found, strict=True)], reach)
    save({"name": name, "seeds": list(seeds), "tried": tried}, out)
    for t in tried[:8]:
        print(f"{name}: score {t['score']:.3f} mean {mean(t['errors']):.3f}  {t['settings']}", flush=True)
    chosen: Settings = tried[0]["settings"]
    return chosen


def ranked(tried: list[dict[str, Any]], reach: int = 1) -> list[dict[str, Any]]:
    """Best first, by a score: the mean error of a setting and of its neighbours, `reach` steps along the grid's axes.

    Ten runs do not show that one in ten collapses; the neighbours' runs do. Where an axis has two values far apart,
    a reach of 0 leaves a setting to itself.
    """
    axes = {key: sorted({t["settings"][key] for t in tried}) for key in tried[0]["settings"]}

    def steps(a: Settings, b: Settings) -> int:
        return sum(abs(values.index(a[key]) - values.index(b[key])) for key, values in axes.items())

    for t in tried:
        t["score"] = mean(mean(u["errors"]) for u in tried if steps(t["settings"], u["settings"]) <= reach)
    return sorted(tried, key=lambda t: t["score"])


def seed_range(text: str) -> range:
    """The seeds that `first-last` means."""
    first, last = map(int, text.split("-"))
    return range(first, last + 1)


def measure(name: str, settings: Settings, errors: Errors, out: Path, seeds: range) -> None:
    """Trains the chosen settings on the test seeds and writes the errors."""
    (found,) = errors([settings], seeds)
    save({"name": name, "seeds": list(seeds), "settings": settings, "errors": found}, out)
    print(f"{name}: test mean {mean(found):.3f} median {median(found):.3f}  {found}", flush=True)


def save(record: dict[str, Any], out: Path) -> None:
    """Writes a result with where it came from."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, json.dumps(record | {"provenance": provenance()}, indent=1) + "\n")


def provenance() -> dict[str, str]:
    """The command, the commit, the hardware and the versions a result was made with."""
    hardware = torch.cuda.get_device_name() if torch.cuda.is_initialized() else f"{os.cpu_count()} CPU cores"
    return made_by(" ".join(["python", *sys.argv])) | {"hardware": hardware, "torch": torch.__version__}
