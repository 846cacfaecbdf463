"""Image sets in the official formats with generated content, of official or of small size."""

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.io import savemat

from sntg.data.formats import read_cifar10, read_cifar100, read_idx_pair, read_svhn
from sntg.data.image_sets import ImageSet, Piece


def small(images: ImageSet) -> ImageSet:
    """The same set with 4x4 pixels and a few images, of each class and piece another number."""

    def shrink(pieces: tuple[Piece, ...], first: int) -> tuple[Piece, ...]:
        classes = range(images.classes)
        return tuple(Piece(piece.files, tuple(first + (c + i) % 3 for c in classes)) for i, piece in enumerate(pieces))

    return replace(
        images, shape=(images.shape[0], 4, 4), train=shrink(images.train, first=3), test=shrink(images.test, first=1)
    )


def content(piece: Piece, shape: tuple[int, int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images and classes of a piece: its counts in random order, and a block of random images over and over."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(piece.counts)), piece.counts))
    block = rng.integers(0, 256, (97, *shape), dtype=np.uint8)  # a prime: the blocks drift along the classes
    return np.tile(block, (len(y) // 97 + 1, 1, 1, 1))[: len(y)], y


def write_set(images: ImageSet, folder: Path, seed: int = 0) -> None:
    """Writes a whole set into a folder that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, piece in enumerate((*images.train, *images.test)):
        write_piece(images, [folder / file for file in piece.files], *content(piece, images.shape, seed + i))


def write_piece(images: ImageSet, paths: list[Path], x: np.ndarray, y: np.ndarray) -> None:
    """Writes images and classes as the set's official files."""
    if images.read is read_idx_pair:
        paths[0].write_bytes(gzip.compress(idx(x[:, 0]), 0, mtime=0))
        paths[1].write_bytes(gzip.compress(idx(y), 0, mtime=0))
    elif images.read is read_cifar10:
        paths[0].write_bytes(cifar(x, y))
    elif images.read is read_cifar100:
        paths[0].write_bytes(cifar(x, y // 5, y))
    else:
        assert images.read is read_svhn
        mat(paths[0], x, y)


def idx(array: np.ndarray) -> bytes:
    """An IDX file of unsigned bytes."""
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def cifar(x: np.ndarray, *labels: np.ndarray) -> bytes:
    """A file of CIFAR's binary version: the labels before each image."""
    columns = [label[:, None] for label in labels]
    return np.concatenate([*columns, x.reshape(len(x), -1)], 1).astype(np.uint8).tobytes()


def mat(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """One of SVHN's files: the digit 0 is class 10."""
    labels = np.where(y == 0, 10, y).astype(np.uint8)[:, None]
    savemat(path, {"X": x.transpose(2, 3, 1, 0), "y": labels}, do_compression=True)
