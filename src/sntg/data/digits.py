"""scikit-learn's bundled handwritten digits: 1797 real 8x8 images, a third of each class held out for testing."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sntg.data.dataset import Dataset, Entry
from sntg.data.whitening import normalise

TEST_POINTS = 599


def digits(seed: int) -> Dataset:
    """The digits enlarged to 16x16, which the small net needs; the test part is the same for every seed.

    >>> digits(0).event
    (1, 16, 16)
    """
    images, y, train, test = raw_digits()
    x = normalise(enlarge(torch.from_numpy(images).float().reshape(-1, 1, 8, 8)))
    truth = torch.from_numpy(y).long()
    return Dataset("digits", x[train], truth[train], x[test], truth[test], classes=10)


def raw_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The images (1797, 64) and classes as scikit-learn has them, and the rows for training and for testing.

    >>> [len(part) for part in raw_digits()]
    [1797, 1797, 1198, 599]
    """
    from sklearn.datasets import load_digits  # here: scikit-learn takes a second to load
    from sklearn.model_selection import train_test_split

    images, y = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(y)), test_size=TEST_POINTS, stratify=y, random_state=0)
    return images, y, train, test


def enlarge(images: Tensor) -> Tensor:
    """Twice as high and wide, by bilinear interpolation.

    >>> enlarge(torch.ones(1, 1, 8, 8)).shape
    torch.Size([1, 1, 16, 16])
    """
    return F.interpolate(images, scale_factor=2, mode="bilinear", align_corners=False)


DIGITS = Entry(
    "digits",
    "1797 handwritten digits from scikit-learn",
    lambda seed, data: digits(seed),
    1797 - TEST_POINTS,
    TEST_POINTS,
    10,
    (1, 16, 16),
    images=True,
)
