"""The readers of single files: what they read, and what they refuse, by name, with what was expected and found."""

import gzip
import os
import pickle
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_fixtures import cifar, idx, mat
from scipy.io import savemat

from sntg.data.formats import read_cifar10, read_cifar100, read_idx, read_idx_pair, read_svhn
from sntg.errors import UsageError

GREY, COLOUR = (6, 1, 4, 5), (6, 3, 4, 5)  # height and width differ: a transposition would show
CLASSES = np.array([0, 9, 1, 5, 5, 2])
READERS = {"idx": lambda path, shape: read_idx(path, (shape[0], *shape[2:]))}
READERS |= {"cifar10": read_cifar10, "cifar100": read_cifar100, "svhn": read_svhn}


def pixels(shape) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def write(kind: str, path: Path) -> Path:
    """A sound file of this kind with 6 images."""
    if kind == "idx":
        path.write_bytes(gzip.compress(idx(pixels(GREY)[:, 0])))
    elif kind == "svhn":
        mat(path, pixels(COLOUR), CLASSES)
    else:
        labels = (CLASSES,) if kind == "cifar10" else (CLASSES // 5, CLASSES)
        path.write_bytes(cifar(pixels(COLOUR), *labels))
    return path


def refusal(kind: str, path: Path, shape=None) -> str:
    """What a reader says about a file it must refuse; the sentence names the file."""
    with pytest.raises(UsageError) as refused:
        READERS[kind](path, shape or (GREY if kind == "idx" else COLOUR))
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def is_sound(x: np.ndarray, y: np.ndarray, shape) -> None:
    np.testing.assert_array_equal(x, pixels(shape))
    np.testing.assert_array_equal(y, CLASSES)
    assert x.dtype == np.uint8
    assert y.dtype == np.int64
    assert x.flags.c_contiguous


# --- what they read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["compressed", "plain"])
@pytest.mark.parametrize("suffix", [".gz", ""])  # the content decides, not the name
def test_idx(tmp_path, pack, suffix):
    images, labels = tmp_path / f"images{suffix}", tmp_path / f"labels{suffix}"
    images.write_bytes(pack(idx(pixels(GREY)[:, 0])))
    labels.write_bytes(pack(idx(CLASSES)))
    is_sound(*read_idx_pair(images, labels, GREY), GREY)


def test_cifar10(tmp_path):
    is_sound(*read_cifar10(write("cifar10", tmp_path / "data_batch_1.bin"), COLOUR), COLOUR)


def test_cifar100_gives_the_fine_classes(tmp_path):
    path = tmp_path / "train.bin"
    path.write_bytes(cifar(pixels(COLOUR), np.arange(6), CLASSES))
    is_sound(*read_cifar100(path, COLOUR), COLOUR)


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn_calls_ten_zero(tmp_path, compressed):
    path, labels = tmp_path / "train_32x32.mat", np.array([10, 9, 1, 5, 5, 2], np.uint8)[:, None]
    savemat(path, {"X": pixels(COLOUR).transpose(2, 3, 1, 0), "y": labels}, do_compression=compressed)
    is_sound(*read_svhn(path, COLOUR), COLOUR)


# --- what they refuse, of every kind ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", READERS)
def test_an_empty_file(kind, tmp_path):
    path = tmp_path / "file"
    path.touch()
    refusal(kind, path)


@pytest.mark.parametrize("kind", READERS)
def test_a_text_file(kind, tmp_path):
    path = tmp_path / "file"
    path.write_text("<html><body>404 Not Found</body></html>\n" * 100)
    assert "expected" in refusal(kind, path)


@pytest.mark.parametrize("kind", READERS)
def test_pickle_is_refused_and_not_loaded(kind, tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    path = tmp_path / "file"
    path.write_bytes(pickle.dumps({b"data": pixels(COLOUR), b"labels": [Trap()] * 500}, protocol=2))
    refusal(kind, path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("kind", READERS)
def test_a_folder_under_the_files_name(kind, tmp_path):
    path = tmp_path / "file"
    path.mkdir()
    assert "expected a file, found a folder" in refusal(kind, path)


@pytest.mark.parametrize("kind", READERS)
def test_a_pipe_is_not_waited_for(kind, tmp_path):
    path = tmp_path / "file"
    os.mkfifo(path)
    assert "expected a file, found something that is not a file" in refusal(kind, path)


@pytest.mark.parametrize("kind", READERS)
def test_a_missing_file(kind, tmp_path):
    assert "cannot be read: No such file" in refusal(kind, tmp_path / "file")


@pytest.mark.parametrize("kind", READERS)
def test_a_link_that_goes_in_circles(kind, tmp_path):
    path = tmp_path / "file"
    path.symlink_to(path)
    assert "cannot be read: " in refusal(kind, path)


@pytest.mark.parametrize("kind", READERS)
def test_an_unreadable_file(kind, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(kind, tmp_path / "file")
    with monkeypatch.context() as unreadable:
        unreadable.setattr(Path, "open", refuse)  # root may read any file, whatever its mode
        assert refusal(kind, path) == f"{path} cannot be read: Permission denied"


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("kept", [0.02, 0.3, 0.9, 0.999])
def test_a_truncated_file(kind, kept, tmp_path):
    path = write(kind, tmp_path / "file")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    refusal(kind, path)


@pytest.mark.parametrize("kind", ["idx", "cifar10", "cifar100"])
def test_a_file_with_something_after_its_end(kind, tmp_path):
    path = write(kind, tmp_path / "file")
    content = path.read_bytes() if kind != "idx" else gzip.decompress(path.read_bytes())
    path.write_bytes(content + b"\0")
    assert "found more" in refusal(kind, path)


@pytest.mark.parametrize("kind", READERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_damage_ends_in_a_sentence_or_leaves_a_sound_array(kind, tmp_path, place, value, cut):
    path = write(kind, tmp_path / "file")
    damaged = bytearray(path.read_bytes())
    damaged[int(place * len(damaged))] = value
    path.write_bytes(damaged[: int(place * len(damaged))] if cut else damaged)
    shape = GREY if kind == "idx" else COLOUR
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scipy warns of what it finds on its way
            found = READERS[kind](path, shape)
    except UsageError:
        return
    x = found if kind == "idx" else found[0]
    assert not cut
    assert x.size == np.prod(shape)


# --- what they refuse, each of its own -------------------------------------------------------------------------------


def test_idx_with_another_magic_number(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(idx(CLASSES) * 100)
    assert "begins with 00000803, found 00000801" in refusal("idx", path)
    path.write_bytes(b"\0\0\x0d" + idx(pixels(GREY)[:, 0])[3:])  # 0d says float
    assert "begins with 00000803, found 00000d03" in refusal("idx", path)


@pytest.mark.parametrize("shape", [(7, 4, 5), (6, 5, 4), (2**32 - 1, 2**32 - 1, 5)])
def test_idx_whose_header_names_another_shape(tmp_path, shape):
    path = tmp_path / "images"
    path.write_bytes(idx(pixels(GREY)[:, 0])[:4] + struct.pack(">3I", *shape) + bytes(120))
    said = " x ".join(map(str, shape))
    assert f"expected a header for 6 x 4 x 5 bytes, found one for {said};" in refusal("idx", path)


def test_idx_whose_header_lies_about_the_count(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(idx(pixels(GREY)[:, 0])[:-20])  # the header still says 6
    assert "expected 120 bytes after the header, found 100;" in refusal("idx", path)


def test_idx_with_a_little_endian_header(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(bytes([0, 0, 8, 1]) + struct.pack("<I", 6) + bytes(6))
    with pytest.raises(UsageError, match="a header for 6 bytes, found one for 100663296"):
        read_idx(path, (6,))


def test_a_compressed_file_is_not_decompressed_beyond_what_it_should_hold(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(pixels(GREY)[:, 0]) + bytes(1 << 20)))
    path.write_bytes(path.read_bytes()[:-100])  # reading on to the end would find this instead
    assert "found more" in refusal("idx", path)


def test_a_compressed_file_whose_checksum_is_wrong(tmp_path):
    path = write("idx", tmp_path / "images.gz")
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    assert "expected a sound gzip file, found a truncated or corrupt one" in refusal("idx", path)


def test_cifar_of_another_size_is_told_in_bytes(tmp_path):
    path = write("cifar10", tmp_path / "train.bin")
    assert "expected 372 bytes (6 records of 62), found 366;" in refusal("cifar100", path)
    path = write("cifar100", tmp_path / "data_batch_1.bin")
    assert "expected 366 bytes (6 records of 61), found more;" in refusal("cifar10", path)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"y": CLASSES}, "expected X as 4 x 5 x 3 x 6 of type uint8, found no X;"),
        ({"X": np.zeros((4, 5, 3, 6), np.uint8)}, "expected y as 6 x 1 of type uint8, found no y;"),
        ({"X": np.zeros((4, 5, 3, 7), np.uint8)}, "found 4 x 5 x 3 x 7 of type uint8;"),
        ({"X": np.zeros((5, 4, 3, 6), np.uint8)}, "found 5 x 4 x 3 x 6 of type uint8;"),
        ({"X": np.zeros((4, 5, 3, 6))}, "found 4 x 5 x 3 x 6 of type float64;"),
        ({"X": "text"}, "of type <U4;"),
        ({"X": {"a": 1}}, "expected X as 4 x 5 x 3 x 6 of type uint8, found 1 x 1 of type"),
        ({"X": np.zeros((4, 5, 3, 6), np.uint8), "y": np.ones((5, 1), np.uint8)}, "found 5 x 1 of type uint8;"),
        ({"X": np.zeros((4, 5, 3, 6), np.uint8), "y": np.zeros((6, 1), np.uint8)}, "labels from 0 to 0;"),
        ({"X": np.zeros((4, 5, 3, 6), np.uint8), "y": np.full((6, 1), 11, np.uint8)}, "labels from 11 to 11;"),
    ],
)
def test_svhn_without_the_right_variables(tmp_path, variables, said):
    path = tmp_path / "train_32x32.mat"
    savemat(path, variables)
    assert said in refusal("svhn", path)


def test_svhn_that_is_no_matlab_file_says_so(tmp_path):
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(2000))
    assert "expected a MATLAB 5 file, found one that cannot be parsed" in refusal("svhn", path)
