"""A dataset in memory, and the checks every dataset passes before anything is trained on it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sntg.errors import UsageError


@dataclass(frozen=True)
class Dataset:
    """Inputs with every true class; what is hidden is up to the split.

    train_x (N, *event), train_y (N,), test_x (M, *event), test_y (M,). Image sets read from files hold the files' uint8
    pixels, (N, channels, height, width), until they are whitened. content_hash is the sha256 of what was read or drawn;
    it stays with the data when they are whitened.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    content_hash: str = ""

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


def content_hash(*arrays: np.ndarray) -> str:
    """The sha256 of arrays, shapes included: re-made files of the same content have the same.

    >>> content_hash(np.arange(4).reshape(2, 2)) == content_hash(np.arange(4))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape}".encode())
        # The same bytes on every machine, whichever end of a number it puts first.
        digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue. `load(seed, data)` draws the data with the seed, or reads them from the folder `data`.

    images: whether an input is one. pixels: whether they come as uint8 pixels, to be whitened.
    """

    name: str
    line: str
    load: Callable[[int, str], Dataset]
    points: int
    test_points: int
    classes: int
    event: tuple[int, ...]
    images: bool = False
    pixels: bool = False
