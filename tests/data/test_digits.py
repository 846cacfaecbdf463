"""scikit-learn's digits, enlarged and normalised image by image, a third of each class held out."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sntg.data import load_dataset
from sntg.data.digits import enlarge


def bilinear_twice(image: np.ndarray) -> np.ndarray:
    """Bilinear interpolation at the centres of pixels half as large: 3/4 of the nearest and 1/4 of the next."""
    for axis in (0, 1):
        image = np.moveaxis(image, axis, 0)
        before = np.concatenate([image[:1], image[:-1]])
        after = np.concatenate([image[1:], image[-1:]])
        image = np.stack([0.75 * image + 0.25 * before, 0.75 * image + 0.25 * after], 1).reshape(-1, *image.shape[1:])
        image = np.moveaxis(image, 0, axis)
    return image


@pytest.fixture(scope="module")
def prepared() -> tuple[np.ndarray, np.ndarray]:
    """All 1797 images as the network should see them, by NumPy, and their classes."""
    images, y = load_digits(return_X_y=True)
    x = np.stack([bilinear_twice(image.reshape(8, 8)) for image in images])
    x = x - x.mean((1, 2), keepdims=True)
    return x / np.sqrt((x**2).mean((1, 2), keepdims=True)), y


@pytest.fixture(scope="module")
def sources(prepared) -> tuple[np.ndarray, np.ndarray]:
    """Which of the 1797 images each training and each test image is."""
    data = load_dataset("digits")
    flat = prepared[0].reshape(1797, -1)
    found = []
    for x in (data.train_x, data.test_x):
        x = x.double().numpy().reshape(len(x), -1)
        squared = (x**2).sum(1)[:, None] + (flat**2).sum(1) - 2 * x @ flat.T
        assert squared.min(1).max() < 1e-6  # every image is one of scikit-learn's
        found.append(squared.argmin(1))
    return found[0], found[1]


def test_sizes():
    data = load_dataset("digits")
    assert data.train_x.shape == (1198, 1, 16, 16)
    assert data.test_x.shape == (599, 1, 16, 16)
    assert data.classes == 10


def test_training_and_test_images_are_disjoint_and_all_of_them(sources):
    assert sorted(np.concatenate(sources).tolist()) == list(range(1797))


def test_every_image_keeps_its_class(sources, prepared):
    data = load_dataset("digits")
    np.testing.assert_array_equal(data.train_y, prepared[1][sources[0]])
    np.testing.assert_array_equal(data.test_y, prepared[1][sources[1]])


def test_a_third_of_each_class_is_held_out(prepared):
    held_out, all_of_it = load_dataset("digits").test_y.bincount().numpy(), np.bincount(prepared[1])
    assert np.abs(held_out - all_of_it / 3).max() <= 1


def test_the_split_is_the_same_for_every_seed():
    first, second = load_dataset("digits", 0), load_dataset("digits", 1)
    assert torch.equal(first.train_x, second.train_x)
    assert torch.equal(first.test_x, second.test_x)
    assert torch.equal(first.test_y, second.test_y)


def test_the_images_are_not_in_the_order_of_the_file(sources):
    assert (np.diff(sources[0]) < 0).any()


def test_every_image_has_mean_zero_and_root_mean_square_one():
    x = load_dataset("digits").train_x.double()
    np.testing.assert_allclose(x.mean((1, 2, 3)), 0.0, atol=1e-6)
    np.testing.assert_allclose(x.square().mean((1, 2, 3)), 1.0, rtol=1e-5)


def test_enlarging_is_bilinear():
    image = np.random.default_rng(0).normal(size=(8, 8))
    enlarged = enlarge(torch.from_numpy(image)[None, None])[0, 0]
    np.testing.assert_allclose(enlarged, bilinear_twice(image), rtol=1e-12, atol=1e-14)
