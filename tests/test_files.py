"""A file is whole or not there, whatever happens while it is written."""

import os

import pytest

from sntg.files import write_bytes, write_text


def test_what_was_written_is_there_and_nothing_else(tmp_path):
    write_text(tmp_path / "a.txt", "eins\nzw\u00f6lf\n")
    write_text(tmp_path / "a.txt", "new\n")
    write_bytes(tmp_path / "b", b"\x00\r\n")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a.txt": b"new\n", "b": b"\x00\r\n"}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, error, step):
    write_text(tmp_path / "a.txt", "old")

    def fail(*args):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        write_text(tmp_path / "a.txt", "new")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.txt": "old"}
