"""The datasets by name. A new one is a file here and a line in CATALOGUE."""

from sntg.data.augmentation import translate
from sntg.data.dataset import Dataset, Entry
from sntg.data.digits import DIGITS
from sntg.data.splits import UNLABELLED, balanced_split, check_label_count
from sntg.data.synthetic import FOUR_SPINS, TWO_MOONS
from sntg.errors import unknown

__all__ = [
    "CATALOGUE",
    "UNLABELLED",
    "Dataset",
    "Entry",
    "balanced_split",
    "check_label_count",
    "entry",
    "load_dataset",
]
__all__ += ["translate"]

CATALOGUE: dict[str, Entry] = {e.name: e for e in (TWO_MOONS, FOUR_SPINS, DIGITS)}


def entry(name: str) -> Entry:
    """The catalogue's line for a dataset.

    >>> entry("digits").classes
    10
    """
    if name not in CATALOGUE:
        raise unknown("dataset", name, CATALOGUE)
    return CATALOGUE[name]


def load_dataset(name: str, seed: int = 0) -> Dataset:
    """The dataset called `name`; the synthetic ones are drawn with `seed`.

    >>> load_dataset("two-moons").classes
    2
    """
    return entry(name).load(seed)
