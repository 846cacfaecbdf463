"""Image sets from disk: the real ones, generated ones of official size, and small ones that something is wrong with."""

import gzip
import hashlib
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from image_fixtures import content, idx, small, write_piece, write_set

from sntg.data.dataset import content_hash
from sntg.data.image_sets import IMAGE_SETS, ImageSet
from sntg.data.images import find, only_pickled, read_images
from sntg.errors import UsageError

SMALL = {name: small(images) for name, images in IMAGE_SETS.items()}
SVHN_COUNTS = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
SVHN_TEST_COUNTS = [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def written(name: str, folder: Path) -> tuple[ImageSet, Path]:
    """A small set on disk and the folder its files are in."""
    place = folder / SMALL[name].folders[0]
    write_set(SMALL[name], place)
    return SMALL[name], place


def refusal(images: ImageSet, folder: Path) -> str:
    with pytest.raises(UsageError) as refused:
        read_images(images, folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- the real ones ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "counts", "test_counts", "means"),
    [
        ("mnist", MNIST_COUNTS, MNIST_TEST_COUNTS, [0.1307]),
        ("cifar10", [5000] * 10, [1000] * 10, [0.4914, 0.4822, 0.4465]),
        ("svhn", SVHN_COUNTS, SVHN_TEST_COUNTS, [0.4377, 0.4438, 0.4728]),
    ],
)
def test_the_real_set(real_data, name, counts, test_counts, means):
    images = IMAGE_SETS[name]
    if find(images, real_data).missing:
        pytest.skip(f"{name} is not in {real_data}")
    data = read_images(images, real_data)
    assert data.train_y.bincount().tolist() == counts == images.class_counts
    assert data.test_y.bincount().tolist() == test_counts == images.test_class_counts
    assert data.train_x.shape == (sum(counts), *images.shape)
    assert data.test_x.shape == (sum(test_counts), *images.shape)
    assert data.train_x.dtype == data.test_x.dtype == torch.uint8
    assert data.train_y.dtype == torch.int64
    found = data.train_x.numpy().mean((0, 2, 3), dtype=np.float64) / 255
    np.testing.assert_allclose(found, means, atol=5e-5)


# Of the original pixels and classes in their order: the official downloads have these MD5s once decompressed.
MNIST_MD5 = {"train_x": "6bbc9ace898e44ae57da46a324031adb", "train_y": "a25bea736e30d166cdddb491f175f624"}
MNIST_MD5 |= {"test_x": "2646ac647ad5339dbf082846283269ea", "test_y": "27ae3e4e09519cfbb04c329615203637"}


@pytest.mark.parametrize("part", MNIST_MD5)
def test_the_real_mnist_is_the_official_one_byte_for_byte(real_data, part):
    if find(IMAGE_SETS["mnist"], real_data).missing:
        pytest.skip(f"mnist is not in {real_data}")
    array = getattr(read_images(IMAGE_SETS["mnist"], real_data), part).numpy()
    official = idx(array[:, 0] if part.endswith("x") else array)
    assert hashlib.md5(official).hexdigest() == MNIST_MD5[part]


# --- generated ones in the official format ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar100"])
def test_a_generated_set_of_official_size(name, tmp_path):
    images = IMAGE_SETS[name]
    place = tmp_path / images.folders[0]
    write_set(images, place)
    data = read_images(images, tmp_path)
    shutil.rmtree(place)  # up to 180 MB
    x, y = content(images.train[0], images.shape, seed=0)
    assert np.array_equal(data.train_x, x)
    assert np.array_equal(data.train_y, y)
    x, y = content(images.test[0], images.shape, seed=1)
    assert np.array_equal(data.test_x, x)
    assert np.array_equal(data.test_y, y)
    assert data.classes == images.classes


