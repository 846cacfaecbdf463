"""How steps are executed: getting an engine ready leaves no trace, and what does not work is replaced.

Compiling takes ten seconds and more, so most tests here put an engine of their own in the compiler's place: one that
takes trial steps as it does.
"""

import importlib
import json
import os
import signal
import weakref
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from engine_runs import SMALL, make_config, make_stack, new_state, same_state

from sntg.errors import Notice, UsageError
from sntg.methods import METHODS
from sntg.models.convolutions import ConvMap
from sntg.training import engines, resolve, resume, resume_series, run, run_series, train
from sntg.training.config import Config
from sntg.training.engines import (
    ENGINES,
    SlowerEngine,
    Step,
    beside_others,
    start_engine,
)
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness
from sntg.training.stopping import Stopped, stop_requests

# --- a step of its own -----------------------------------------------------------------------------------------------


class Counter:
    """A step on one weight that counts what is called."""

    def __init__(self, fail=None):
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.calls, self.fail = [], fail
        parts = [self._part(name) for name in ("prepare", "gather")]
        self.step = Step(parts[0], self.forward, parts[1], self._part("update"))

    def _part(self, name):
        def part(*notes):
            self.calls.append((name, *notes))
            if self.fail == name:
                raise ValueError(f"no {name} today\nand a second line")

        return part

    def forward(self):
        self._part("forward")()
        return 3 * self.weight.sum(), "a note"


def test_a_step_prepares_computes_the_loss_takes_in_its_gradients_and_updates():
    counter = Counter()
    counter.step()
    assert counter.calls == [("prepare",), ("forward",), ("gather",), ("update", "a note")]
    assert counter.weight.grad.tolist() == [3.0]


def engine_that(*, takes=0, fails=None):
    """Stands for an engine: takes trial steps and works, or fails after them."""

    def engine(step):
        for _ in range(takes):
            step()
        if fails is not None:
            raise fails
        return step

    return engine


@pytest.fixture
def put_engine(monkeypatch):
    return lambda name, engine: monkeypatch.setitem(engines.ENGINES, name, engine)


def test_an_engine_that_works_is_ready_and_its_trial_steps_are_undone(put_engine, recwarn):
    put_engine("compiled", engine_that(takes=3))
    counter, undone = Counter(), []
    name, run = start_engine("compiled", counter.step, undo=lambda: undone.append(len(counter.calls)))
    assert name == "compiled"
    assert undone == [12]  # once, after all of them
    assert not recwarn.list
    counter.calls.clear()
    run()
    assert len(counter.calls) == 4


def test_an_engine_that_does_not_work_is_replaced_by_the_next_slower_one_and_the_warning_says_why(put_engine):
    put_engine("graph", engine_that(takes=1, fails=RuntimeError("no stream to capture\nlong\nbacktrace")))
    put_engine("compiled", engine_that(takes=2))
    counter, undone = Counter(), []
    with pytest.warns(UserWarning, match="engine does not work here") as told:
        name, _ = start_engine("graph", counter.step, undo=lambda: undone.append(len(counter.calls)))
    assert name == "compiled"
    assert [str(w.message) for w in told] == [
        "the graph engine does not work here, so compiled runs instead: no stream to capture"
    ]
    assert undone == [4, 12]  # what the one that failed did is undone before the next one begins


def test_where_none_works_but_eager_that_runs_and_each_is_named(put_engine):
    put_engine("graph", engine_that(fails=RuntimeError("no GPU")))
    put_engine("compiled", engine_that(fails=OSError("no compiler")))
    with pytest.warns(UserWarning, match="engine does not work here") as told:
        name, _ = start_engine("graph", Counter().step, undo=lambda: None)
    assert name == "eager"
    first, second = (str(w.message) for w in told)
    assert first.startswith("the graph engine does not work here, so compiled runs instead")
    assert first.endswith(": no GPU")
    assert second.startswith("the compiled engine does not work here, so eager runs instead")
    assert second.endswith(": no compiler")


