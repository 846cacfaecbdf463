"""What `auto` becomes: on which device, for which method, network and length of a run; and what is said of it."""

import shutil
import sys
import warnings

import pytest
import torch

from sntg.errors import Notice
from sntg.methods import all_names
from sntg.training import automatic, resolve
from sntg.training.automatic import best_engine, best_precision, cpp_compiler, decided
from sntg.training.engines import ENGINES
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness


@pytest.mark.parametrize("method", ["pi+sntg", "vat+ent+sntg"])
@pytest.mark.parametrize("model", ["mlp", "small", "conv13"])
@pytest.mark.parametrize("steps", [1, 30_000])
@pytest.mark.parametrize("compiler", ["c++-of-mine", None])
def test_the_best_of_a_cpu_is_eager_but_for_a_long_run_of_many_small_operations(
    method, model, steps, compiler, monkeypatch
):
    monkeypatch.setattr(automatic, "cpp_compiler", lambda: compiler)
    pays = (method, model, steps) == ("vat+ent+sntg", "mlp", 30_000) and compiler is not None
    assert best_engine(torch.device("cpu"), method, model, steps) == ("compiled" if pays else "eager")
    assert best_precision(torch.device("cpu"), method) == "float32"


@pytest.mark.parametrize(("platform", "default"), [("linux", "g++"), ("darwin", "clang++"), ("win32", "cl")])
def test_the_compiler_is_the_one_pytorch_would_take(platform, default, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}" if name != "missing" else None)
    monkeypatch.delenv("CXX", raising=False)
    assert cpp_compiler() == default
    monkeypatch.setenv("CXX", "mine")
    assert cpp_compiler() == "mine"
    monkeypatch.setenv("CXX", "missing")
    assert cpp_compiler() is None


def test_the_best_of_a_gpu_is_a_recording():
    assert best_engine(torch.device("cuda"), "pi", "mlp", 1) == "graph"


@pytest.mark.parametrize(("epochs", "engine"), [(1, "eager"), (500, "compiled")])
def test_how_long_a_run_is_decides_what_auto_is(epochs, engine, monkeypatch):
    monkeypatch.setattr(automatic, "cpp_compiler", lambda: "g++")
    monkeypatch.setitem(ENGINES, "compiled", lambda step: step)
    config = resolve("two-moons", 12, "vat", epochs=epochs)
    with own_randomness(config):
        assert Stack([config]).configs[0].engine == engine


def test_that_a_compiler_is_missed_is_said(monkeypatch):
    monkeypatch.setattr(automatic, "cpp_compiler", lambda: None)
    with pytest.warns(Notice, match="no C"):
        assert decided(resolve("two-moons", 12, "vat", device="cpu"), points=6000).engine == "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decided(resolve("two-moons", 12, "vat", device="cpu", epochs=1), points=6000)  # it would not be compiled anyway
        decided(resolve("two-moons", 12, "pi", device="cpu"), points=6000)


def test_a_network_without_convolutions_computes_in_float32_and_says_so():
    config = resolve("two-moons", 12, "pi", precision="bfloat16", epochs=1)
    with own_randomness(config), pytest.warns(Notice, match="bfloat16 is that of convolutions, and the mlp has none"):
        assert Stack([config]).configs[0].precision == "float32"


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("method", ["pi+sntg", "vat+ent+sntg"])
def test_bfloat16_is_said_to_be_too_coarse_for_vat_alone(method, precision, recwarn):
    settings = {"epochs": 1, "epoch_steps": 1, "batch": 20, "precision": precision}
    config = resolve("digits", 20, method, **settings)
    with own_randomness(config):
        assert Stack([config]).configs[0].precision == precision
    told = [str(w.message) for w in recwarn if issubclass(w.category, Notice)]
    if (method, precision) == ("vat+ent+sntg", "bfloat16"):
        assert told[0].startswith("in bfloat16 the directions of vat+ent+sntg are not exact in the first steps")
        assert told[0].endswith(": precision = auto is exact enough")
    else:
        assert not told


@pytest.mark.parametrize(("asked", "decided"), [("auto", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32")])
def test_a_direction_by_differences_is_taken_in_float32_unless_told(asked, decided, recwarn, monkeypatch):
    """16 bits lose x + xi d beside x, and then every direction is zero."""
    monkeypatch.setattr(automatic, "best_precision", lambda device, method: "float16")
    settings = {"epochs": 1, "epoch_steps": 1, "batch": 20, "precision": asked, "xi": 1e-6}
    config = resolve("digits", 20, "vat+sntg", **settings)
    with own_randomness(config):
        assert Stack([config]).configs[0].precision == decided
    told = [str(w.message) for w in recwarn if issubclass(w.category, Notice)]
    lost = "a difference by xi = 1e-06 may be lost in bfloat16, and with it the direction: float32 loses least"
    assert told == ([lost] if decided == "bfloat16" else [])


@pytest.mark.parametrize("method", all_names())
@pytest.mark.parametrize("native", [True, False])
def test_the_best_of_a_gpu_is_16_bits_where_it_has_them_and_float16_for_vat(method, native, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    expected = ("float16" if method.startswith("vat") else "bfloat16") if native else "float32"
    assert best_precision(torch.device("cuda"), method) == expected
