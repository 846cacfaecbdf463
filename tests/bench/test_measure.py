"""Rows: their figures belong together, and to the engine that ran. Seconds themselves are never judged."""

import os
import sys
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch

from sntg.bench import measure
from sntg.bench.cases import METHODS, Case
from sntg.bench.measure import Bench, Row, overheads
from sntg.bench.starting import Start
from sntg.bench.timing import EVALUATIONS, ROUNDS, matrix_rate, take_turns
from sntg.training.engines import ENGINES

EAGER = Case("two-moons", "pi+sntg", "eager", "float32")
COMPILED = replace(EAGER, engine="compiled")


@pytest.fixture
def stand_in(monkeypatch):
    """In the compiler's place: the step as it is."""
    monkeypatch.setitem(ENGINES, "compiled", lambda step: step)


@pytest.fixture
def fake_cuda(monkeypatch):
    """A GPU's questions are answered: 3 GiB are in use at first, and each peak is 2 GiB above."""
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 5 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    return calls


def test_the_figures_of_a_row_belong_together(small):
    (row,) = Bench("cpu", steps=1).measure([EAGER])
    assert (row.engine, row.asked, row.auto, row.model, row.failed) == ("eager", "eager", True, "mlp", "")
    assert len(row.rounds_ms) == row.steps == ROUNDS
    assert row.ms_per_step == median(row.rounds_ms) > 0
    assert row.images_per_s == pytest.approx(20 / row.ms_per_step * 1e3)
    assert row.tflops == pytest.approx(row.operations / row.ms_per_step / 1e9)
    assert row.share == pytest.approx(row.tflops / 2)
    assert row.epoch_s == pytest.approx(row.epoch_steps * row.ms_per_step / 1e3)
    assert row.epoch_steps == 60  # two moons have 6000 points
    assert row.peak_gib == 0.5  # that of a process of its own
    assert row.evaluation_points == 6000
    assert row.warm_up_s > 0
    assert row.second_warm_up_s is None


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_gpus_plan_runs(small, method):
    (row,) = Bench("cpu", steps=1).measure([Case("cifar10", method, "eager", "float32")])
    assert row.failed == ""
    assert row.epoch_steps == (400 if method.startswith("vat") else 500)
    assert row.evaluation_points == 10
    assert row.random


def test_a_case_is_measured_for_about_as_many_steps_as_asked(small):
    (row,) = Bench("cpu", steps=20).measure([EAGER])
    assert row.steps == 27  # the next multiple of the rounds


def test_engines_and_methods_take_turns(small, stand_in):
    rows = Bench("cpu", steps=1).measure([EAGER, COMPILED, replace(EAGER, method="pi")])
    assert [(row.method, row.engine) for row in rows] == [
        ("pi+sntg", "eager"),
        ("pi+sntg", "compiled"),
        ("pi", "eager"),
    ]
    (found,) = overheads(rows)
    assert (found["method"], found["engine"]) == ("pi", "eager")
    assert found["ratio"] == median(b / a for a, b in zip(rows[2].rounds_ms, rows[0].rounds_ms, strict=True))


def test_turns_go_round():
    calls = []
    take_turns([lambda: calls.append("a"), lambda: calls.append("b")], [1, 2], torch.device("cpu"))
    assert calls == ["a", "b", "b"] * ROUNDS


def test_starts_are_timed_in_new_processes(small, stand_in, monkeypatch):
    bench = Bench("cpu", steps=1)
    (row,) = bench.measure([COMPILED])
    assert (row.warm_up_s, row.second_warm_up_s) == (30.0, None)  # on a CPU, eager is what `auto` means
    (row,) = bench.measure([COMPILED])  # as `compiled` after `graph` is
    assert (row.warm_up_s, row.second_warm_up_s) == (None, None)


def test_what_auto_means_is_started_twice(small, stand_in, monkeypatch):
    starts = iter([Start(30.0, 0.5), Start(9.0, 0.4)])
    monkeypatch.setattr(measure, "start_anew", lambda case, device: next(starts))
    monkeypatch.setattr(measure, "automatic", lambda dataset, method, device: COMPILED)
    (row,) = Bench("cpu", steps=1).measure([COMPILED])
    assert (row.warm_up_s, row.second_warm_up_s, row.peak_gib) == (30.0, 9.0, 0.5)


def test_starts_find_bytecode(small, stand_in, monkeypatch):
    asked = []

    def kept_bytecode(folder, device):
        asked.append((folder, os.environ["TRITON_CACHE_DIR"]))
        return {"PYTHONPYCACHEPREFIX": "kept"}

    def start_anew(case, device):
        assert os.environ["PYTHONPYCACHEPREFIX"] == "kept"
        assert asked[0][1] != os.environ["TRITON_CACHE_DIR"]
        return Start(30.0)

    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setattr(measure, "kept_bytecode", kept_bytecode)
    monkeypatch.setattr(measure, "start_anew", start_anew)
    with closing(Bench("cpu", steps=1)) as bench:
        bench.measure([COMPILED, replace(COMPILED, method="pi")])
    assert len(asked) == 1
    assert "PYTHONPYCACHEPREFIX" not in os.environ
    assert not asked[0][0].parent.exists()


