"""Splits as text files: what is written is read back, and what cannot be right is refused with its line."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sntg.data import Split, count_rows, make_split, read_split, write_rows, write_split
from sntg.errors import UsageError

Y = torch.arange(60) % 3


def written(folder, content: str | bytes):
    path = folder / "split.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@given(seed=st.integers(0, 1000), noise=st.sampled_from([0.0, 50.0]), validation=st.integers(0, 20))
def test_what_is_written_is_read_back(tmp_path_factory, seed, noise, validation):
    path = tmp_path_factory.mktemp("split") / "split.txt"
    split = make_split(Y, 12, 3, seed, noise=noise, validation=validation)
    write_split(path, split, "mine\ntwo lines of it")
    back = read_split(path, Y, 3, seed, validation)
    assert torch.equal(back.labels, split.labels)  # with the noise they had
    assert torch.equal(back.validation, split.validation)
    assert count_rows(path) == 12


def test_the_file_is_for_people_and_for_numpy(tmp_path):
    path = tmp_path / "split.txt"
    write_split(path, Split(torch.tensor([-1, 2, -1, 0]), torch.tensor([0])), "mine, 2 labels\n\nzwölf")
    assert path.read_bytes() == "# mine, 2 labels\n#\n# zwölf\n# index class\n1 2\n3 0\n".encode()
    np.testing.assert_array_equal(np.loadtxt(path, dtype=int), [[1, 2], [3, 0]])
    assert [p.name for p in tmp_path.iterdir()] == ["split.txt"]


def test_rows_alone(tmp_path):
    path = tmp_path / "validation.txt"
    write_rows(path, torch.tensor([4, 7]), "held out")
    np.testing.assert_array_equal(np.loadtxt(path, dtype=int), [4, 7])
    split = read_split(path, Y, 3)
    assert split.labels[[4, 7]].tolist() == Y[[4, 7]].tolist()
    assert (split.labels >= 0).sum() == count_rows(path) == 2


@pytest.mark.parametrize("content", ["7 1\n3 2\n", "# a comment\r\n\r\n 7\t1 # here too\r\n3 2", "\ufeff7 1\n3 2\n"])
def test_order_blanks_comments_and_line_ends_do_not_matter(content, tmp_path):
    labels = read_split(written(tmp_path, content), Y, 3).labels
    assert {int(row): int(labels[row]) for row in (labels >= 0).nonzero()[:, 0]} == {3: 2, 7: 1}


def test_points_can_be_held_out_of_what_a_file_leaves_unlabelled(tmp_path):
    split = read_split(written(tmp_path, "0\n1\n2\n"), Y, 3, seed=1, validation=57)
    assert split.validation.tolist() == list(range(3, 60))
    with pytest.raises(UsageError, match="58 of 60 training points cannot be held out: take 0 to 57"):
        read_split(tmp_path / "split.txt", Y, 3, seed=1, validation=58)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "names no rows"),
        ("# index class\n\n", "names no rows"),
        ("3 1\n# x\n\n4 2\n3 1\n", "line 5: index 3 is there already in line 1"),
        ("3 1\n60 1\n", "line 2: the index '60' is not one of 0 to 59"),
        ("-1 1\n", "line 1: the index '-1' is not one of 0 to 59"),
        ("9" * 5000, "line 1: the index '9+\\.\\.\\.9+' is not one of 0 to 59"),
        ("3 3\n", "line 1: the class '3' is not one of 0 to 2"),
        ("3 -1\n", "line 1: the class '-1' is not one of 0 to 2"),
        ("3.0 1\n", "line 1: the index '3.0' is not a whole number"),
        ("3 cat\n", "line 1: the class 'cat' is not a whole number"),
        ("1_0 1\n", "line 1: the index '1_0' is not a whole number"),
        ("3,1\n", "line 1: the index '3,1' is not a whole number"),
        ("3 1\n4\n", "line 2: 1 values where there should be one index and one class, or an index alone"),
        ("3\n4 1\n", "line 2: 2 values where there should be"),
        ("3 1 2\n", "line 1: 3 values where there should be"),
        (b"\x93NUMPY\x01\x00", "is not a text file: byte 0 is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_with_its_line(content, message, tmp_path):
    path = written(tmp_path, content)
    with pytest.raises(UsageError, match=f"split.txt'.*{message}"):
        read_split(path, Y, 3)


@pytest.mark.parametrize("read", [lambda path: read_split(path, Y, 3), count_rows])
def test_a_file_that_cannot_be_read_is_refused(read, tmp_path):
    with pytest.raises(UsageError, match="none' cannot be read: No such file"):
        read(tmp_path / "none")
    with pytest.raises(UsageError, match=r"a.x00b' cannot be read: embedded null byte"):
        read("a\0b")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_a_file_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="folder' cannot be written: Is a directory"):
        write_rows(tmp_path / "folder", torch.tensor([1]), "")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    for nameless in ("", ".", "/"):
        with pytest.raises(UsageError, match="cannot be written: Is a directory"):
            write_rows(nameless, torch.tensor([1]), "")
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write_rows(tmp_path / "none" / "split.txt", torch.tensor([1]), "")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("read", [count_rows, lambda path: read_split(path, torch.tensor([0, 1]), classes=2)])
def test_a_pipe_is_refused_before_anybody_waits_for_it(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is a pipe, and it is read more than once: make it a file"):
        read(tmp_path / "pipe")
