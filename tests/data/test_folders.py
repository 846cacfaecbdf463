"""Where datasets and caches are looked for: named, else the environment, else the platform's cache folder."""

import sys
from pathlib import Path

import platformdirs
import pytest

from sntg.data.folders import cache_folder, data_folder
from sntg.errors import UsageError


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


@pytest.mark.parametrize("ask", [lambda: data_folder("~nobody-here/x"), data_folder, cache_folder])
def test_another_users_home_that_is_not_known_is_refused(ask, monkeypatch):
    monkeypatch.setenv("SNTG_DATA", "~nobody-here/x")
    monkeypatch.setenv("SNTG_CACHE", "~nobody-here/x")
    with pytest.raises(UsageError, match=r"'~nobody-here/x' begins with a home folder that is not known"):
        ask()


def test_nor_is_a_folder_called_tilde_made_for_it(monkeypatch):
    """What older versions of platformdirs answer."""
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: f"~/.cache/{name}")
    with pytest.raises(UsageError, match="home folder is not known"):
        data_folder()


@pytest.mark.parametrize("installed", [True, False])
def test_so_is_ones_own_where_no_other_is_named(installed, monkeypatch):
    """A container may have users that it knows nothing of."""

    def unknown(*arguments, **options):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(platformdirs, "user_cache_dir", unknown)
    monkeypatch.setattr(Path, "home", unknown)
    if not installed:
        monkeypatch.setitem(sys.modules, "platformdirs", None)
    for ask, cure in ((data_folder, "--data or SNTG_DATA"), (cache_folder, "SNTG_CACHE")):
        with pytest.raises(UsageError, match=f"home folder is not known: name a folder by {cure}$"):
            ask()
    assert data_folder("named") == Path("named")


def test_from_the_source_it_does_without_platformdirs(monkeypatch):
    monkeypatch.setitem(sys.modules, "platformdirs", None)  # not installed
    assert data_folder("named") == Path("named")
    assert data_folder() == Path.home() / ".cache" / "sntg" / "data"
    assert cache_folder() == Path.home() / ".cache" / "sntg" / "whitening"
