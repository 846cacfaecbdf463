"""Random images that are hard to whiten, and the names of the whitenings that are fitted."""

import numpy as np
import torch

from sntg.data.dataset import Dataset

FITTED = ("zca", "gcn-zca", "scale-zca")
SHAPE = (3, 6, 6)


def images(n: int, seed: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Random images whose directions vary very differently: some a lot, some by little more than rounding to a byte."""
    rng, pixels = np.random.default_rng(seed), int(np.prod(shape))
    mix = np.linalg.qr(np.random.default_rng(99).normal(size=(pixels, pixels)))[0] * np.logspace(0, -4, pixels)
    values = 0.5 + 0.5 * rng.normal(size=(n, pixels)) @ mix.T
    return torch.from_numpy((255 * values).round().clip(0, 255).astype(np.uint8).reshape(n, *shape))


def dataset(train: torch.Tensor | None = None, test: torch.Tensor | None = None) -> Dataset:
    train = images(500, 0) if train is None else train
    test = images(70, 1) if test is None else test
    return Dataset("mine", train, torch.arange(len(train)) % 2, test, torch.arange(len(test)) % 2, 2, "the hash")


def rows(x: torch.Tensor) -> np.ndarray:
    return x.numpy().reshape(len(x), -1).astype(np.float64)
