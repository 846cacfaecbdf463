"""How far images whitened in float32, as the public codes whiten them, are from ours, which are whitened in float64.

    python studies/whitening_in_float32.py --data DIR --out FILE

For CIFAR-10's ZCA of Pi and TempEns (`zca`) and of VAT (`scale-zca`, which adds next to nothing to the variances): the
norm of the difference over that of ours, the mean cosine of an image to itself, and the mean squared norm by either,
which is 3,072 on the training images where every direction has a variance of one.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from float32_zca import fit_in_float32
from torch import Tensor
from tuning import save

from sntg.data import load_dataset, whitening
from sntg.data.whitening_cache import ZCA

CPU = torch.device("cpu")


def compare(x: Tensor, prepare: whitening.Map, ours: ZCA, theirs: ZCA) -> dict[str, float]:
    """The images by two whitenings."""
    a, b = (whitening._apply(x, prepare, zca, CPU).flatten(1).double() for zca in (ours, theirs))
    return {
        "difference": float((a - b).norm() / a.norm()),
        "cosine": float(F.cosine_similarity(a, b).mean()),
        "float64_squared_norm": float(a.square().sum(1).mean()),
        "float32_squared_norm": float(b.square().sum(1).mean()),
    }


def exactly(scales: whitening.Map | None) -> whitening.Map:
    """The factors of variances, computed in float64: what counts as rounding there does not count as such here."""
    assert scales
    return lambda variances: scales(variances.double()).to(variances.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    images = load_dataset("cifar10", 0, given.data)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in ("zca", "scale-zca"):
        recipe = whitening._RECIPES[name]
        ours = whitening._fit(images.train_x, recipe.prepare, exactly(recipe.scales), CPU)
        theirs = fit_in_float32(images.train_x, recipe.prepare, exactly(recipe.scales), CPU)
        parts = {"train": images.train_x, "test": images.test_x}
        found[name] = {part: compare(x, recipe.prepare, ours, theirs) for part, x in parts.items()}
        print(name, found[name], flush=True)
    save({"name": "images whitened in float32 and in float64", "found": found}, given.out)


if __name__ == "__main__":
    main()
