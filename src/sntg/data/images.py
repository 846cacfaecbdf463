"""Image sets from disk: where their files are, and the checks they pass before anything is trained on them."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sntg.data.dataset import Dataset, content_hash
from sntg.data.formats import Classes, Pixels, wrong
from sntg.data.image_sets import ImageSet, Piece
from sntg.errors import UsageError


@dataclass(frozen=True)
class Found:
    """What there is of an image set: the one folder its files are taken from, the files there and those missing.

    Where there is none at all, the folder is the one they belong into.
    """

    folder: Path
    files: dict[str, Path]
    missing: tuple[str, ...]
    looked: tuple[Path, ...]

    @property
    def size(self) -> int:
        """The bytes its files take."""
        return sum(path.stat().st_size for path in self.files.values() if path.is_file())


def find(images: ImageSet, folder: Path) -> Found:
    """Looks for an image set under each of its names in the data folder, and takes the one with most of its files.

    >>> from sntg.data.image_sets import IMAGE_SETS
    >>> find(IMAGE_SETS["svhn"], Path("nowhere")).missing
    ('train_32x32.mat', 'test_32x32.mat')
    """
    looked = tuple(folder / name for name in images.folders)
    there = [_files_in(place, images.files) for place in looked]
    best = max(range(len(looked)), key=lambda i: len(there[i]))  # of equals the first
    return Found(looked[best], there[best], tuple(f for f in images.files if f not in there[best]), looked)


def _files_in(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The files of these names; a .gz may lie there decompressed. A dangling link is there, and refused when read."""
    found = {}
    for name in names:
        for path in (folder / name, folder / name.removesuffix(".gz")):
            if os.path.lexists(path):
                found[name] = path
                break
    return found


def read_images(images: ImageSet, folder: Path) -> Dataset:
    """The image set in a data folder, each file checked: structure, counts, class counts and values.

    >>> from sntg.data.image_sets import IMAGE_SETS
    >>> read_images(IMAGE_SETS["cifar100"], Path("nowhere"))
    Traceback (most recent call last):
    sntg.errors.UsageError: cifar100 was not found: looked for train.bin and test.bin in nowhere/cifar-100-binary and \
nowhere/cifar100; `sntg data fetch cifar100` downloads it, or name another folder with --data or $SNTG_DATA
    """
    found = find(images, folder)
    if found.missing:
        raise _not_found(images, found, folder)
    parts = (*_read_part(images, found, images.train), *_read_part(images, found, images.test))
    train_x, train_y, test_x, test_y = map(torch.from_numpy, parts)
    return Dataset(images.name, train_x, train_y, test_x, test_y, images.classes, content_hash(*parts))


def _read_part(images: ImageSet, found: Found, pieces: Sequence[Piece]) -> tuple[Pixels, Classes]:
    paths = [[found.files[file] for file in piece.files] for piece in pieces]
    read = [_read_piece(images, files, sum(piece.counts)) for files, piece in zip(paths, pieces, strict=True)]
    for files, piece, (_, y) in zip(paths, pieces, read, strict=True):
        counts, expected = np.bincount(y, minlength=images.classes), np.array(piece.counts)
        if not np.array_equal(counts, expected):
            raise wrong(files[-1], *_counts_that_differ(expected, counts))
    return np.concatenate([x for x, _ in read]), np.concatenate([y for _, y in read])


def _read_piece(images: ImageSet, paths: Sequence[Path], count: int) -> tuple[Pixels, Classes]:
    x, y = images.read(*paths, shape=(count, *images.shape))
    if y.min() < 0 or y.max() >= images.classes:
        raise wrong(paths[-1], f"classes from 0 to {images.classes - 1}", f"classes from {y.min()} to {y.max()}")
    if x.min() == x.max():
        raise wrong(paths[0], "pixels of different values", f"the value {x.min()} in all of them")
    return x, y


def _counts_that_differ(expected: Classes, found: Classes) -> tuple[str, str]:
    """The first class whose count is wrong; a hundred of them would fill the screen."""
    c = int(np.flatnonzero(expected != found)[0])
    return f"{expected[c]} images of class {c}", f"{found[c]}"


def only_pickled(images: ImageSet, folder: Path) -> Path | None:
    """The folder of the pickled version, where that is all there is of an image set.

    >>> from sntg.data.image_sets import IMAGE_SETS
    >>> only_pickled(IMAGE_SETS["cifar10"], Path("nowhere")) is None
    True
    """
    pickled = folder / images.pickled if images.pickled else None
    return pickled if pickled and os.path.isdir(pickled) and not find(images, folder).files else None


def _not_found(images: ImageSet, found: Found, folder: Path) -> UsageError:
    pickled, command = only_pickled(images, folder), f"`sntg data fetch {images.name}`"
    if found.files:
        return UsageError(
            f"{images.name}: {_and(found.missing)} missing in {found.folder}: {command} downloads what is missing"
        )
    if pickled:
        return UsageError(
            f"{images.name}: {pickled} is the pickled version, which is never loaded, as pickle can run any code: "
            f"{command} downloads the binary version"
        )
    return UsageError(
        f"{images.name} was not found: looked for {_and(images.files)} in {_and(map(str, found.looked))}; "
        f"{command} downloads it, or name another folder with --data or $SNTG_DATA"
    )


def _and(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