@pytest.mark.parametrize("name", SMALL)
def test_a_small_set_of_every_kind(name, tmp_path):
    images, _ = written(name, tmp_path)
    data = read_images(images, tmp_path)
    pieces = [content(piece, images.shape, i) for i, piece in enumerate((*images.train, *images.test))]
    assert np.array_equal(data.train_x, np.concatenate([x for x, _ in pieces[:-1]]))
    assert np.array_equal(data.train_y, np.concatenate([y for _, y in pieces[:-1]]))
    assert np.array_equal(data.test_x, pieces[-1][0])
    assert np.array_equal(data.test_y, pieces[-1][1])
    assert (data.name, data.classes, data.event) == (name, images.classes, images.shape)
    assert (len(data.train_y), len(data.test_y)) == (images.points, images.test_points)
    assert data.train_x.dtype == data.test_x.dtype == torch.uint8
    assert data.train_x.is_contiguous()
    assert data.train_y.dtype == data.test_y.dtype == torch.int64


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "points", "test_points", "classes"),
    [
        ("mnist", 60000, 10000, 10),
        ("fashion-mnist", 60000, 10000, 10),
        ("svhn", 73257, 26032, 10),
        ("cifar10", 50000, 10000, 10),
        ("cifar100", 50000, 10000, 100),
    ],
)
def test_the_table_has_the_published_sizes(name, points, test_points, classes):
    images = IMAGE_SETS[name]
    assert (images.name, images.points, images.test_points, images.classes) == (name, points, test_points, classes)
    assert len(set(images.class_counts)) == 1 or name in ("mnist", "svhn")
    assert len(images.class_counts) == len(images.test_class_counts)


@pytest.mark.parametrize("images", IMAGE_SETS.values(), ids=list(IMAGE_SETS))
def test_what_is_downloaded_is_what_is_read(images):
    files = [d.file for d in images.downloads if not d.inside]
    assert all(d.inside == images.folders[0] and d.file.endswith(".tar.gz") for d in images.downloads if d.inside)
    assert files == images.files or [d.inside for d in images.downloads] == [images.folders[0]]
    assert all(len(d.sha256) == 64 and set(d.sha256) <= set("0123456789abcdef") for d in images.downloads)
    assert all(url.startswith("http") and url.endswith("/" + d.file) for d in images.downloads for url in d.urls)


# --- where it looks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "folder"), [(name, folder) for name, images in SMALL.items() for folder in images.folders]
)
def test_every_folder_name_is_tried(name, folder, tmp_path):
    write_set(SMALL[name], tmp_path / folder)
    found = find(SMALL[name], tmp_path)
    assert found.folder == tmp_path / folder
    assert found.missing == ()
    assert found.size == sum(path.stat().st_size for path in (tmp_path / folder).iterdir())
    assert read_images(SMALL[name], tmp_path).classes == SMALL[name].classes


