"""The tuning procedure of the studies, the same for every method: a grid, ranked on tuning seeds, the best re-run.

Stage 1 trains every setting of a method's grid on three tuning seeds. Stage 2 trains the ten settings of the lowest
mean error again, on ten tuning seeds. The setting with the lowest mean of stage 2 is chosen. Grids of methods that are
compared have the same number of settings. Seeds 0-9, which the tables report, are never looked at.
"""

import itertools
import json
import os
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

from sntg.training import Config, resolve, train

TUNING_SEEDS = range(100, 110)
TEST_SEEDS = range(0, 10)
Settings = dict[str, Any]


def grid(**axes: list[Any]) -> list[Settings]:
    """Every combination of the axes' values."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def errors(
    name: str, dataset: str, labels: int, method: str, settings: list[Settings], seeds: range, **common: Any
) -> list[list[float]]:
    """The error of each setting on each seed, all trained as one stack."""
    configs: list[Config] = [resolve(dataset, labels, method, seed, **common, **s) for s in settings for seed in seeds]
    started = time.time()

    def report(records: list[dict[str, Any]]) -> None:
        epoch = records[0]["epoch"]
        if epoch % 20 == 1:
            print(f"{name}: {len(configs)} runs, epoch {epoch}, {time.time() - started:.0f} s", flush=True)

    flat = [run.error for run in train(configs, report)]
    return [flat[i : i + len(seeds)] for i in range(0, len(flat), len(seeds))]


def tune(
    name: str, dataset: str, labels: int, method: str, settings: list[Settings], out: Path, **common: Any
) -> Settings:
    """Runs both stages and writes what was tried, with every error, beside the choice."""
    first = errors(f"{name} stage 1", dataset, labels, method, settings, TUNING_SEEDS[:3], **common)
    ranked = sorted(range(len(settings)), key=lambda i: mean(first[i]))
    finalists = [settings[i] for i in ranked[:10]]
    second = errors(f"{name} stage 2", dataset, labels, method, finalists, TUNING_SEEDS, **common)
    chosen = min(range(len(finalists)), key=lambda i: mean(second[i]))
    record = {
        "dataset": dataset,
        "labels": labels,
        "method": method,
        "common": common,
        "chosen": finalists[chosen],
        "stage 1": [{"settings": settings[i], "errors": first[i]} for i in ranked],
        "stage 2": [{"settings": s, "errors": e} for s, e in zip(finalists, second, strict=True)],
    }
    save(record, out)
    for s, e in sorted(zip(finalists, second, strict=True), key=lambda pair: mean(pair[1])):
        print(f"{name}: mean {mean(e):.3f} median {median(e):.3f}  {s}", flush=True)
    return finalists[chosen]


def save(record: Any, out: Path) -> None:
    """Writes beside, then renames."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_suffix(".tmp")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(beside, out)
