"""Which points keep their labels."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import loadmat

from sntg.data import SPLITS, UNLABELLED, Split, balanced_split, check_label_count, make_split
from sntg.data.splits import corrupt
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


@pytest.mark.parametrize("counts", [[6, 6], [6, 1, 4]])
def test_all_labels_can_be_kept(counts):
    y = classes_of(counts)
    assert torch.equal(balanced_split(y, len(y), len(counts), seed=0), y)


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


# --------------------------------------------------------------------------- other splits, noise, held-out points

each_kind = pytest.mark.parametrize("kind", SPLITS)
seeds = st.integers(0, 1000)


def labelled(split: Split) -> list[int]:
    return (split.labels != UNLABELLED).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("kind", "labels", "expected", "validation"),
    [
        ("balanced", 6, [-1, 1, -1, 2, 1, 2, -1, -1, 2, 2, -1, -1], [2, 10, 11]),
        ("unbalanced", 6, [0, -1, -1, 2, 1, 2, -1, 1, -1, -1, 2, -1], [2, 9, 11]),
        ("balanced", 12, [0, 1, 2, 0, 1, -1, 0, 1, 2, 1, -1, -1], [5, 10, 11]),
    ],
)
def test_a_split_is_the_same_on_every_platform_and_in_every_version(kind, labels, expected, validation):
    split = make_split(torch.arange(12) % 3, labels, 3, seed=7, kind=kind, noise=50, validation=3)
    assert split.labels.tolist() == expected
    assert split.validation.tolist() == validation


@given(st.lists(st.integers(5, 30), min_size=2, max_size=6), st.integers(1, 4), seeds)
def test_a_balanced_split_is_balanced_split(counts, each, seed):
    y = classes_of(counts, seed)
    split = make_split(y, each * len(counts), len(counts), seed)
    assert torch.equal(split.labels, balanced_split(y, each * len(counts), len(counts), seed))
    assert len(split.validation) == 0


@given(st.integers(1, 59), seeds)
def test_an_unbalanced_split_keeps_any_number_of_true_labels(labels, seed):
    y = classes_of([40, 15, 5], seed)
    split = make_split(y, labels, 3, seed, kind="unbalanced")
    rows = labelled(split)
    assert len(rows) == labels
    assert torch.equal(split.labels[rows], y[rows])


def test_an_unbalanced_split_follows_the_classes_shares():
    y = classes_of([80, 20])
    counts = sum(
        make_split(y, 10, 2, seed, kind="unbalanced").labels.add(1).bincount(minlength=3) for seed in range(500)
    )
    np.testing.assert_allclose(counts[1:] / 5000, [0.8, 0.2], atol=0.03)


@each_kind
@given(seed=seeds)
def test_more_labels_keep_those_of_fewer(kind, seed):
    y = classes_of([20, 20, 20], seed)
    fewer, more = (labelled(make_split(y, labels, 3, seed, kind=kind)) for labels in (6, 15))
    assert set(fewer) < set(more)


@each_kind
@given(seed=seeds, noise=st.floats(0, 100), validation=st.integers(0, 48))
def test_neither_noise_nor_validation_changes_who_is_labelled(kind, seed, noise, validation):
    y = classes_of([20, 20, 20], seed)
    plain = make_split(y, 9, 3, seed, kind=kind)
    split = make_split(y, 9, 3, seed, kind=kind, noise=noise, validation=validation)
    noisy = make_split(y, 9, 3, seed, kind=kind, noise=noise)
    assert labelled(split) == labelled(plain)
    assert torch.equal(split.labels, noisy.labels)


@each_kind
@given(seed=seeds, validation=st.integers(0, 48), noise=st.sampled_from([0.0, 30.0]))
def test_held_out_points_are_those_asked_for_and_have_no_label(kind, seed, validation, noise):
    split = make_split(classes_of([20, 20, 20], seed), 9, 3, seed, kind=kind, noise=noise, validation=validation)
    rows = split.validation.tolist()
    assert rows == sorted(set(rows))
    assert len(rows) == validation
    assert not set(rows) & set(labelled(split))
    assert split.labels.dtype == split.validation.dtype == torch.int64


@each_kind
@given(seed=seeds, validation=st.integers(1, 30))
def test_where_all_are_labelled_the_held_out_points_lose_their_label(kind, seed, validation):
    y = classes_of([20, 7, 4], seed)  # 31: not a multiple of 3, and no class has a third
    whole = make_split(y, 31, 3, seed, kind=kind, validation=validation)
    rest = make_split(y, 31 - validation, 3, seed, kind=kind, validation=validation)
    assert torch.equal(whole.labels, rest.labels)
    assert torch.equal(whole.validation, rest.validation)
    assert len(whole.validation) == validation
    assert sorted(labelled(whole) + whole.validation.tolist()) == list(range(31))
    assert torch.equal(whole.labels[labelled(whole)], y[labelled(whole)])


@each_kind
def test_all_labels_need_not_be_balanced(kind):
    y = classes_of([20, 7, 4])
    split = make_split(y, 31, 3, seed=0, kind=kind)
    assert torch.equal(split.labels, y)
    assert split.labels is not y


@given(st.floats(0, 100), seeds)
def test_noise_replaces_its_share_of_the_labels_by_classes_that_exist(noise, seed):
    before = make_split(classes_of([50, 50], seed), 20, 2, seed).labels
    after = corrupt(before, noise, 1000, seed)  # of so many classes hardly one is hit by chance
    changed = (before != after).sum()
    assert round(20 * noise / 100) - 1 <= changed <= round(20 * noise / 100)
    assert ((after == UNLABELLED) == (before == UNLABELLED)).all()
    assert after.max() < 1000


def test_random_classes_are_uniform_and_may_be_the_true_one():
    y = torch.zeros(20000, dtype=torch.int64)
    counts = make_split(y, 20000, 10, seed=0, noise=100).labels.bincount(minlength=10)
    np.testing.assert_allclose(counts / 20000, 0.1, atol=0.011)  # five deviations


@given(seeds)
def test_more_noise_replaces_what_less_would(seed):
    y = classes_of([50, 50], seed)
    clean, little, much = (make_split(y, 100, 2, seed, noise=noise).labels for noise in (0.0, 20.0, 60.0))
    assert torch.equal(much[clean != little], little[clean != little])


def test_each_kind_of_draw_has_a_stream_of_its_own():
    y = classes_of([50, 50])
    split = make_split(y, 100, 2, seed=3, noise=30, validation=30)
    drawn = {tuple(labelled(make_split(y, 30, 2, 3, kind=kind))) for kind in SPLITS} | {
        tuple(split.validation.tolist())
    }
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "balnced"}, "unknown split 'balnced': did you mean 'balanced'"),
        ({"noise": -1.0}, "label noise is -1.0 %: it goes from 0 to 100"),
        ({"noise": 100.5}, "label noise is 100.5 %: it goes from 0 to 100"),
        ({"noise": float("nan")}, "label noise is nan %"),
        ({"validation": -1}, "-1 of 40 training points cannot be held out: take 0 to 30"),
        ({"validation": 31}, "31 of 40 training points cannot be held out: take 0 to 30"),
        ({"labels": 40, "validation": 40}, "40 of 40 training points cannot be held out: take 0 to 39"),
        ({"labels": 11}, "11 labels cannot be spread evenly over 2 classes"),
        ({"labels": 41}, "41 labels are more than the 40 training points"),
        ({"labels": 24}, "class 1 has 10 points, fewer than the 12 labels it should keep"),
        ({"labels": 0, "kind": "unbalanced"}, "0 labels cannot be kept of 40 training points: take 1 to 40"),
        ({"labels": 41, "kind": "unbalanced"}, "41 labels cannot be kept of 40 training points: take 1 to 40"),
    ],
)
def test_what_cannot_be_split_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        make_split(**({"y": classes_of([30, 10]), "labels": 10, "classes": 2, "seed": 0} | changes))


# ---------------------------------------------------------------------------------------------------- real labels


def test_4000_labels_of_the_real_cifar10(real_data):
    files = [real_data / f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    y = torch.from_numpy(np.concatenate([np.fromfile(f, np.uint8)[::3073] for f in files]).astype(np.int64))
    split = make_split(y, 4000, 10, seed=0, validation=5000)
    rows = labelled(split)
    assert split.labels[rows].bincount().tolist() == [400] * 10
    assert torch.equal(split.labels[rows], y[rows])
    assert len(set(rows) | set(split.validation.tolist())) == 9000


def test_the_real_svhn_unbalanced_and_with_all_labels(real_data):
    y = torch.from_numpy(loadmat(real_data / "svhn/train_32x32.mat", variable_names=["y"])["y"][:, 0] % 10).long()
    split = make_split(y, 1000, 10, seed=0, kind="unbalanced")
    rows = labelled(split)
    assert len(rows) == 1000
    assert torch.equal(split.labels[rows], y[rows])
    shares = split.labels[rows].bincount(minlength=10) / 1000
    np.testing.assert_allclose(shares, y.bincount() / len(y), atol=0.05)
    assert shares[1] > 1.5 * shares[9]  # twice to three times as many ones as nines, as in the whole set
    noisy = make_split(y, 73257, 10, seed=0, noise=20).labels
    assert (noisy != y).float().mean() == pytest.approx(0.2 * 0.9, abs=0.005)
