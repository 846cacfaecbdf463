"""A run's data: read or drawn, checked against the hash it began with, whitened, split, and some points held out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from image_fixtures import small, write_set

from sntg import data as catalogue
from sntg.data import IMAGE_SETS, balanced_split, load_dataset, whiten
from sntg.data.splits import unbalanced_split
from sntg.errors import UsageError
from sntg.training import load_inputs, resolve


def moons(labels=12, **settings):
    return resolve("two-moons", labels, "pi", **settings)


def labelled(inputs):
    return (inputs.labels >= 0).nonzero()[:, 0].tolist()


def test_without_anything_held_out_all_is_the_datasets_own():
    inputs, data = load_inputs(moons(seed=3)), load_dataset("two-moons", 3)
    for part in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(inputs.data, part), getattr(data, part))
    assert inputs.data.content_hash == data.content_hash
    assert torch.equal(inputs.labels, balanced_split(data.train_y, 12, 2, seed=3))
    assert torch.equal(inputs.split.labels, inputs.labels)
    assert len(inputs.split.validation) == 0


def test_the_split_is_the_kind_the_settings_name():
    y = load_dataset("two-moons", 3).train_y
    inputs = load_inputs(moons(13, seed=3, split="unbalanced"))
    assert torch.equal(inputs.labels, unbalanced_split(y, 13, seed=3))


def test_noise_replaces_a_share_of_the_labels_and_no_true_classes():
    clean, noisy = load_inputs(moons(6000)), load_inputs(moons(6000, label_noise=30.0))
    changed = (clean.labels != noisy.labels).sum().item()
    assert 0.13 * 6000 < changed < 0.17 * 6000  # half of 30 % hit the true class
    assert torch.equal(noisy.data.train_y, clean.data.train_y)
    assert torch.equal(noisy.split.labels, noisy.labels)


# --- held out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [12, 4500, "all"])
def test_points_held_out_are_gone_from_training_and_stand_in_for_the_test_set(labels):
    data = load_dataset("two-moons")
    inputs = load_inputs(moons(labels, validation=1500))
    rows = inputs.split.validation
    assert len(set(rows.tolist())) == 1500
    assert torch.equal(inputs.data.test_x, data.train_x[rows])
    assert torch.equal(inputs.data.test_y, data.train_y[rows])
    stays = torch.tensor(sorted(set(range(6000)) - set(rows.tolist())))
    assert torch.equal(inputs.data.train_x, data.train_x[stays])
    assert torch.equal(inputs.data.train_y, data.train_y[stays])
    assert torch.equal(inputs.labels, inputs.split.labels[stays])
    assert (inputs.split.labels[rows] == -1).all()
    kept = inputs.labels >= 0
    assert int(kept.sum()) == (4500 if labels == "all" else labels)
    assert torch.equal(inputs.labels[kept], inputs.data.train_y[kept])


def test_holding_points_out_changes_no_label():
    without, held_out = load_inputs(moons()), load_inputs(moons(validation=1500))
    assert torch.equal(without.split.labels, held_out.split.labels)


# --- an index file ---------------------------------------------------------------------------------------------------


def test_an_index_file_says_which_points_keep_which_label(tmp_path):
    path = tmp_path / "split.txt"
    path.write_text("# index class\n5 1\n17 0\n3 1\n")
    inputs = load_inputs(resolve("two-moons", "all", "pi", split_file=str(path)))
    assert labelled(inputs) == [3, 5, 17]
    assert inputs.labels[[3, 5, 17]].tolist() == [1, 1, 0]


def test_an_index_files_points_are_never_held_out(tmp_path):
    path = tmp_path / "split.txt"
    path.write_text("\n".join(map(str, range(100))))
    inputs = load_inputs(resolve("two-moons", "all", "pi", split_file=str(path), validation=5900))
    assert labelled(inputs) == list(range(100))
    assert inputs.split.validation.tolist() == list(range(100, 6000))


def test_an_index_file_of_all_points_leaves_those_that_are_not_held_out(tmp_path):
    path = tmp_path / "split.txt"
    path.write_text("\n".join(map(str, range(6000))))
    config = resolve("two-moons", "all", "pi", split_file=str(path), validation=1000)
    inputs = load_inputs(config)
    assert config.labels == len(inputs.labels) == 5000
    assert (inputs.labels >= 0).all()


# --- image sets ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with small MNIST, SVHN and CIFAR-10 of generated content, which the catalogue then describes."""
    monkeypatch.setenv("SNTG_CACHE", str(tmp_path / "cache"))
    for name in ("mnist", "svhn", "cifar10"):
        images = small(IMAGE_SETS[name])
        write_set(images, tmp_path / images.folders[0])
        monkeypatch.setitem(catalogue.CATALOGUE, name, catalogue._entry(images))
    return tmp_path


