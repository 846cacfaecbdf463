"""Whitening against its formulas in NumPy float64."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from whitening_fixtures import FITTED, SHAPE, dataset, images, rows

from sntg.data import whitening
from sntg.data.digits import digits
from sntg.data.whitening import WHITENINGS, normalise, normalise_contrast, whiten
from sntg.errors import UsageError

pytestmark = pytest.mark.usefixtures("cache")


def gcn(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(1, keepdims=True)
    return 55 * centred / np.sqrt((centred**2).sum(1, keepdims=True))


PREPARED = {"zca": lambda x: x / 255, "gcn-zca": gcn, "scale-zca": lambda x: (x - 127.5) / 255}
SCALES = {
    "zca": lambda S: 1 / np.sqrt(S + 1e-5),
    "gcn-zca": lambda S: 1 / np.sqrt(S + 0.1),
    "scale-zca": lambda S: 1 / np.sqrt(S) + 1e-6,
}


def zca_reference(name: str, train: torch.Tensor, test: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Both parts by the formula, with the training part's mean and covariance over N."""
    x, other = PREPARED[name](rows(train)), PREPARED[name](rows(test))
    mean = x.mean(0)
    S, U = np.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    matrix = U @ np.diag(SCALES[name](S.clip(0))) @ U.T
    return (x - mean) @ matrix, (other - mean) @ matrix


# ----------------------------------------------------------------------------------------------------- the formulas


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("chunk", [1000, 64])
def test_both_parts_are_whitened_by_the_training_parts_statistics(name, chunk, monkeypatch):
    monkeypatch.setattr(whitening, "CHUNK", chunk)
    data = dataset()
    done = whiten(data, name)
    train, test = zca_reference(name, data.train_x, data.test_x)
    np.testing.assert_allclose(rows(done.train_x), train, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows(done.test_x), test, rtol=1e-6, atol=1e-6)


def test_the_covariance_is_the_identity_where_variances_are_not_small():
    data = dataset()
    x, done = rows(data.train_x) / 255, rows(whiten(data, "zca").train_x)
    S, U = np.linalg.eigh(np.cov(x.T, bias=True))
    covariance = U.T @ np.cov(done.T, bias=True) @ U
    np.testing.assert_allclose(covariance, np.diag(S / (S + 1e-5)), atol=1e-5)
    large = S > 1e-2  # 1000 times the 1e-5
    assert 5 < large.sum() < len(S)
    np.testing.assert_allclose(covariance[np.ix_(large, large)], np.eye(large.sum()), atol=1.1e-3)
    np.testing.assert_allclose(done.mean(0), 0, atol=1e-6)


