"""The paper's two synthetic sets, drawn anew for each seed: 6000 points in the plane, tested on the same points."""

import numpy as np
import torch

from sntg.data.dataset import Dataset, Entry

POINTS = 6000


def two_moons(seed: int) -> Dataset:
    """Two interleaving half circles with noise 0.1, standardised.

    >>> two_moons(0).train_x.shape
    torch.Size([6000, 2])
    """
    from sklearn.datasets import make_moons  # here: scikit-learn takes a second to load

    x, y = make_moons(POINTS, noise=0.1, random_state=seed)
    return _planar("two-moons", x, y, classes=2)


def four_spins(seed: int) -> Dataset:
    """Four arms turning half a circle around the origin with noise 0.02, standardised.

    >>> four_spins(0).train_y.bincount()
    tensor([1500, 1500, 1500, 1500])
    """
    rng = np.random.default_rng(seed)
    arm = np.repeat(np.arange(4), POINTS // 4)
    t = np.sqrt(rng.uniform(size=POINTS))
    angle = arm * np.pi / 2 + np.pi * t
    x = t[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + rng.normal(0, 0.02, (POINTS, 2))
    return _planar("four-spins", x, arm, classes=4)


def _planar(name: str, x: np.ndarray, y: np.ndarray, classes: int) -> Dataset:
    points = torch.from_numpy((x - x.mean(0)) / x.std(0)).float()
    truth = torch.from_numpy(y).long()
    return Dataset(name, points, truth, points, truth, classes)


TWO_MOONS = Entry(
    "two-moons", "two half circles in the plane", lambda seed, data: two_moons(seed), POINTS, POINTS, 2, (2,)
)
FOUR_SPINS = Entry(
    "four-spins", "four spiral arms in the plane", lambda seed, data: four_spins(seed), POINTS, POINTS, 4, (2,)
)