def test_where_a_start_fails_there_is_no_figure(small, stand_in, monkeypatch):
    monkeypatch.setattr(measure, "start_anew", lambda case, device: Start())
    (row,) = Bench("cpu", steps=1).measure([COMPILED])
    assert (row.warm_up_s, row.peak_gib) == (None, None)
    assert row.ms_per_step > 0


def test_a_step_that_is_not_compiled_starts_anew_for_the_memory_alone(small, stand_in, monkeypatch):
    started = []
    monkeypatch.setattr(measure, "start_anew", lambda case, device: started.append(case) or Start(30.0, 0.5))
    (eager, compiled) = Bench("cpu", steps=1).measure([EAGER, COMPILED])
    assert started == [EAGER, COMPILED]
    assert 0 < eager.warm_up_s < 30
    assert eager.peak_gib == compiled.peak_gib == 0.5


def test_a_start_finds_nothing_that_another_method_has_compiled(small, stand_in, monkeypatch):
    caches = []

    def start_anew(case, device):
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            folder = Path(os.environ[name])
            caches.append(folder)
            assert not folder.exists()
            folder.mkdir(parents=True)
        return Start(30.0)

    monkeypatch.setattr(measure, "start_anew", start_anew)
    monkeypatch.setenv("TRITON_CACHE_DIR", "mine")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with closing(Bench("cpu", steps=1)) as bench:
        bench.measure([COMPILED, replace(COMPILED, method="pi")])
    assert len(set(caches)) == 4
    assert not any(cache.exists() for cache in caches)
    assert os.environ["TRITON_CACHE_DIR"] == "mine"
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_a_row_shows_the_engine_that_ran(small, monkeypatch):
    def broken(step):
        raise ValueError("no compiler here")

    monkeypatch.setitem(ENGINES, "compiled", broken)
    with pytest.warns(UserWarning, match="no compiler here"):
        (row,) = Bench("cpu", steps=1).measure([COMPILED])
    assert (row.asked, row.engine) == ("compiled", "eager")
    assert not row.auto
    assert row.warm_up_s > 0
    assert row.second_warm_up_s is None


def test_a_case_that_fails_says_why_and_the_next_one_runs(small, monkeypatch):
    bench = Bench("cpu", steps=1)
    bench.measure([EAGER])
    with monkeypatch.context() as broken:
        broken.setattr(measure, "begin", lambda config, inputs: torch.zeros(2) @ torch.zeros(3))
        (row,) = bench.measure([EAGER])
    assert row.ms_per_step is None
    assert "size" in row.failed
    assert "\n" not in row.failed
    assert bench.measure([EAGER])[0].failed == ""


def test_a_gpu_is_waited_for_and_its_memory_counted_without_the_data(small, monkeypatch, fake_cuda):
    released = []
    monkeypatch.setattr(measure, "release", released.append)
    bench = Bench("cpu", steps=1)
    bench.device, bench.rates = torch.device("cuda"), {"float32": 2.0}
    (row,) = bench.measure([Case("cifar10", "pi+sntg", "eager", "float32")])
    assert row.failed == ""
    assert row.peak_gib == 2.0
    assert not row.auto  # on a GPU, that is graph
    assert fake_cuda.count("reset") == 1
    assert fake_cuda.count("synchronize") == 2 * (2 + ROUNDS + EVALUATIONS)  # begun, stepped, rounds, evaluations
    assert set(released) == {bench.device}


def test_a_released_run_is_gone(fake_cuda):
    class Run:
        def __init__(self):
            self.step = self.advance  # a circle, as a run's engine makes

        def advance(self): ...

    gone = weakref.ref(Run())
    assert gone() is not None
    measure.release(torch.device("cuda"))
    assert gone() is None
    assert fake_cuda == ["empty_cache"]


def test_a_ratio_is_of_steps_that_were_asked_for_alike():
    """Where no engine but eager works, every case falls back to it: each is compared with its own kind."""
    asked = [Row("digits", "pi", how, "eager", "float32", auto=True, rounds_ms=[1.0]) for how in ("eager", "compiled")]
    graph = [replace(row, method="pi+sntg", rounds_ms=[2.0 + number]) for number, row in enumerate(asked)]
    found = [(each["asked"], each["engine"], each["ratio"]) for each in overheads([*asked, *graph])]
    assert found == [("eager", "eager", 2.0), ("compiled", "eager", 3.0)]


def test_no_ratio_is_taken_of_different_engines():
    one = Row("cifar10", "pi", "graph", "graph", "bfloat16", auto=True, rounds_ms=[1.0])
    fallen = replace(one, method="pi+sntg", engine="compiled", rounds_ms=[2.0])
    assert overheads([one, fallen]) == []
    assert [found["ratio"] for found in overheads([one, replace(fallen, engine="graph")])] == [2.0]
    assert overheads([replace(r, rounds_ms=[]) for r in (one, replace(fallen, engine="graph"))]) == []


def test_the_rate_of_products_is_positive_and_leaves_no_setting_behind(monkeypatch):
    monkeypatch.setattr(sys.modules["sntg.bench.timing"], "SIDE", {"cpu": 16})
    before = torch.backends.cuda.matmul.fp32_precision
    for precision in ("float32", "tf32", "bfloat16"):
        assert matrix_rate(precision, torch.device("cpu")) > 0
        assert torch.backends.cuda.matmul.fp32_precision == before