def test_a_failure_without_words_is_named_by_its_kind(put_engine):
    put_engine("compiled", engine_that(fails=NotImplementedError()))
    with pytest.warns(UserWarning, match=r"eager runs instead: NotImplementedError$"):
        start_engine("compiled", Counter().step, undo=lambda: None)


def test_of_a_compilers_message_the_line_that_names_the_error_is_told(put_engine):
    """Above it is where it happened, below it what to set for more."""
    message = "backend failed\n  File 'x.py', line 3\nKeyError: 'x'\nCppCompileError: no g++ here\n\nSet TORCH_LOGS"
    put_engine("compiled", engine_that(fails=RuntimeError(message)))
    with pytest.warns(UserWarning, match=r"eager runs instead: CppCompileError: no g\+\+ here$"):
        start_engine("compiled", Counter().step, undo=lambda: None)


def test_an_eager_step_that_fails_raises_what_it_raised():
    counter = Counter(fail="update")
    _, run = start_engine("eager", counter.step, undo=lambda: None)
    with pytest.raises(ValueError, match=r"^no update today"):
        run()


def test_a_failure_of_the_last_resort_is_raised(put_engine):
    put_engine("compiled", engine_that(fails=RuntimeError("no compiler")))
    put_engine("eager", engine_that(fails=ValueError("the step itself is wrong")))
    with pytest.warns(UserWarning, match="no compiler"), pytest.raises(ValueError, match=r"^the step itself is wrong$"):
        start_engine("compiled", Counter().step, undo=lambda: None)


def test_the_reason_is_not_that_there_is_one(put_engine):
    """PyTorch's compiler may put a line before, and name the error by no word that says so."""
    put_engine("compiled", engine_that(fails=RuntimeError("backend='inductor' raised:\nNoCompiler: no g++ found")))
    with pytest.warns(UserWarning, match=r"eager runs instead: NoCompiler: no g\+\+ found$"):
        start_engine("compiled", Counter().step, undo=lambda: None)


