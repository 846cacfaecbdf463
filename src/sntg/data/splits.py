"""Which points keep their labels: a function of the true classes, the number of labels and the seed alone."""

import numpy as np
import torch
from torch import Tensor

from sntg.errors import UsageError

UNLABELLED = -1


def check_label_count(labels: int, points: int, classes: int) -> None:
    """Refuses a number of labels that cannot be spread evenly over the classes."""
    if labels > points:
        raise UsageError(f"{labels} labels are more than the {points} training points there are")
    if labels < classes:
        raise UsageError(f"{labels} labels leave a class without a label: there are {classes} classes")
    if labels % classes:
        raise UsageError(
            f"{labels} labels cannot be spread evenly over {classes} classes: take a multiple of {classes}"
        )


def balanced_split(y: Tensor, labels: int, classes: int, seed: int) -> Tensor:
    """The classes y with all but `labels` of them hidden as -1; each class keeps as many labels as any other.

    >>> balanced_split(torch.tensor([0, 0, 1, 1]), labels=4, classes=2, seed=0)
    tensor([0, 0, 1, 1])
    """
    check_label_count(labels, len(y), classes)
    rng = np.random.default_rng([seed, 0x5917])  # a stream of its own: data drawn with the same seed shares nothing
    kept = torch.full_like(y, UNLABELLED)
    for c in range(classes):
        members = np.flatnonzero(y.numpy() == c)
        if len(members) < labels // classes:
            raise UsageError(
                f"class {c} has {len(members)} points, fewer than the {labels // classes} labels it should keep"
            )
        kept[torch.from_numpy(rng.permutation(members)[: labels // classes])] = c
    return kept
