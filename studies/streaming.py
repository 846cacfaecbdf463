"""What it costs to stream the training images from the host's memory, as a run does where they do not fit on the GPU.

    python studies/streaming.py --out FILE [--methods pi+sntg ...] [--images 50000] [--steps 500]

Two runs of each method, on random images of CIFAR-10's shape: one has them on the device, one streams them. They take
turns, in blocks of so many steps; 500 of 100 rows are an epoch, so that the rows are shuffled anew once in each.
"""

import argparse
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tuning import save

from sntg.bench.cases import IMAGES, LABELS, random_images
from sntg.bench.measure import release
from sntg.bench.provenance import hardware
from sntg.bench.timing import UNMEASURED, seconds, take_turns
from sntg.training import Stack, resolve
from sntg.training.config import LARGEST, default_device
from sntg.training.randomness import own_randomness

STORAGES = ("device", "host")


def compare(method: str, images: int, steps: int, **settings: Any) -> dict[str, Any]:
    """Milliseconds a step with either storage, a figure a block, and how many times as long the streamed one takes."""
    inputs = random_images(LABELS[IMAGES], "cpu", images, images // 5)
    configs = [
        resolve(IMAGES, LABELS[IMAGES], method, storage=s, device=default_device(), eval_every=LARGEST, **settings)
        for s in STORAGES
    ]
    with own_randomness(configs[0]), ExitStack() as held:
        runs = [held.enter_context(closing(Stack([config], [inputs]))) for config in configs]
        for run in runs:
            seconds(run.advance, run.device, UNMEASURED)
        blocks = take_turns([run.advance for run in runs], [steps] * len(runs), runs[0].device)
        how = {key: getattr(runs[0].configs[0], key) for key in ("method", "engine", "precision")}
    ratios = [streamed / kept for kept, streamed in zip(*blocks, strict=True)]
    ms = {storage: [1e3 * s for s in block] for storage, block in zip(STORAGES, blocks, strict=True)}
    return {**how, "ms_per_step": ms, "ratio": median(ratios), "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["pi+sntg", "tempens+sntg", "vat+ent+sntg"])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args()
    sizes = {"images": given.images, "steps_a_block": given.steps}
    where = {"hardware": hardware(default_device())}
    found: list[dict[str, Any]] = []
    for method in given.methods:
        found.append(compare(method, given.images, given.steps))
        print(method, {s: f"{median(ms):.2f} ms" for s, ms in found[-1]["ms_per_step"].items()}, flush=True)
        save({"name": "streamed training images", **sizes, **where, "found": found}, given.out)
        release(torch.device(default_device()))


if __name__ == "__main__":
    main()
