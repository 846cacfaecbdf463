"""Readers of the official files: IDX, CIFAR's binary version and SVHN's .mat, to uint8 images and int64 classes.

Each is told the shape (images, channels, height, width) it must find; anything else is refused by the file's name, with
what was expected and what was found. None of them loads pickle.
"""

import gzip
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat

from sntg.errors import UsageError

Pixels = NDArray[np.uint8]
Classes = NDArray[np.int64]
Shape = tuple[int, int, int, int]


def wrong(path: Path, expected: str, found: str) -> UsageError:
    """The error for a file that is not what it should be.

    >>> str(wrong(Path("test.bin"), "30740000 bytes", "12 bytes"))
    'test.bin: expected 30740000 bytes, found 12 bytes; it is not used: replace it, or let `sntg data fetch` do so'
    """
    return UsageError(
        f"{path}: expected {expected}, found {found}; it is not used: replace it, or let `sntg data fetch` do so"
    )


def read_idx_pair(images: Path, labels: Path, shape: Shape) -> tuple[Pixels, Classes]:
    """Grey images and their classes from two IDX files, as MNIST and Fashion-MNIST have them.

    >>> read_idx_pair(Path("no-images"), Path("no-labels"), (60000, 1, 28, 28))
    Traceback (most recent call last):
    sntg.errors.UsageError: no-images cannot be read: No such file or directory
    """
    count, _, height, width = shape
    pixels = read_idx(images, (count, height, width))
    return pixels.reshape(shape), read_idx(labels, (count,)).astype(np.int64)


def read_idx(path: Path, shape: tuple[int, ...]) -> Pixels:
    """The bytes of an IDX file, plain or compressed with gzip, that must hold an array of this shape.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "labels-idx1-ubyte")
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     read_idx(path, (3,)).tolist()
    [7, 2, 1]
    """
    magic, size = bytes([0, 0, 8, len(shape)]), prod(shape)  # 8 says unsigned bytes
    start = 4 + 4 * len(shape)
    content = _content(path, limit=start + size)
    if len(content) < start:
        raise wrong(path, f"an IDX file of {start + size} bytes", f"{len(content)} bytes")
    if content[:4] != magic:
        raise wrong(path, f"an IDX file, which begins with {magic.hex()}", f"{content[:4].hex()}")
    sizes = struct.unpack(f">{len(shape)}I", content[4:start])
    if sizes != shape:
        raise wrong(path, f"a header for {_times(shape)} bytes", f"one for {_times(sizes)}")
    if len(content) != start + size:
        raise wrong(path, f"{size} bytes after the header", _length(len(content) - start, size))
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_cifar10(path: Path, shape: Shape) -> tuple[Pixels, Classes]:
    """Images and classes from a batch of CIFAR-10's binary version.

    >>> read_cifar10(Path("data_batch_1.bin"), (10000, 3, 32, 32))
    Traceback (most recent call last):
    sntg.errors.UsageError: data_batch_1.bin cannot be read: No such file or directory
    """
    return _read_cifar(path, shape, label_bytes=1)


def read_cifar100(path: Path, shape: Shape) -> tuple[Pixels, Classes]:
    """Images and their fine classes from a file of CIFAR-100's binary version.

    >>> read_cifar100(Path("test.bin"), (10000, 3, 32, 32))
    Traceback (most recent call last):
    sntg.errors.UsageError: test.bin cannot be read: No such file or directory
    """
    return _read_cifar(path, shape, label_bytes=2)


def _read_cifar(path: Path, shape: Shape, label_bytes: int) -> tuple[Pixels, Classes]:
    count, record = shape[0], label_bytes + prod(shape[1:])
    content = _content(path, limit=count * record)
    if len(content) != count * record:
        expected = f"{count * record} bytes ({count} records of {record})"
        raise wrong(path, expected, _length(len(content), count * record))
    rows = np.frombuffer(content, np.uint8).reshape(count, record)
    # The class proper comes last: CIFAR-100 has the coarse one before it.
    return np.ascontiguousarray(rows[:, label_bytes:]).reshape(shape), rows[:, label_bytes - 1].astype(np.int64)


def read_svhn(path: Path, shape: Shape) -> tuple[Pixels, Classes]:
    """Images and classes from one of SVHN's cropped-digit files, where 10 stands for the digit 0.

    >>> read_svhn(Path("train_32x32.mat"), (73257, 3, 32, 32))
    Traceback (most recent call last):
    sntg.errors.UsageError: train_32x32.mat cannot be read: No such file or directory
    """
    count, channels, height, width = shape
    with _opened(path) as file:
        try:
            found = loadmat(file, variable_names=("X", "y"))
        except Exception as e:  # scipy answers a damaged file with whatever its parser stumbles over
            raise wrong(path, "a MATLAB 5 file", f"one that cannot be parsed ({_first_line(e)})") from e
    pixels = _variable(path, found, "X", (height, width, channels, count))
    labels = _variable(path, found, "y", (count, 1))[:, 0].astype(np.int64)
    if labels.min() < 1 or labels.max() > 10:
        raise wrong(path, "labels from 1 to 10", f"labels from {labels.min()} to {labels.max()}")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels % 10


def _variable(path: Path, found: dict[str, object], name: str, shape: tuple[int, ...]) -> Pixels:
    value = found.get(name)
    expected = f"{name} as {_times(shape)} of type uint8"
    if not isinstance(value, np.ndarray):
        raise wrong(path, expected, f"no {name}")
    if value.shape != shape or value.dtype != np.uint8:
        raise wrong(path, expected, f"{_times(value.shape)} of type {value.dtype}")
    return value


def _content(path: Path, limit: int) -> bytes:
    """What a file holds, decompressed if need be; one byte beyond the limit shows that there is more."""
    with _opened(path) as file:
        if file.peek(2)[:2] != b"\x1f\x8b":  # by content: some browsers decompress a .gz and keep its name
            return file.read(limit + 1)
        try:
            return gzip.GzipFile(fileobj=file).read(limit + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise wrong(path, "a sound gzip file", f"a truncated or corrupt one ({_first_line(e)})") from e


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """A file open for reading; what cannot be read is refused by name, and so is what is not a file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a named pipe would wait for ever
            raise wrong(path, "a file", "a folder" if path.is_dir() else "something that is not a file")
        with path.open("rb") as file:
            yield file
    except OSError as e:
        raise UsageError(f"{path} cannot be read: {e.strerror or e}") from e


def _length(found: int, expected: int) -> str:
    return "more" if found > expected else f"{found}"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
