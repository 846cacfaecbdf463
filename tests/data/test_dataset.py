"""What every dataset is checked for, and the catalogue's word about each."""

import pytest
import torch
from real_data import SETS

from sntg.data import CATALOGUE, IMAGE_SETS, Dataset, entry, load_dataset
from sntg.data.images import find
from sntg.errors import UsageError


def make(**changes) -> Dataset:
    parts = {
        "name": "mine",
        "train_x": torch.randn(6, 2),
        "train_y": torch.tensor([0, 1, 2, 0, 1, 2]),
        "test_x": torch.randn(3, 2),
        "test_y": torch.tensor([0, 1, 2]),
        "classes": 3,
    }
    return Dataset(**{**parts, **changes})


def test_a_sound_dataset_passes():
    assert make().event == (2,)
    assert make(train_x=torch.randn(6, 1, 16, 16)).event == (1, 16, 16)


@pytest.mark.parametrize(("part", "word"), [("train", "training"), ("test", "test")])
def test_a_dataset_with_an_empty_part_is_refused(part, word):
    with pytest.raises(UsageError, match=f"mine: .*{word}"):
        make(**{f"{part}_x": torch.randn(0, 2), f"{part}_y": torch.zeros(0, dtype=torch.long)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("part", "word"), [("train_x", "training"), ("test_x", "test")])
def test_values_that_are_no_numbers_are_refused(part, word, value):
    x = getattr(make(), part).clone()
    x[1, 0] = value
    with pytest.raises(UsageError, match=f"mine: the {word} inputs hold NaN or infinite values"):
        make(**{part: x})


@pytest.mark.parametrize("wrong", [-1, 3])
@pytest.mark.parametrize(("part", "word"), [("train_y", "training"), ("test_y", "test")])
def test_classes_out_of_range_are_refused(part, word, wrong):
    y = getattr(make(), part).clone()
    y[0] = wrong
    with pytest.raises(UsageError, match=f"mine: {word} classes run from {y.min()} to {y.max()}, not 0 to 2"):
        make(**{part: y})


@pytest.mark.parametrize(("part", "word", "n"), [("train_x", "training", 6), ("test_x", "test", 3)])
def test_lengths_that_disagree_are_refused(part, word, n):
    with pytest.raises(UsageError, match=f"mine: {n - 1} {word} inputs but {n} classes"):
        make(**{part: getattr(make(), part)[1:]})


def assert_the_truth_is_told(name, data):
    line = entry(name)
    assert line.name == data.name == name
    assert (line.points, line.test_points, line.classes) == (len(data.train_y), len(data.test_y), data.classes)
    assert line.event == data.event
    assert line.images == (len(data.event) == 3)
    assert line.pixels == (data.train_x.dtype == torch.uint8)
    assert line.line


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in IMAGE_SETS])
def test_the_catalogue_tells_the_truth(name):
    assert_the_truth_is_told(name, load_dataset(name))


@pytest.mark.parametrize("name", SETS)
def test_the_catalogue_tells_the_truth_about_the_real_sets(name, real_data):
    if find(IMAGE_SETS[name], real_data).missing:
        pytest.skip(f"{name} is not in {real_data}")
    assert_the_truth_is_told(name, load_dataset(name, 0, str(real_data)))


def test_a_dataset_has_the_hash_of_its_content():
    one, again, other = (load_dataset("two-moons", seed).content_hash for seed in (0, 0, 1))
    assert len(one) == 64
    assert one == again != other


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, None])
def test_a_seed_that_nothing_can_be_drawn_with_is_refused(seed):
    with pytest.raises(UsageError, match=f"seed = {seed} is not a whole number"):
        load_dataset("two-moons", seed)


@pytest.mark.parametrize("look_up", [entry, load_dataset])
def test_an_unknown_name_is_answered_with_the_nearest_and_all(look_up):
    with pytest.raises(UsageError, match="unknown dataset 'two-mons': did you mean 'two-moons'") as caught:
        look_up("two-mons")
    assert all(name in str(caught.value) for name in CATALOGUE)
