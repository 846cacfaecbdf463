"""Which points keep their labels: a function of the true classes, the number of labels and the seed alone.

Each kind of draw has a random stream of its own, so that holding points out or corrupting labels changes nothing else,
and data drawn with the same seed share nothing with the split.
"""

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from sntg.errors import UsageError, unknown

UNLABELLED = -1
BALANCED_STREAM, UNBALANCED_STREAM, NOISE_STREAM, VALIDATION_STREAM = 0x5917, 0x5918, 0x5919, 0x591A

SPLITS: dict[str, str] = {
    "balanced": "as many labels in each class as in any other",
    "unbalanced": "labels drawn from all points alike, whatever their class (VAT's SVHN)",
}


@dataclass(frozen=True)
class Split:
    """labels (N,): what training sees of every training point, -1 where hidden; validation: the held-out rows, sorted.

    Held-out rows are among the hidden ones.
    """

    labels: Tensor
    validation: Tensor

    @property
    def content_hash(self) -> str:
        """The sha256 of both.

        >>> Split(torch.tensor([0, -1]), torch.tensor([1])).content_hash[:8]
        '059a6ae5'
        """
        parts = (part.numpy(force=True).astype("<i8").tobytes() for part in (self.labels, self.validation))
        return sha256(b"".join(parts)).hexdigest()


def check_label_count(labels: int, points: int, classes: int) -> None:
    """Refuses a number of labels that cannot be spread evenly over the classes and is not all of them.

    >>> check_label_count(12, points=6000, classes=2)
    """
    if labels > points:
        raise UsageError(f"{labels} labels are more than the {points} training points there are")
    if labels == points:
        return
    if labels < classes:
        raise UsageError(f"{labels} labels leave a class without a label: there are {classes} classes")
    if labels % classes:
        raise UsageError(
            f"{labels} labels cannot be spread evenly over {classes} classes: take a multiple of {classes}"
        )


def balanced_split(y: Tensor, labels: int, classes: int, seed: int) -> Tensor:
    """The classes y with all but `labels` of them hidden as -1; each class keeps as many labels as any other.

    More labels keep those that fewer would. All labels are all of them, however many each class has.

    >>> balanced_split(torch.tensor([0, 0, 1, 1]), labels=4, classes=2, seed=0)
    tensor([0, 0, 1, 1])
    """
    check_label_count(labels, len(y), classes)
    if labels == len(y):
        return y.clone()
    rng = np.random.default_rng([seed, BALANCED_STREAM])
    kept = torch.full_like(y, UNLABELLED)
    for c in range(classes):
        members = np.flatnonzero(y.numpy() == c)
        if len(members) < labels // classes:
            raise UsageError(
                f"class {c} has {len(members)} points, fewer than the {labels // classes} labels it should keep"
            )
        kept[torch.from_numpy(rng.permutation(members)[: labels // classes])] = c
    return kept


def unbalanced_split(y: Tensor, labels: int, seed: int) -> Tensor:
    """The classes y with all but the first `labels` of a permutation of all points hidden as -1.

    >>> (unbalanced_split(torch.tensor([0, 0, 1, 1]), labels=3, seed=0) >= 0).sum()
    tensor(3)
    """
    if not 1 <= labels <= len(y):
        raise UsageError(f"{labels} labels cannot be kept of {len(y)} training points: take 1 to {len(y)}")
    rows = torch.from_numpy(np.random.default_rng([seed, UNBALANCED_STREAM]).permutation(len(y))[:labels])
    kept = torch.full_like(y, UNLABELLED)
    kept[rows] = y[rows]
    return kept


def make_split(
    y: Tensor,
    labels: int,
    classes: int,
    seed: int,
    kind: str = "balanced",
    noise: float = 0.0,
    validation: int = 0,
) -> Split:
    """Which of the training points, of the true classes y, keep a label, and which are held out.

    labels: how many; as many as there are points, or as remain when some are held out, are all of them.
    noise: the percentage of the labels that is replaced by uniformly random classes.
    validation: how many points are held out; they are drawn from those without a label, or, where all are labelled,
    from all and lose theirs.

    >>> split = make_split(torch.tensor([0, 0, 0, 1, 1, 1]), labels=2, classes=2, seed=0, validation=3)
    >>> split.labels
    tensor([ 0, -1, -1, -1,  1, -1])
    >>> split.validation
    tensor([1, 3, 5])
    """
    if kind not in SPLITS:
        raise unknown("split", kind, SPLITS)
    if not 0 <= noise <= 100:
        raise UsageError(f"label noise is {noise} %: it goes from 0 to 100")
    if labels in (len(y), len(y) - validation):
        kept = y.clone()
    else:
        kept = balanced_split(y, labels, classes, seed) if kind == "balanced" else unbalanced_split(y, labels, seed)
    split = hold_out(kept, validation, seed)
    return Split(corrupt(split.labels, noise, classes, seed), split.validation)


def hold_out(labels: Tensor, validation: int, seed: int) -> Split:
    """The split that holds out `validation` of the rows without a label (-1), or, where all have one, of all rows.

    >>> hold_out(torch.tensor([0, 1, -1, -1, -1]), 2, seed=0).validation
    tensor([2, 4])
    """
    unlabelled = np.flatnonzero(labels.numpy() == UNLABELLED)
    candidates = unlabelled if len(unlabelled) else np.arange(len(labels))
    most = len(unlabelled) or len(labels) - 1
    if not 0 <= validation <= most:
        raise UsageError(f"{validation} of {len(labels)} training points cannot be held out: take 0 to {most}")
    rows = np.random.default_rng([seed, VALIDATION_STREAM]).permutation(candidates)[:validation]
    held_out = torch.from_numpy(np.sort(rows))
    kept = labels.clone()
    kept[held_out] = UNLABELLED
    return Split(kept, held_out)


def corrupt(labels: Tensor, noise: float, classes: int, seed: int) -> Tensor:
    """The labels with `noise` percent of those that are not -1 replaced by uniformly random classes, maybe the true.

    More noise replaces what less would, by the same classes.

    >>> corrupt(torch.tensor([-1, 0, 0, 0, 0]), 50, classes=10, seed=0)
    tensor([-1,  9,  0,  6,  0])
    """
    rng = np.random.default_rng([seed, NOISE_STREAM])
    rows = rng.permutation(np.flatnonzero(labels.numpy() != UNLABELLED))
    replacements = rng.integers(classes, size=len(rows))
    wrong = round(len(rows) * noise / 100)
    noisy = labels.clone()
    noisy[torch.from_numpy(rows[:wrong])] = torch.from_numpy(replacements[:wrong])
    return noisy
