"""A dataset in memory, and the checks every dataset passes before anything is trained on it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sntg.errors import UsageError


@dataclass(frozen=True)
class Dataset:
    """Inputs as the network sees them before augmentation, with every true class; what is hidden is up to the split.

    train_x (N, *event), train_y (N,), test_x (M, *event), test_y (M,).
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if not len(x):
                raise UsageError(f"{self.name}: there are no {part} inputs")
            if len(x) != len(y):
                raise UsageError(f"{self.name}: {len(x)} {part} inputs but {len(y)} classes")
            if not torch.isfinite(x).all():
                raise UsageError(f"{self.name}: the {part} inputs hold NaN or infinite values")
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= self.classes:
                raise UsageError(f"{self.name}: {part} classes run from {low} to {high}, not 0 to {self.classes - 1}")

    @property
    def event(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_x.shape[1:])


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue. `load(seed)` makes or reads the data; a set that is not drawn at random ignores seed."""

    name: str
    line: str
    load: Callable[[int], Dataset]
    points: int
    test_points: int
    classes: int
    images: bool = False