def config_of(dataset, folder, **settings):
    # Batches of the small set's size, whatever the recipe says.
    settings = {"batch": 10, "whitening": "norm"} | settings
    return resolve(dataset, 10, "pi", data=str(folder), **settings)


@pytest.mark.parametrize("whitening", ["none", "norm", "zca", "gcn-zca", "scale", "scale-zca"])
@pytest.mark.parametrize("dataset", ["mnist", "svhn", "cifar10"])
def test_images_are_whitened_as_the_settings_say(folder, dataset, whitening):
    inputs = load_inputs(config_of(dataset, folder, whitening=whitening))
    pixels = load_dataset(dataset, 0, str(folder))
    assert pixels.train_x.dtype == torch.uint8
    expected = whiten(pixels, whitening)
    assert inputs.data.train_x.dtype == torch.float32
    assert torch.equal(inputs.data.train_x, expected.train_x)
    assert torch.equal(inputs.data.test_x, expected.test_x)
    assert inputs.data.content_hash == pixels.content_hash


def test_runs_share_what_is_the_same_again_and_nothing_else(folder):
    whitened = {}
    settings = [{"seed": 0}, {"seed": 1}, {"seed": 1, "whitening": "none"}]
    first, second, third = (load_inputs(config_of("cifar10", folder, **s), whitened) for s in settings)
    assert first.data is second.data
    assert not torch.equal(first.labels, second.labels)
    assert torch.equal(third.data.train_x, load_inputs(config_of("cifar10", folder, **settings[2])).data.train_x)
    assert load_inputs(moons(seed=0), whitened).data is not load_inputs(moons(seed=1), whitened).data


def test_the_norm_is_each_images_own(folder):
    x = load_inputs(config_of("cifar10", folder)).data.train_x.double().numpy()
    np.testing.assert_allclose(x.mean((1, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose((x**2).mean((1, 2, 3)), 1, rtol=1e-5)


def test_held_out_images_are_whitened_with_the_rest(folder):
    full = load_inputs(config_of("cifar10", folder, whitening="zca"))
    held_out = load_inputs(config_of("cifar10", folder, whitening="zca", validation=20))
    rows = held_out.split.validation
    assert torch.equal(held_out.data.test_x, full.data.train_x[rows])
    assert len(held_out.data.train_x) == len(full.data.train_x) - 20


def test_the_folder_is_the_one_named(folder):
    with pytest.raises(UsageError, match="cifar10 was not found"):
        load_inputs(config_of("cifar10", folder / "elsewhere"))


# --- the data's hash -------------------------------------------------------------------------------------------------


def test_data_of_the_same_hash_are_taken(folder):
    for config in (moons(), config_of("svhn", folder)):
        known = load_inputs(config).data.content_hash
        assert len(known) == 64
        assert load_inputs(replace(config, data_hash=known)).data.content_hash == known


def test_data_that_changed_since_the_run_began_are_refused_before_anything_is_done_with_them(folder):
    config = config_of("svhn", folder, whitening="zca")
    began_with = load_dataset("svhn", 0, str(folder)).content_hash
    images = small(IMAGE_SETS["svhn"])
    write_set(images, folder / images.folders[0], seed=1)
    now = load_dataset("svhn", 0, str(folder)).content_hash
    assert now != began_with
    words = f"svhn is not what the run was started with: its content has the hash {now[:12]}..., not {began_with[:12]}"
    with pytest.raises(UsageError, match=words):
        load_inputs(replace(config, data_hash=began_with))
    assert not (folder / "cache").exists()


def test_points_drawn_with_another_seed_are_other_data():
    known = load_inputs(moons(seed=0)).data.content_hash
    with pytest.raises(UsageError, match="two-moons is not what the run was started with"):
        load_inputs(replace(moons(seed=1), data_hash=known))
