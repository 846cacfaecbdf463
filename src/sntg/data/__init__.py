"""The datasets by name. A new one is a file here and a line in CATALOGUE."""

from dataclasses import replace
from numbers import Integral

from sntg.data.augmentation import PADDINGS, centre, crop, flip, pad, translate
from sntg.data.dataset import Dataset, Entry, content_hash
from sntg.data.digits import DIGITS
from sntg.data.folders import data_folder
from sntg.data.image_sets import IMAGE_SETS, ImageSet
from sntg.data.images import read_images
from sntg.data.split_files import count_rows, read_split, write_rows, write_split
from sntg.data.splits import SPLITS, UNLABELLED, Split, balanced_split, check_label_count, make_split
from sntg.data.synthetic import FOUR_SPINS, TWO_MOONS
from sntg.data.whitening import WHITENINGS, whiten
from sntg.errors import UsageError, unknown

__all__ = ["CATALOGUE", "IMAGE_SETS", "PADDINGS", "SPLITS", "UNLABELLED", "WHITENINGS", "Dataset", "Entry", "Split"]
__all__ += ["balanced_split", "centre", "check_label_count", "count_rows", "crop", "data_folder", "entry", "flip"]
__all__ += ["load_dataset", "make_split", "pad", "read_split", "translate", "whiten", "write_rows", "write_split"]


def _entry(images: ImageSet) -> Entry:
    return Entry(
        images.name,
        images.line,
        lambda seed, data: read_images(images, data_folder(data)),
        images.points,
        images.test_points,
        images.classes,
        images.shape,
        images=True,
        pixels=True,
    )


CATALOGUE: dict[str, Entry] = {e.name: e for e in (TWO_MOONS, FOUR_SPINS, DIGITS, *map(_entry, IMAGE_SETS.values()))}


def entry(name: str) -> Entry:
    """The catalogue's line for a dataset.

    >>> entry("digits").classes
    10
    """
    if not isinstance(name, str) or name not in CATALOGUE:
        raise unknown("dataset", str(name), CATALOGUE)
    return CATALOGUE[name]


def load_dataset(name: str, seed: int = 0, data: str = "") -> Dataset:
    """The dataset called `name`: the synthetic ones drawn with `seed`, image sets as the pixels of their files.

    data: the folder to look for the files in; by default $SNTG_DATA, or the platform's cache folder.

    >>> load_dataset("two-moons").classes
    2
    """
    if not isinstance(seed, Integral) or not 0 <= seed < 2**32:
        raise UsageError(f"seed = {seed!r} is not a whole number from 0 to {2**32 - 1}")
    loaded = entry(name).load(seed, data)
    if loaded.content_hash:
        return loaded
    parts = (loaded.train_x, loaded.train_y, loaded.test_x, loaded.test_y)
    return replace(loaded, content_hash=content_hash(*(part.numpy() for part in parts)))
