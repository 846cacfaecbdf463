"""Where datasets and caches are looked for: named, else the environment, else the platform's cache folder."""

import sys
from pathlib import Path

import platformdirs
import pytest

from sntg.data.folders import cache_folder, data_folder


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    monkeypatch.delenv("SNTG_DATA", raising=False)
    monkeypatch.delenv("SNTG_CACHE", raising=False)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_named_folder_comes_first(kind, monkeypatch):
    monkeypatch.setenv("SNTG_DATA", "elsewhere")
    assert data_folder(kind("named")) == Path("named")


def test_then_the_environment(monkeypatch):
    monkeypatch.setenv("SNTG_DATA", "elsewhere")
    monkeypatch.setenv("SNTG_CACHE", "kept")
    assert data_folder() == Path("elsewhere")
    assert cache_folder() == Path("kept")


@pytest.mark.parametrize("value", [None, ""])
def test_then_the_platforms_cache_folder(value, monkeypatch):
    if value is not None:  # set to nothing is as good as not set
        monkeypatch.setenv("SNTG_DATA", value)
        monkeypatch.setenv("SNTG_CACHE", value)
    cache = Path(platformdirs.user_cache_dir("sntg"))
    assert data_folder() == cache / "data"
    assert cache_folder() == cache / "whitening"


def test_a_tilde_is_the_home_folder(monkeypatch):
    assert data_folder("~/pictures") == Path.home() / "pictures"
    monkeypatch.setenv("SNTG_DATA", "~/pictures")
    monkeypatch.setenv("SNTG_CACHE", "~/kept")
    assert data_folder() == Path.home() / "pictures"
    assert cache_folder() == Path.home() / "kept"


def test_from_the_source_it_does_without_platformdirs(monkeypatch):
    monkeypatch.setitem(sys.modules, "platformdirs", None)  # not installed
    assert data_folder("named") == Path("named")
    assert data_folder() == Path.home() / ".cache" / "sntg" / "data"
    assert cache_folder() == Path.home() / ".cache" / "sntg" / "whitening"