def test_ctrl_c_is_no_reason_to_try_another_engine(put_engine):
    put_engine("compiled", engine_that(fails=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        start_engine("compiled", Counter().step, undo=lambda: None)


def killed_with_its_compiler(number):
    """Stands for an engine whose compiler dies of a signal that the process only remembers."""

    def engine(step):
        os.kill(os.getpid(), number)
        raise RuntimeError("CppCompileError: C++ compile error")

    return engine


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nor_is_a_compiler_that_dies_of_it_while_the_run_remembers(put_engine, recwarn, number):
    put_engine("compiled", killed_with_its_compiler(number))
    with stop_requests(), pytest.raises(Stopped):
        start_engine("compiled", Counter().step, undo=lambda: None)
    assert not [w for w in recwarn if issubclass(w.category, Notice)]


def test_a_series_stopped_so_goes_on_with_its_engine(put_engine, tmp_path):
    config, real = make_config("pi", engine="compiled", epochs=1), engine_that(takes=2)
    put_engine("compiled", killed_with_its_compiler(signal.SIGINT))
    with pytest.raises(Stopped):
        run_series([config], tmp_path)
    put_engine("compiled", real)
    (trained,) = resume_series(tmp_path)
    assert trained.config.engine == "compiled"


def test_a_run_that_goes_on_where_its_engine_fails_has_it_back_the_next_time(put_engine, tmp_path):
    def stop(stack):
        raise KeyboardInterrupt

    config, works = make_config("pi", engine="compiled", epochs=2, checkpoint_seconds=0.0), engine_that(takes=2)
    put_engine("compiled", works)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, on_step=stop)
    put_engine("compiled", engine_that(fails=RuntimeError("it is gone")))
    with (
        pytest.warns(UserWarning, match="so eager runs instead: it is gone"),
        pytest.raises(KeyboardInterrupt),
    ):
        resume(tmp_path, on_step=stop)
    put_engine("compiled", works)
    assert resume(tmp_path).config.engine == "compiled"


def test_a_compiler_that_names_no_error_is_quoted(put_engine):
    said = "CppCompileError: C++ compile error\n\nCommand:\ng++ x.cpp\n\nOutput:\nthe licence has expired\nbye"
    put_engine("compiled", engine_that(fails=RuntimeError(said)))
    with pytest.warns(UserWarning, match=r"instead: CppCompileError: C\+\+ compile error \(the licence has expired\)$"):
        start_engine("compiled", Counter().step, undo=lambda: None)


def test_what_an_engine_that_failed_has_allocated_is_free_when_the_next_one_begins(put_engine):
    class Memory: ...

    held = []

    def graph(step):
        memory = Memory()
        held.append(weakref.ref(memory))
        raise RuntimeError("too much for one recording")

    def compiled(step):
        held.append(held[0]())
        return step

    put_engine("graph", graph)
    put_engine("compiled", compiled)
    with pytest.warns(UserWarning, match="too much for one recording"):
        start_engine("graph", Counter().step, undo=lambda: None)
    assert held[1] is None


def test_a_lack_of_memory_leads_to_a_slower_engine_only_where_no_other_run_can_end_it(put_engine):
    put_engine("graph", engine_that(fails=torch.OutOfMemoryError("3 GiB are free")))
    put_engine("compiled", engine_that(takes=1))
    with pytest.warns(UserWarning, match="so compiled runs instead: 3 GiB are free"):
        start_engine("graph", Counter().step, undo=lambda: None)
    token = beside_others.set(True)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            start_engine("graph", Counter().step, undo=lambda: None)
    finally:
        beside_others.reset(token)


def test_where_not_even_the_compiler_loads_eager_runs(monkeypatch):
    def fail():
        raise OSError("no folder for the compiler's cache")

    monkeypatch.setattr(engines, "_compiler_settings", fail)
    with pytest.warns(UserWarning, match="so eager runs instead: no folder for the compiler's cache"):
        assert start_engine("compiled", Counter().step, undo=lambda: None)[0] == "eager"


def test_what_torch_cannot_compile_runs_eagerly_and_the_reason_is_torchs():
    """The step asks the host, which the compiler refuses to leave out."""
    weight = torch.nn.Parameter(torch.ones(1))

    def forward():
        return (weight if weight.sum().item() > 0 else 2 * weight).sum(), None

    step = Step(lambda: None, forward, lambda: None, lambda notes: None)
    with pytest.warns(UserWarning, match="the compiled engine does not work here, so eager runs instead: ") as told:
        name, run = start_engine("compiled", step, undo=lambda: None)
    assert name == "eager"
    assert len(str(told[0].message).split(": ", 1)[1]) > 10
    assert "\n" not in str(told[0].message)
    run()
    assert weight.grad is not None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_on_a_cpu_there_is_nothing_to_record_and_the_next_engine_runs(put_engine, monkeypatch):
    """Even where there is a GPU besides: a recording of it would be empty, and so would all training be."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: pytest.fail("it was recorded"))
    put_engine("compiled", engine_that(takes=1))
    with pytest.warns(UserWarning, match="so compiled runs instead: only what a GPU does.*, and device = cpu"):
        (trained,) = train([make_config("pi", "graph", device="cpu", epochs=1)])
    assert trained.config.engine == "compiled"


@pytest.mark.parametrize(
    "switched_off",
    [
        lambda: patch.dict(os.environ, TORCHDYNAMO_DISABLE="1"),
        lambda: torch._dynamo.config.patch(disable=True),  # as TORCH_COMPILE_DISABLE=1 does where Python starts
    ],
)
def test_a_compiler_that_is_switched_off_is_no_compiled_run(switched_off):
    """PyTorch's would do nothing, and not say so: then the run would be called what it is not."""
    config = resolve("two-moons", 12, "pi", epochs=1, engine="compiled")
    with switched_off(), own_randomness(config), pytest.warns(SlowerEngine, match="compiler is switched off"):
        assert Stack([config]).configs[0].engine == "eager"


def test_a_cache_that_cannot_be_is_told_before_the_compiler_loads(monkeypatch, tmp_path):
    """It would stop half-way loading, and what asks for it next, as VAT does, would meet the half."""
    importlib.import_module("torch._dynamo")  # so that what is met here is not its own refusal
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setitem(engines.ENGINES, "compiled", lambda step: pytest.fail("it was loaded"))
    config = resolve("two-moons", 12, "pi", epochs=1, engine="compiled")
    with own_randomness(config), pytest.warns(SlowerEngine, match="Not a directory"):
        assert Stack([config]).configs[0].engine == "eager"


# --- trial steps leave no trace --------------------------------------------------------------------------------------

ALL = [f"{base}{added}" for base in METHODS for added in ("", "+ent+sntg")]


@pytest.mark.parametrize("method", ALL)
def test_after_trial_steps_all_state_is_as_if_there_had_been_none(method, put_engine):
    """Weights, moments, averages, target store, log, places in the data, random numbers; nine steps are two epochs."""
    put_engine("compiled", engine_that(takes=9))
    settings = {"pairs": "random", "n_pairs": 7, "noise": 0.1}
    state, tried = new_state(make_config(method, "compiled", **settings))
    expected, _ = new_state(make_config(method, "eager", **settings))
    assert same_state(state, expected)
    assert all(p.grad is None for p in tried.model.parameters())
    assert tried.histories == [[]]
    assert (tried.step, tried.log.steps) == (0, 0)


def test_running_statistics_are_as_before_the_trial_steps_too(put_engine):
    put_engine("compiled", engine_that(takes=2))
    settings = {"epochs": 1, "epoch_steps": 1, "batch": 20, "normalisation": "batch", "bn_momentum": 0.5}
    tried, fresh = (new_state(resolve("digits", 20, "mt", engine=e, **settings))[0] for e in ("compiled", "eager"))
    assert sum("running" in name for name in tried) > 4
    assert same_state(tried, fresh)


@pytest.mark.parametrize("takes", [1, 5])
@pytest.mark.parametrize("method", ["pi+ent+sntg", "tempens+sntg", "mt+sntg", "vat"])
def test_a_run_does_not_depend_on_how_many_trial_steps_came_before(method, takes, put_engine):
    put_engine("compiled", engine_that(takes=takes))
    config = make_config(method, "compiled", noise=0.1, epochs=3)
    (tried,), (fresh,) = train([config]), train([replace(config, engine="eager")])
    assert tried.history == fresh.history
    assert same_state(tried.model.state_dict(), fresh.model.state_dict())


@pytest.mark.parametrize("method", ["pi", "tempens+ent+sntg"])
def test_a_run_whose_engine_failed_after_some_steps_is_the_eager_run(method, put_engine):
    put_engine("compiled", engine_that(takes=6, fails=RuntimeError("out of registers")))
    config = make_config(method, "compiled", noise=0.1, epochs=3)
    with pytest.warns(UserWarning, match="so eager runs instead: out of registers"):
        (fallen,) = train([config])
    (fresh,) = train([replace(config, engine="eager")])
    assert fallen.config == fresh.config
    assert fallen.config.engine == "eager"
    assert fallen.history == fresh.history
    assert same_state(fallen.model.state_dict(), fresh.model.state_dict())


@pytest.mark.parametrize("works", [False, True])
def test_a_run_that_became_eager_has_no_kernels_of_ours(works, put_engine):
    """They may be what did not work, and a resumed run, which is eager from its start, has none."""
    put_engine("compiled", engine_that(takes=1, fails=None if works else RuntimeError("no compiler here")))
    config = resolve("digits", 20, "mt", engine="compiled", batch=20)
    with nullcontext() if works else pytest.warns(UserWarning, match="no compiler here"):
        stack = Stack([config])
    for net in (stack.model, stack.objective.base.average):
        assert {m.fused for m in net.modules() if isinstance(m, ConvMap)} == {works}


def test_a_run_whose_engine_failed_between_gradients_and_update_is_the_eager_run(put_engine):
    """Gradients that a broken step has left behind would be added to those of the first step."""

    def engine(step):
        step.prepare()
        loss, _ = step.forward()
        loss.backward()
        raise RuntimeError("the recording broke off")

    put_engine("compiled", engine)
    config = make_config("pi", "compiled", epochs=1)
    with pytest.warns(UserWarning, match="the recording broke off"):
        (fallen,) = train([config])
    (fresh,) = train([replace(config, engine="eager")])
    assert fallen.history == fresh.history
    assert same_state(fallen.model.state_dict(), fresh.model.state_dict())


# --- what is written down --------------------------------------------------------------------------------------------


def test_what_auto_became_is_in_the_configs_of_the_stack():
    config = resolve("two-moons", 12, "pi", **SMALL)
    assert (config.engine, config.precision) == ("auto", "auto")
    runs = make_stack(config, replace(config, seed=1))
    assert [(c.engine, c.precision) for c in runs.configs] == [("eager", "float32")] * 2
    assert (runs.shared.engine, runs.shared.precision) == ("eager", "float32")


def test_what_was_asked_for_stays(put_engine):
    put_engine("compiled", engine_that(takes=1))
    asked = resolve("digits", 50, "pi", engine="compiled", precision="bfloat16", epochs=1, epoch_steps=2)
    (config,) = make_stack(asked).configs
    assert (config.engine, config.precision) == ("compiled", "bfloat16")


def test_the_engine_that_runs_is_in_the_config_and_not_the_one_that_failed(put_engine):
    put_engine("compiled", engine_that(fails=RuntimeError("no compiler")))
    with pytest.warns(UserWarning, match="no compiler"):
        runs = make_stack(make_config("pi", "compiled"))
    assert [c.engine for c in runs.configs] == ["eager"]


@pytest.mark.parametrize(("asked", "written"), [("auto", "eager"), ("compiled", "compiled")])
def test_the_config_file_says_what_ran(tmp_path, put_engine, asked, written):
    put_engine("compiled", engine_that(takes=1))
    run(make_config("pi", asked, epochs=1), tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["engine"], config["precision"]) == (written, "float32")


def test_the_config_file_says_what_ran_where_the_wanted_engine_failed(tmp_path, put_engine):
    put_engine("compiled", engine_that(fails=RuntimeError("no compiler")))
    with pytest.warns(UserWarning, match="no compiler"):
        run(make_config("pi", "compiled", epochs=1), tmp_path / "run")
    assert json.loads((tmp_path / "run/config.json").read_text())["engine"] == "eager"


def test_neither_is_a_departure_from_a_recipe():
    config = resolve("two-moons", 12, "pi", engine="compiled", precision="bfloat16")
    assert config.overridden == ()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_a_precision_that_needs_a_gpu_is_refused_on_a_cpu(precision):
    problem = f"precision = {precision} needs a GPU, and device = cpu: use float32, bfloat16 or auto"
    with pytest.raises(UsageError, match=f"^{problem}$"):
        Config("two-moons", 12, "pi", device="cpu", precision=precision)


@pytest.mark.parametrize("key", ["engine", "precision"])
def test_what_does_not_exist_is_refused_with_what_does(key):
    with pytest.raises(UsageError, match=f"{key}.*'fastest'.*auto"):
        Config("two-moons", 12, "pi", **{key: "fastest"})


@pytest.mark.parametrize("engine", ["auto", "eager", "compiled"])
@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16"])
def test_what_a_cpu_can_do_is_accepted(engine, precision):
    config = Config("two-moons", 12, "pi", engine=engine, precision=precision)
    assert (config.engine, config.precision) == (engine, precision)


def test_every_engine_there_is_may_be_asked_for():
    assert set(ENGINES) == {"eager", "compiled", "graph"}
