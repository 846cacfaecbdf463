"""The compiler's cache has a name, and is made, before the compiler loads."""

import getpass
import importlib
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from sntg.adversarial import adversarial_direction
from sntg.bench.measure import Bench
from sntg.compiler import CACHE, make_cache, name_cache
from sntg.training.engines import Step, start_engine

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # of a user, in the order in which they are asked for


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """Nobody has named the cache or a temporary folder but here, and what is named in a test is forgotten."""
    importlib.import_module("torch._inductor.codecache")  # which has the user's own for good
    for variable in (CACHE, *NAMES):
        monkeypatch.setenv(variable, "")  # so that it is put back, whoever sets it
        monkeypatch.delenv(variable)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def default():
    return Path(importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir())


def start_eager():
    start_engine("eager", Step(*[lambda *_: None] * 4), undo=lambda: None)


@pytest.mark.parametrize("user", ["me", r"at\home:me/too"])
def test_it_is_where_the_compiler_has_it_by_itself(monkeypatch, user):
    monkeypatch.setenv("LOGNAME", user)
    make_cache()
    assert default().is_dir()
    assert CACHE not in os.environ


def test_it_is_where_its_variable_says(monkeypatch, tmp_path):
    named = tmp_path / "one" / "two"
    monkeypatch.setenv(CACHE, str(named))
    start_eager()
    for _ in range(2):
        make_cache()
    assert named.is_dir()
    assert not default().exists()
    assert os.environ[CACHE] == str(named)


def test_a_relative_one_is_the_same_from_every_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CACHE, "mine")
    start_eager()
    assert os.environ[CACHE] == str(tmp_path / "mine")


def test_an_empty_variable_names_none(monkeypatch):
    monkeypatch.setenv(CACHE, "")
    start_eager()
    assert CACHE not in os.environ
    make_cache()
    assert default().is_dir()


@pytest.mark.parametrize("below", ["", "cache"])
def test_one_that_cannot_be_is_an_error(monkeypatch, below):
    default().touch()
    if below:
        monkeypatch.setenv(CACHE, str(default() / below))
    with pytest.raises(OSError, match=r"torchinductor_"):
        make_cache()


def test_a_user_without_a_name_is_named_before_anything_runs(monkeypatch):
    """As in many containers: else PyTorch 2.11 loads no compiler there, and no derivatives for VAT either."""
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000, raising=False)
    start_eager()
    assert getpass.getuser() == "uid_4000000000"
    assert default().name == "torchinductor_uid_4000000000"


def test_so_is_one_who_asks_for_vats_direction_alone(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000, raising=False)
    adversarial_direction(lambda x: x, torch.zeros(1, 2))
    assert getpass.getuser() == "uid_4000000000"


def test_so_is_one_who_measures_first(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000, raising=False)
    Bench("cpu").close()
    assert getpass.getuser() == "uid_4000000000"


def test_a_name_is_left_alone(monkeypatch):
    monkeypatch.setenv("USERNAME", "me")
    name_cache()
    assert getpass.getuser() == "me"
    assert "LNAME" not in os.environ


def test_where_the_system_has_no_numbers_for_users_one_has_a_name_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "pwd", None)
    monkeypatch.delattr(os, "getuid", raising=False)
    name_cache()
    assert getpass.getuser() == "unknown_user"


def test_eager_runs_do_without_a_temporary_folder(monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: pytest.fail("nobody needs it"))
    start_eager()
