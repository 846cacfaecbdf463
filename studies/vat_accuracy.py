"""Why is VAT+Ent a point above its paper on CIFAR-10: the precision, or the direction?

    python studies/vat_accuracy.py --data DIR --out FOLDER [--seeds 1-2] [--epochs 40] [--arms float16 tf32 ...]

Each arm is the recipe with one thing changed, a few seeds on a short schedule, with 5,000 training images held out; the
test set has no part in it. An arm that FOLDER has already is not trained again. On the networks that the first arm
leaves, the directions are compared: how far the prediction moves along each (the KL divergence at epsilon), and how
alike two of them are.

The arm `rounding` stands in for the reference's way of finding the direction, which differences gradients with a step
of xi = 1e-6. In float32 x + xi d is x but for rounding, so what is pulled back to the input is J^T (diag p - p p^T) e,
with rounding e in place of J d. Here e is drawn, a number of its own for every class. To difference in float32 instead,
a run would take ten times as long.
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from tuning import save, seed_range
from vat_direction import in_float64

from sntg import adversarial, load
from sntg.data import load_dataset, whiten
from sntg.losses import consistency_kl
from sntg.models import Classifier, Linearised, frozen_statistics, shared_noise
from sntg.training import Record, resolve
from sntg.training.config import default_device
from sntg.training.series import run_series

LABELS, HELD_OUT, IMAGES = 4000, 5000, 128
FIRST = "float16"  # what auto is on a GPU; the other arms are held against it
ARMS: dict[str, dict[str, Any]] = {
    FIRST: {"precision": "float16"},
    "tf32": {"precision": "tf32"},
    "rounding": {"precision": "float16"},
    "epsilon-6": {"precision": "float16", "epsilon": 6.0},
}
hessian_product = adversarial._hessian_product


def rounding_product(linearised: Linearised, d: Tensor) -> Tensor:
    """J^T (diag(p) - p p^T) e: as VAT's own, with what rounding would make of the logits in place of J d."""

    def rounded(d: Tensor) -> tuple[Tensor, Tensor, Any]:
        logits, tangent, pull = linearised(d)
        return logits, torch.randn_like(tangent), pull

    return hessian_product(rounded, d)


@contextmanager
def direction_of(arm: str) -> Iterator[None]:
    """Inside, VAT finds its direction as the arm wants it."""
    with mock.patch.object(adversarial, "_hessian_product", rounding_product if arm == "rounding" else hessian_product):
        yield


def train(arm: str, data: str, home: Path, seeds: range, epochs: int) -> None:
    """The arm's runs, a folder each, and what they end at."""
    settings = {"epochs": epochs, "validation": HELD_OUT, "eval_every": 10, "checkpoint_seconds": 600.0, **ARMS[arm]}
    common = {"data": data, "device": default_device(), **settings}
    configs = [resolve("cifar10", LABELS, "vat+ent", seed, **common) for seed in seeds]
    begun = time.monotonic()

    def note(records: list[Record]) -> None:
        brief = [{key: record[key] for key in ("epoch", "teacher_error", "error")} for record in records]
        print(f"{arm}: {time.monotonic() - begun:.1f} s {json.dumps(brief)}", flush=True)

    with direction_of(arm):
        runs = run_series(configs, home / arm, note)
    found = {
        "arm": arm,
        "settings": settings,
        "seeds": list(seeds),
        "engine": runs[0].config.engine,
        "held_out_errors": [run.error for run in runs],
        "training_errors": [run.history[-1]["teacher_error"] for run in runs],
        "seconds": time.monotonic() - begun,
    }
    save(found, home / arm / "result.json")


def directions(net: Classifier, x: Tensor) -> dict[str, Tensor]:
    """VAT's direction at x, found in several ways, each twice from starts of its own: (2, rows, *event)."""
    exact = in_float64(net)

    def found(predict: Classifier, x: Tensor, **how: Any) -> Tensor:
        twice = [adversarial.adversarial_direction(lambda x: predict(x).logits, x, x.ndim - 1, **how) for _ in "ab"]
        return torch.stack(twice).double()

    ways = {"exact": found(exact, x.double()), "xi = 1e-6 in float32": found(net, x, xi=1e-6)}
    with direction_of("rounding"):
        ways["rounding"] = found(exact, x.double())
    return ways | {"at random": found(net, x, power_iterations=0)}


@torch.no_grad()
def compare(net: Classifier, x: Tensor, epsilon: float) -> dict[str, dict[str, float]]:
    """How far each of the directions moves the prediction, and how alike they are: the mean cosine, signs left out.

    Half of all directions point away from the boundary that is near, whichever way they were found: so do starts.
    """
    net.train()
    with shared_noise(net), frozen_statistics(net):
        net(x)  # draws the masks that every pass shares
        exact = in_float64(net)
        p = F.softmax(exact(x.double()).logits, -1)
        ways = directions(net, x)

        def divergence(r: Tensor) -> float:
            return float(consistency_kl(exact(x.double() + epsilon * r).logits, p))

        def alike(a: Tensor, b: Tensor) -> float:
            return float(F.cosine_similarity(a.flatten(1), b.flatten(1)).abs().mean())

        return {
            way: {
                "divergence": mean(divergence(r) for r in found),
                "to itself from another start": alike(*found),
                "to the exact one from another start": alike(found[1], ways["exact"][0]),
            }
            for way, found in ways.items()
        }


def compare_runs(data: str, home: Path) -> None:
    """The comparison on each network of the first arm."""
    folders = sorted((home / FIRST).glob("seed-*"))
    device, epsilon = default_device(), resolve("cifar10", LABELS, "vat+ent").epsilon
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    images = whiten(load_dataset("cifar10", 0, data), "scale-zca", device).train_x[:IMAGES].to(device)
    by_seed = {folder.name: compare(load(folder).to(device), images, epsilon) for folder in folders}
    for seed, ways in by_seed.items():
        for way, figures in ways.items():
            print(seed, way, figures, flush=True)
    save({"name": "directions on trained networks", "epsilon": epsilon, "runs": by_seed}, home / "directions.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=seed_range, default=range(1, 3))
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()
    for arm in given.arms:
        if not (given.out / arm / "result.json").exists():
            train(arm, given.data, given.out, given.seeds, given.epochs)
        if arm == FIRST:
            compare_runs(given.data, given.out)


if __name__ == "__main__":
    main()
