"""Which points keep their labels."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sntg.data import UNLABELLED, balanced_split, check_label_count
from sntg.errors import UsageError


def classes_of(counts: list[int], seed: int = 0) -> torch.Tensor:
    y = np.repeat(np.arange(len(counts)), counts)
    return torch.from_numpy(np.random.default_rng(seed).permutation(y))


@given(st.lists(st.integers(5, 30), min_size=2, max_size=6), st.integers(1, 5), st.integers(0, 1000))
def test_each_class_keeps_its_share_of_true_labels(counts, each, seed):
    y = classes_of(counts, seed)
    kept = balanced_split(y, each * len(counts), len(counts), seed)
    labelled = kept != UNLABELLED
    assert torch.equal(kept[labelled], y[labelled])  # no label is wrong
    assert kept[labelled].bincount(minlength=len(counts)).tolist() == [each] * len(counts)
    assert kept.shape == y.shape


def test_the_true_classes_are_left_as_they_were():
    y = classes_of([10, 10])
    before = y.clone()
    balanced_split(y, 4, 2, seed=0)
    assert torch.equal(y, before)


def test_it_depends_on_classes_number_and_seed_alone():
    y = classes_of([50, 50, 50])
    first = balanced_split(y, 12, 3, seed=4)
    torch.manual_seed(99)
    np.random.seed(99)
    assert torch.equal(balanced_split(y.clone(), 12, 3, seed=4), first)


def test_different_seeds_choose_different_points():
    y = classes_of([100, 100])
    splits = {tuple((balanced_split(y, 10, 2, seed) >= 0).nonzero()[:, 0].tolist()) for seed in range(20)}
    assert len(splits) == 20


def test_every_point_is_as_likely_as_any_other():
    y = classes_of([10, 10])
    times = sum((balanced_split(y, 4, 2, seed) >= 0).int() for seed in range(2000))
    np.testing.assert_allclose(times / 2000, 0.2, atol=0.045)  # five deviations of a share of 2000


def test_all_labels_can_be_kept():
    y = classes_of([6, 6])
    assert torch.equal(balanced_split(y, 12, 2, seed=0), y)


@pytest.mark.parametrize(
    ("labels", "points", "classes", "message"),
    [
        (30, 20, 10, "30 labels are more than the 20 training points"),
        (12, 100, 10, "12 labels cannot be spread evenly over 10 classes: take a multiple of 10"),
        (5, 100, 10, "5 labels leave a class without a label: there are 10 classes"),
        (0, 100, 10, "leave a class without a label"),
        (-10, 100, 10, "leave a class without a label"),
    ],
)
def test_a_number_that_cannot_be_spread_evenly_is_refused(labels, points, classes, message):
    with pytest.raises(UsageError, match=message):
        check_label_count(labels, points, classes)
    with pytest.raises(UsageError, match=message):
        balanced_split(torch.arange(points) % classes, labels, classes, seed=0)


def test_a_class_too_small_for_its_share_is_refused_by_name():
    with pytest.raises(UsageError, match="class 1 has 3 points, fewer than the 5 labels it should keep"):
        balanced_split(classes_of([20, 3]), 10, 2, seed=0)


@pytest.mark.parametrize("labels", [10, 100])
def test_numbers_that_can_be_are_accepted(labels):
    check_label_count(labels, points=100, classes=10)
