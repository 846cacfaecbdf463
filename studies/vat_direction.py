"""How exact VAT's direction is: its cosine to float64's, while the paper's network trains on CIFAR-10.

    python studies/vat_direction.py --data DIR --out FILE [--steps 0 100 400 2000] [--precisions bfloat16 float16]

A run of VAT+Ent in each precision, with the device's best engine. At the given steps 128 training images go through the
network as VAT sees them: the direction that training would take, and the one that the same network with the same
weights, dropout masks and start has in float64.
"""

import argparse
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from tuning import save

from sntg.adversarial import adversarial_direction
from sntg.data import centre
from sntg.methods.vat import VAT
from sntg.models import Classifier, frozen_statistics, shared_noise, use_precision
from sntg.training import Stack, resolve
from sntg.training.config import default_device
from sntg.training.randomness import own_randomness

IMAGES = 128


def in_float64(net: Classifier) -> Classifier:
    """The same network, with the dropout masks that it shares."""
    copy = use_precision(deepcopy(net), "float32").double()
    for module in copy.modules():
        if getattr(module, "shared", None) is not None:
            module.shared = module.shared.double()
    return copy


def cosines(vat: VAT, x: Tensor) -> Tensor:
    """One an image."""
    start = torch.randn_like(x)
    with torch.no_grad(), shared_noise(vat.model), frozen_statistics(vat.model):
        with mock.patch("torch.randn", return_value=start):
            _, found = vat.worst(x)
        exact_net = in_float64(vat.model)
        with mock.patch("torch.randn", return_value=start.double()):
            exact = adversarial_direction(lambda x: exact_net(x).logits, x.double(), 3)
    return torch.nn.functional.cosine_similarity(found.double().flatten(2), exact.flatten(2), dim=-1)[0]


def along_a_run(data: str, steps: list[int], **settings: Any) -> list[dict[str, float]]:
    """Mean, median and least cosine at each of the steps."""
    config = resolve("cifar10", 4000, "vat+ent", data=data, device=default_device(), **settings)
    found = []
    with own_randomness(config):
        runs = Stack([config])
        x = centre(runs.batches.pick(torch.arange(IMAGES, device=runs.device)[None]), config.translate).float()
        for step in range(max(steps) + 1):
            if step in steps:
                with torch.random.fork_rng([runs.device] if runs.device.type == "cuda" else []):
                    c = cosines(runs.objective.base, x)
                figures = {"mean": c.mean(), "median": c.median(), "least": c.min()}
                found.append({"step": step} | {name: float(value) for name, value in figures.items()})
                print(settings, found[-1], flush=True)
            runs.advance()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 100, 400, 2000])
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--model", default="conv13")
    given = parser.parse_args()
    found = {p: along_a_run(given.data, given.steps, precision=p, model=given.model) for p in given.precisions}
    save({"name": "cosine of VAT's direction to float64's", "images": IMAGES, "cosines": found}, given.out)


if __name__ == "__main__":
    main()