def test_mnist_and_fashion_mnist_are_not_taken_for_each_other(tmp_path):
    written("mnist", tmp_path)
    write_set(SMALL["mnist"], tmp_path)  # files right in the data folder could be of either
    assert find(SMALL["fashion-mnist"], tmp_path).files == {}
    for path in tmp_path.glob("MNIST/raw/*"):
        path.unlink()
    assert find(SMALL["mnist"], tmp_path).files == {}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_decompressed_files_will_do(name, tmp_path):
    images, place = written(name, tmp_path)
    before = read_images(images, tmp_path)
    for path in list(place.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    after = read_images(images, tmp_path)
    assert torch.equal(after.train_x, before.train_x)
    assert after.content_hash == before.content_hash


def test_the_folder_with_most_files_is_taken_whole(tmp_path):
    images = SMALL["mnist"]
    write_set(images, tmp_path / "MNIST/raw", seed=5)
    (tmp_path / "MNIST/raw" / images.files[0]).unlink()
    write_set(images, tmp_path / "mnist", seed=1)
    assert find(images, tmp_path).folder == tmp_path / "mnist"
    x, _ = content(images.train[0], images.shape, seed=1)
    assert np.array_equal(read_images(images, tmp_path).train_x, x)


@pytest.mark.parametrize("name", SMALL)
def test_nothing_there(name, tmp_path):
    said = refusal(SMALL[name], tmp_path)
    assert said.startswith(f"{name} was not found: looked for ")
    assert all(file in said for file in SMALL[name].files)
    assert all(str(tmp_path / folder) in said for folder in SMALL[name].folders)
    assert f"`sntg data fetch {name}`" in said


def test_a_data_folder_that_does_not_exist_or_is_a_file(tmp_path):
    assert "svhn was not found" in refusal(SMALL["svhn"], tmp_path / "nowhere")
    (tmp_path / "file").touch()
    assert "svhn was not found" in refusal(SMALL["svhn"], tmp_path / "file")


@pytest.mark.parametrize(("name", "pickled"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")])
def test_only_the_pickled_version(name, pickled, tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    (tmp_path / pickled).mkdir()
    (tmp_path / pickled / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    assert only_pickled(SMALL[name], tmp_path) == tmp_path / pickled
    said = refusal(SMALL[name], tmp_path)
    assert said.startswith(f"{name}: {tmp_path / pickled} is the pickled version, which is never loaded")
    assert f"`sntg data fetch {name}` downloads the binary version" in said
    assert not (tmp_path / "sprung").exists()
    written(name, tmp_path)
    assert only_pickled(SMALL[name], tmp_path) is None
    read_images(SMALL[name], tmp_path)


@pytest.mark.parametrize("name", SMALL)
def test_a_file_too_few(name, tmp_path):
    images, place = written(name, tmp_path)
    (place / images.files[1]).unlink()
    assert find(images, tmp_path).missing == (images.files[1],)
    assert refusal(images, tmp_path) == (
        f"{name}: {images.files[1]} missing in {place}: `sntg data fetch {name}` downloads what is missing"
    )


# --- what is wrong with them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_a_damaged_file_is_named_and_nothing_is_read(name, tmp_path):
    images, place = written(name, tmp_path)
    for file in images.files:
        whole = (place / file).read_bytes()
        (place / file).write_bytes(whole[: len(whole) // 2])
        assert refusal(images, tmp_path).startswith(f"{place / file}: expected ")
        (place / file).write_bytes(whole)
    read_images(images, tmp_path)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_something_else_under_a_files_name_is_named(name, make, tmp_path):
    images, place = written(name, tmp_path)
    path = place / images.files[-1]
    path.unlink()
    make(path)
    assert refusal(images, tmp_path).startswith(str(path))
    assert find(images, tmp_path).size < 10**6  # which counts files alone


@pytest.mark.parametrize("name", SMALL)
def test_training_and_test_files_swapped(name, tmp_path):
    images, place = written(name, tmp_path)
    first, last = place / images.train[0].files[0], place / images.test[0].files[0]
    first.rename(place / "aside")
    last.rename(first)
    (place / "aside").rename(last)
    assert refusal(images, tmp_path).startswith(f"{first}: expected ")


def test_images_and_labels_swapped(tmp_path):
    images, place = written("mnist", tmp_path)
    x, y = (place / file for file in images.train[0].files)
    x.rename(place / "aside")
    y.rename(x)
    (place / "aside").rename(y)
    assert refusal(images, tmp_path).startswith(f"{x}: expected an IDX file, which begins with 00000803")


def test_batches_of_cifar10_swapped_or_doubled(tmp_path):
    images = IMAGE_SETS["cifar10"]
    images = replace(images, shape=(3, 1, 1))  # the official counts of each batch, but of tiny pictures
    place = tmp_path / images.folders[0]
    write_set(images, place)
    read_images(images, tmp_path)
    first, second = place / "data_batch_1.bin", place / "data_batch_2.bin"
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])  # the same images in another order: every split would change
    assert refusal(images, tmp_path).startswith(f"{first}: expected 1005 images of class 0, found 984;")
    first.write_bytes(contents[0])
    assert refusal(images, tmp_path).startswith(f"{second}: expected 984 images of class 0, found 1005;")


@pytest.mark.parametrize("name", SMALL)
def test_one_label_changed_to_another_class(name, tmp_path):
    images, place = written(name, tmp_path)
    piece = images.train[0]
    x, y = content(piece, images.shape)
    y[np.flatnonzero(y == 1)[0]] = 2
    write_piece(images, [place / file for file in piece.files], x, y)
    expected = f"expected {piece.counts[1]} images of class 1, found {piece.counts[1] - 1};"
    assert refusal(images, tmp_path).startswith(f"{place / piece.files[-1]}: {expected}")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_a_label_out_of_range(name, tmp_path):
    images, place = written(name, tmp_path)
    piece = images.test[0]
    x, y = content(piece, images.shape)
    y[0] = images.classes
    write_piece(images, [place / file for file in piece.files], x, y)
    said = f"{place / piece.files[-1]}: expected classes from 0 to {images.classes - 1}, found classes from "
    assert refusal(images, tmp_path).startswith(said)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("value", [0, 255])
def test_pixels_that_are_all_the_same(name, value, tmp_path):
    images, place = written(name, tmp_path)
    piece = images.test[0]
    x, y = content(piece, images.shape)
    write_piece(images, [place / file for file in piece.files], np.full_like(x, value), y)
    said = f"{place / piece.files[0]}: expected pixels of different values, found the value {value} in all of them"
    assert refusal(images, tmp_path).startswith(said)


def test_another_dataset_in_mnists_folder(tmp_path):
    """Fashion-MNIST's files have MNIST's names and sizes; the class counts tell them apart."""
    fashion = replace(IMAGE_SETS["fashion-mnist"], shape=(1, 1, 1))
    write_set(fashion, tmp_path / "mnist")
    said = refusal(replace(IMAGE_SETS["mnist"], shape=(1, 1, 1)), tmp_path)
    assert said.startswith(f"{tmp_path / 'mnist/train-labels-idx1-ubyte.gz'}: expected 5923 images of class 0")


# --- the hash --------------------------------------------------------------------------------------------------------


def test_the_hash_is_of_the_content_and_not_of_the_files(tmp_path):
    images, place = written("mnist", tmp_path)
    before = read_images(images, tmp_path).content_hash
    for path in place.iterdir():
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 9, mtime=1))
    assert read_images(images, tmp_path).content_hash == before
    assert len(before) == 64


@pytest.mark.parametrize("part", ["train", "test"])
def test_one_pixel_or_two_labels_change_the_hash(part, tmp_path):
    images, place = written("svhn", tmp_path)
    piece, seed = (images.train[0], 0) if part == "train" else (images.test[0], 1)
    x, y = content(piece, images.shape, seed)
    hashes = {read_images(images, tmp_path).content_hash}
    for change in ("pixel", "labels"):
        other_x, other_y = x.copy(), y.copy()
        if change == "pixel":
            other_x[-1, -1, -1, -1] ^= 1
        else:
            i, j = np.flatnonzero(y != y[0])[0], 0
            other_y[[i, j]] = y[[j, i]]
        write_piece(images, [place / piece.files[0]], other_x, other_y)
        hashes.add(read_images(images, tmp_path).content_hash)
    assert len(hashes) == 3


def test_the_hash_is_the_sha256_of_shapes_and_little_endian_bytes():
    x, y = np.arange(6, dtype=np.uint8).reshape(2, 3), np.array([1, 258])
    by_hand = b"(2, 3)" + bytes(range(6)) + b"(2,)" + bytes([1, *[0] * 7, 2, 1, *[0] * 6])
    assert content_hash(x, y) == hashlib.sha256(by_hand).hexdigest()
    assert content_hash(x, y.astype(">i8")) == content_hash(x, y)
