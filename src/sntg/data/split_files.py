"""A split as a text file that people and np.loadtxt read: `#` comments, then `index class`, one line a labelled row."""

import re
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from sntg.data.splits import UNLABELLED, Split, hold_out
from sntg.errors import UsageError
from sntg.files import write_text


def write_split(path: Path | str, split: Split, header: str) -> None:
    """Writes the labelled rows in order with what training sees as their class, below the header as comments.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_split(f"{folder}/split.txt", Split(torch.tensor([-1, 4, 2]), torch.tensor([0])), "digits, seed 0")
    ...     print(Path(f"{folder}/split.txt").read_text())
    # digits, seed 0
    # index class
    1 4
    2 2
    <BLANKLINE>
    """
    rows = (split.labels != UNLABELLED).nonzero()[:, 0]
    pairs = zip(rows.tolist(), split.labels[rows].tolist(), strict=True)
    _write(path, [*header.splitlines(), "index class"], [f"{row} {label}" for row, label in pairs])


def write_rows(path: Path | str, rows: Tensor, header: str) -> None:
    """Writes row numbers alone, one a line, below the header as comments.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_rows(f"{folder}/validation.txt", torch.tensor([2, 5]), "held out")
    ...     print(Path(f"{folder}/validation.txt").read_text().splitlines())
    ['# held out', '# index', '2', '5']
    """
    _write(path, [*header.splitlines(), "index"], [str(row) for row in rows.tolist()])


def _write(path: Path | str, comments: Iterable[str], lines: Iterable[str]) -> None:
    text = "\n".join([*(f"# {comment}".rstrip() for comment in comments), *lines]) + "\n"
    try:
        write_text(Path(path), text)
    except OSError as e:
        raise UsageError(f"the split file {str(path)!r} cannot be written: {e.strerror}") from None


def count_rows(path: Path | str) -> int:
    """How many rows a split file names; what they are is checked when it is read beside the data.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = Path(folder, "split.txt").write_text("# index class\\n5 1\\n7 0\\n")
    ...     count_rows(f"{folder}/split.txt")
    2
    """
    return sum(1 for _ in _lines(path))


def read_split(path: Path | str, y: Tensor, classes: int, seed: int = 0, validation: int = 0) -> Split:
    """The split of a file, for training points of the true classes y: rows it does not name have no label.

    Where it names rows alone, their classes are y's. `validation` of the rest are held out, as `make_split` does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = Path(folder, "split.txt").write_text("# the first and the last\\n0\\n3\\n")
    ...     read_split(f"{folder}/split.txt", torch.tensor([0, 0, 1, 1]), classes=2).labels
    tensor([ 0, -1, -1,  1])
    """
    labels = torch.full_like(y, UNLABELLED)
    seen: dict[int, int] = {}
    columns = 0
    for number, where, values in _lines(path):
        columns = columns or len(values)
        if len(values) != columns or columns > 2:
            wanted = "one index and one class, or an index alone, in every line alike"
            raise UsageError(f"{where}: {len(values)} values where there should be {wanted}")
        row = _within(values[0], len(y), "index", where)
        if row in seen:
            raise UsageError(f"{where}: index {row} is there already in line {seen[row]}")
        seen[row] = number
        labels[row] = _within(values[1], classes, "class", where) if columns == 2 else y[row]
    return hold_out(labels, validation, seed)


def _lines(path: Path | str) -> Iterator[tuple[int, str, list[str]]]:
    """Of each line that is not blank or a comment: its number, where it is in words, and its values."""
    try:
        if Path(path).is_fifo():
            raise UsageError(f"the split file {str(path)!r} is a pipe, and it is read more than once: make it a file")
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise UsageError(f"the split file {str(path)!r} is not a text file: byte {e.start} is not UTF-8") from None
    except (OSError, ValueError) as e:  # ValueError: no file may have such a name
        raise UsageError(f"the split file {str(path)!r} cannot be read: {getattr(e, 'strerror', e)}") from None
    lines = [(number, line.partition("#")[0].split()) for number, line in enumerate(text.split("\n"), 1)]
    if not any(values for _, values in lines):
        raise UsageError(f"the split file {str(path)!r} names no rows: it needs a line `index class` for each label")
    for number, values in lines:
        if values:
            yield number, f"the split file {str(path)!r}, line {number}", values


def _within(value: str, count: int, what: str, where: str) -> int:
    """The value as a whole number from 0 to count - 1."""
    if not re.fullmatch("-?[0-9]+", value):
        raise UsageError(f"{where}: the {what} {reprlib.repr(value)} is not a whole number")
    if len(value) > 18 or not 0 <= int(value) < count:
        raise UsageError(f"{where}: the {what} {reprlib.repr(value)} is not one of 0 to {count - 1}")
    return int(value)