def test_the_test_images_change_nothing_for_the_training_images():
    first = whiten(dataset(), "zca")
    second = whiten(dataset(test=images(30, 2)), "zca")
    assert torch.equal(first.train_x, second.train_x)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", lambda x: x / 255),
        ("scale", lambda x: (x - 127.5) / 255),
        ("norm", lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)),
    ],
)
def test_whitenings_of_single_pixels_and_images(name, expected):
    data = dataset()
    done = whiten(data, name)
    np.testing.assert_allclose(rows(done.train_x), expected(rows(data.train_x)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows(done.test_x), expected(rows(data.test_x)), rtol=1e-6, atol=1e-6)


def test_the_norm_is_over_channels_and_pixels_together():
    x = np.random.default_rng(0).normal(2.0, 3.0, (4, 3, 5, 6))
    expected = [image - image.mean() for image in x]
    expected = [image / np.sqrt((image**2).mean()) for image in expected]
    np.testing.assert_allclose(normalise(torch.from_numpy(x)), expected, rtol=1e-12)


def test_contrast_normalised_images_have_mean_zero_and_length_55():
    x = normalise_contrast(images(20, 3).double())
    np.testing.assert_allclose(x.mean((1, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(x.square().sum((1, 2, 3)).sqrt(), 55, rtol=1e-12)


@pytest.mark.parametrize("name", WHITENINGS)
def test_the_rest_of_the_dataset_stays(name):
    data = dataset()
    before = data.train_x.clone()
    done = whiten(data, name)
    assert (done.name, done.classes, done.content_hash, done.event) == ("mine", 2, "the hash", SHAPE)
    assert done.train_y is data.train_y
    assert done.test_y is data.test_y
    assert {x.dtype for x in (done.train_x, done.test_x)} == {torch.float32}
    assert {x.device.type for x in (done.train_x, done.test_x)} == {"cpu"}
    assert torch.equal(data.train_x, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", WHITENINGS)
def test_a_cuda_device_gives_the_same(name, monkeypatch, tmp_path):
    on_cpu = whiten(dataset(), name)
    monkeypatch.setenv("SNTG_CACHE", str(tmp_path / "other"))
    on_cuda = whiten(dataset(), name, "cuda")
    assert on_cuda.train_x.device.type == "cpu"
    torch.testing.assert_close(on_cuda.train_x, on_cpu.train_x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(on_cuda.test_x, on_cpu.test_x, rtol=1e-5, atol=1e-5)


def test_a_device_without_float64_leaves_the_work_to_the_cpu():
    assert torch.equal(whiten(dataset(), "zca", "mps").train_x, whiten(dataset(), "zca").train_x)


# ------------------------------------------------------------------------------------------------------- odd images


@pytest.mark.parametrize("name", WHITENINGS)
def test_blank_images_stay_finite(name):
    train, test = images(500, 0), images(70, 1)
    train[3], train[4], test[0] = 0, 255, 7
    done = whiten(dataset(train, test), name)
    if name == "norm":
        assert done.train_x[3:5].abs().max() == done.test_x[0].abs().max() == 0


@pytest.mark.parametrize("name", FITTED)
def test_pixels_that_never_vary_do_not_blow_up(name):
    train, test = images(500, 0), images(70, 1)
    train[:, :, 0, :] = 17
    test[:, :, 0, :] = 20  # in training never seen, so there is no variance to divide by
    done = whiten(dataset(train, test), name)
    assert done.train_x.abs().max() < 30
    if name == "scale-zca":
        np.testing.assert_allclose(done.test_x[:, :, 0, :], 0, atol=1e-5)
        np.testing.assert_allclose(np.cov(rows(done.train_x[:, :, 1:]).T, bias=True), np.eye(90), atol=1e-4)


def test_fewer_images_than_pixels_do_not_blow_up():
    done = whiten(dataset(images(40, 0)), "scale-zca")
    spectrum = np.linalg.eigvalsh(np.cov(rows(done.train_x).T, bias=True))
    np.testing.assert_allclose(spectrum, [0.0] * 69 + [1.0] * 39, atol=1e-4)  # one of 40 goes with the mean
    assert done.test_x.abs().max() < 1e4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_inputs_without_whitening_are_left_alone(dtype):
    x = torch.randn(6, 2, dtype=dtype)
    done = whiten(dataset(x, x), "none")
    assert torch.equal(done.train_x, x.float())


def test_float_images_can_be_normalised_one_by_one():
    data = dataset(images(50, 0).float() / 255, images(9, 1).float() / 255)
    torch.testing.assert_close(whiten(data, "norm").test_x, whiten(dataset(), "norm").test_x[:9])


def test_the_digits_need_no_whitening():
    data = digits(0)
    assert torch.equal(whiten(data, "none").train_x, data.train_x)


# --------------------------------------------------------------------------------------------------------- refusals


def test_an_unknown_whitening_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="unknown whitening 'zac': did you mean 'zca'"):
        whiten(dataset(), "zac")


@pytest.mark.parametrize("name", [n for n in WHITENINGS if n != "none"])
def test_inputs_that_are_no_images_are_refused(name):
    x = torch.randn(6, 2)
    with pytest.raises(UsageError, match=f"mine: whitening '{name}' is for images, .* is \\(2,\\): use 'none'"):
        whiten(dataset(x, x), name)


@pytest.mark.parametrize("name", [*FITTED, "scale"])
def test_float_images_are_refused_where_pixels_are_needed(name):
    data = dataset(images(50, 0).float())
    with pytest.raises(UsageError, match=f"mine: whitening '{name}' takes uint8 pixels, not float32: use 'none' or"):
        whiten(data, name)


# ---------------------------------------------------------------------------------------------------- the real thing

MEASURED = """
import resource, sys, time
from pathlib import Path
import numpy as np
import torch
from sntg.data.image_sets import IMAGE_SETS
from sntg.data.images import read_images
from sntg.data.whitening import whiten

torch.set_num_threads(2)
data = read_images(IMAGE_SETS["cifar10"], Path(sys.argv[1]))
start, before = time.perf_counter(), time.process_time()
data = whiten(data, "zca")
seconds, work = time.perf_counter() - start, time.process_time() - before
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
np.save(sys.argv[2], data.train_x.flatten(1).numpy())
print(seconds, work, peak)
"""


@pytest.mark.slow
def test_zca_of_the_real_cifar10_is_right_and_within_its_time_and_memory(real_data, tmp_path):
    """Fitted and applied in 90 s and 4 GiB on two cores; the covariance is the identity where S >> 1e-5.

    The time is the cores' own, which other programs beside it hardly change: 180 s of two cores together.
    """
    process = subprocess.run(
        [sys.executable, "-c", MEASURED, real_data, tmp_path / "x.npy"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, work, peak = map(float, process.stdout.split())
    print(f"ZCA of CIFAR-10: {seconds:.0f} s, {work:.0f} s of all cores, {peak / 2**30:.2f} GiB at most")
    records = [np.fromfile(real_data / f"cifar-10-batches-bin/data_batch_{i}.bin", np.uint8) for i in range(1, 6)]
    pixels = np.concatenate(records).reshape(-1, 3073)[:, 1:]
    x = pixels / 255.0
    S, U = np.linalg.eigh(np.cov(x, rowvar=False, bias=True))
    done = np.load(tmp_path / "x.npy")
    along = done.astype(np.float64) @ U
    covariance = along.T @ along / len(along)
    np.testing.assert_allclose(covariance, np.diag(S / (S + 1e-5)), atol=2e-5)
    large = S > 1e-2
    assert large.sum() > 100
    np.testing.assert_allclose(covariance[np.ix_(large, large)], np.eye(large.sum()), atol=1.1e-3)
    few = (x[:100] - x.mean(0)) @ U / np.sqrt(S + 1e-5) @ U.T
    np.testing.assert_allclose(done[:100], few, atol=1e-4)
    assert peak <= 4 * 2**30
    assert work <= 2 * 90
