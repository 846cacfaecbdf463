"""Starts in new processes, and the bytecode they find."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sntg.bench import starting
from sntg.bench.cases import Case
from sntg.bench.starting import Start, kept_bytecode, peak_memory, start_anew
from sntg.errors import Notice


def test_a_start_in_a_new_process():
    start = start_anew(Case("two-moons", "pi", "eager", "float32"), "cpu")
    assert start.seconds > 0
    assert start.peak_gib is None or 0.1 < start.peak_gib < 4  # PyTorch alone takes some 0.2
    with pytest.warns(Notice, match="pie on two-moons.* does not start in a process of its own: .*pie"):
        assert start_anew(Case("two-moons", "pie", "eager", "float32"), "cpu") == Start()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process's peak of memory")
def test_the_peak_of_memory_is_the_process_s_own():
    """A moment's half a GiB is told ever after, and not counted as a later process's whom this one starts."""
    taken = b"x" * 2**29
    assert peak_memory() > len(taken) / 2**30

    def peak_of(work):
        program = f"from sntg.bench.starting import peak_memory; {work}; print(peak_memory())"
        return float(subprocess.run([sys.executable, "-c", program], capture_output=True).stdout)

    assert 0.4 < peak_of("b'x' * 2**29") - peak_of("pass") < 0.6


@pytest.fixture
def loads(monkeypatch):
    """In the place of loading the compiler: what a process would have been told of bytecode."""
    told = []
    names = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
    monkeypatch.setattr(starting, "_load_compiler", lambda device: told.append([os.environ.get(n) for n in names]))
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return told


def test_where_python_has_bytecode_nothing_changes(loads, monkeypatch, tmp_path):
    monkeypatch.setattr(starting, "cache_from_source", lambda source: __file__)
    assert kept_bytecode(tmp_path, "cpu") == {}
    assert loads == [[None, "1"]]


def test_where_python_has_none_it_is_kept(loads, monkeypatch, tmp_path):
    monkeypatch.setattr(starting, "cache_from_source", lambda source: tmp_path / "none")
    found = kept_bytecode(tmp_path, "cpu")
    assert loads == [[None, "1"], [str(tmp_path), ""]]
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"
    Path(tmp_path, "loaded.py").touch()
    subprocess.run([sys.executable, "-c", "import loaded"], cwd=tmp_path, env=os.environ | found, check=True)
    assert list(tmp_path.rglob("loaded.*.pyc"))


@pytest.mark.slow
def test_the_compiler_is_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(starting, "cache_from_source", lambda source: tmp_path / "none")
    kept_bytecode(tmp_path, "cpu")
    for file in ("_dynamo/symbolic_convert", "_inductor/compile_fx", "_inductor/graph"):
        assert list(tmp_path.rglob(f"torch/{file}.*.pyc")), file
