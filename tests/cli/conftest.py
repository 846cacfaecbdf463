"""The command line in this process, without figures."""

import sys

import pytest

from sntg.cli import main


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs `sntg ARGUMENTS` in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sntg", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:  # typer ends the process after a command that went well, too
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture(autouse=True)
def unpainted(monkeypatch):
    """Drawing takes longer than a short run, and has tests of its own."""
    monkeypatch.setattr(sys.modules["sntg.training.run"], "draw_figures", lambda trained, folder: folder.mkdir())
