"""The synthetic sets: two moons as scikit-learn draws them, four spins as the recipe says."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons

from sntg.data import Dataset, load_dataset

NAMES = ("two-moons", "four-spins")
# The moments of four spins before standardising: the four arms are one arm turned by quarter circles, so the means are
# zero and both axes have half of E r^2 = E t^2 + 2 * 0.02^2 with t^2 uniform on [0, 1].
SPREAD = np.sqrt((0.5 + 2 * 0.02**2) / 2)


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_two_moons_are_scikit_learns_standardised(seed):
    x, y = make_moons(6000, noise=0.1, random_state=seed)
    data = load_dataset("two-moons", seed)
    np.testing.assert_allclose(data.train_x, (x - x.mean(0)) / x.std(0), rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(data.train_y, y)


@pytest.mark.parametrize("name", NAMES)
def test_coordinates_are_standardised(name):
    x = load_dataset(name, 3).train_x.double().numpy()
    np.testing.assert_allclose(x.mean(0), 0.0, atol=1e-6)
    np.testing.assert_allclose(x.std(0), 1.0, rtol=1e-6)


@pytest.mark.parametrize(("name", "classes"), [("two-moons", 2), ("four-spins", 4)])
def test_classes_are_balanced(name, classes):
    data = load_dataset(name, 0)
    assert data.classes == classes
    assert data.train_y.bincount().tolist() == [6000 // classes] * classes


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_one_set_and_another_seed_another(name):
    assert torch.equal(load_dataset(name, 5).train_x, load_dataset(name, 5).train_x)
    assert not torch.isclose(load_dataset(name, 5).train_x, load_dataset(name, 6).train_x).all(-1).any()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_that_is_random_matters(name):
    first = load_dataset(name, 5)
    torch.manual_seed(99)
    np.random.seed(99)
    assert torch.equal(first.train_x, load_dataset(name, 5).train_x)


@pytest.mark.parametrize("name", NAMES)
def test_the_test_points_are_the_training_points(name):
    data = load_dataset(name, 0)
    assert torch.equal(data.train_x, data.test_x)
    assert torch.equal(data.train_y, data.test_y)
    assert data.train_x.dtype == torch.float32
    assert data.train_y.dtype == torch.int64


def onto_arms(data: Dataset, turn: float = np.pi) -> tuple[np.ndarray, np.ndarray]:
    """Each point's distance to the arm of its class, and the t of the nearest point of that arm."""
    t = np.linspace(0, 1, 1001)
    distances, nearest = np.zeros(6000), np.zeros(6000)
    for c in range(4):
        rows = (data.train_y == c).numpy()
        angle = c * np.pi / 2 + turn * t
        arm = t[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
        away = np.linalg.norm(SPREAD * data.train_x[rows].double().numpy()[:, None] - arm, axis=-1)
        distances[rows], nearest[rows] = away.min(1), t[away.argmin(1)]
    return distances, nearest


@pytest.mark.parametrize("seed", [0, 1])
def test_four_spins_lie_on_their_arms_but_for_the_noise(seed):
    distances, nearest = onto_arms(load_dataset("four-spins", seed))
    inner = (nearest > 0.1) & (nearest < 0.95)  # at the ends the nearest point is not straight across
    # Across an arm one of the noise's two coordinates is seen: its RMS is 0.02, plus what standardising by the
    # sample's own moments instead of SPREAD moves the points by, about 0.005.
    assert np.sqrt((distances[inner] ** 2).mean()) == pytest.approx(0.02, abs=0.0025)
    assert distances.max() < 0.12


def test_the_arms_turn_half_a_circle_counter_clockwise():
    """The test above can tell: with another turn the same points lie off the arms."""
    data = load_dataset("four-spins", 0)
    for turn in (-np.pi, 0.9 * np.pi, 1.1 * np.pi):
        distances, _ = onto_arms(data, turn)
        assert np.sqrt((distances**2).mean()) > 0.04


def test_four_spins_are_uniform_in_the_square_of_t():
    """t = sqrt(u), which spreads the points evenly over the disc instead of crowding the centre."""
    _, nearest = onto_arms(load_dataset("four-spins", 0))
    t = np.linspace(0, 1, 101)
    distribution = (nearest[:, None] <= t).mean(0)
    np.testing.assert_allclose(distribution, t**2, atol=0.03)
