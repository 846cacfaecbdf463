"""How steps are executed: whichever engine runs, training is the same, and getting it ready leaves no trace.

Compiling takes ten seconds and more, so most tests here either share a stack that is compiled once or put an engine of
their own in the compiler's place: one that takes trial steps as it does. The rest are slow.
"""

import json
import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from sntg.errors import UsageError
from sntg.methods import METHODS, all_names
from sntg.models.noise import GaussianNoise
from sntg.training import engines, resolve, run, train
from sntg.training.config import Config
from sntg.training.engines import ENGINES, Step, best_engine, best_precision, start_engine
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness

# 120 points, 4 steps an epoch; all terms at full weight and rate from the first step on.
SMALL = {"validation": 5880, "batch": 30, "epochs": 13, "epoch_steps": 4, "eval_every": 13}
SMALL |= {"ramp_up": 0, "ramp_down": 0, "skip_first": False, "graph_start": 0, "graph_ramp": 0, "k": 0.4}


def make_config(method, engine="eager", **settings):
    apart = {"labelled_batch": 6} if method.startswith("vat") else {}
    return resolve("two-moons", 12, method, engine=engine, **(SMALL | apart | settings))


def make_stack(*configs):
    with own_randomness(configs[0]):
        return Stack(configs)


def new_state(config):
    """All that the first step depends on, the random numbers included, and the stack."""
    with own_randomness(config):
        runs = Stack([config])
        return copied(runs.state()), runs


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def same_state(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@contextmanager
def same_draws():
    """Inside, compiled code takes its random numbers from the generator one by one, as eager code does.

    The compiler may take them in another order, though. So the noise, which is off, draws nothing: what is left is
    VAT's start or the graph's pairs, one draw a step.
    """
    with pytest.MonkeyPatch.context() as patch, torch._inductor.config.patch(fallback_random=True):
        patch.setattr(GaussianNoise, "draw", lambda self, x: torch.zeros_like(x))
        yield


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


def test_ctrl_c_is_no_reason_to_try_another_engine(put_engine):
    put_engine("compiled", engine_that(fails=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        start_engine("compiled", Counter().step, undo=lambda: None)


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
def test_a_recording_without_a_gpu_does_not_work_and_leads_to_the_next(put_engine):
    put_engine("compiled", engine_that())
    with pytest.warns(UserWarning, match="the graph engine does not work here, so compiled runs instead"):
        name, _ = start_engine("graph", Counter().step, undo=lambda: None)
    assert name == "compiled"


def test_the_best_of_a_cpu_is_eager_in_float32():
    assert best_engine(torch.device("cpu")) == "eager"
    assert best_precision(torch.device("cpu"), "vat+ent+sntg") == "float32"
    assert best_engine(torch.device("cuda")) == "graph"


def test_a_network_without_convolutions_computes_in_float32_and_says_so():
    config = resolve("two-moons", 12, "pi", precision="bfloat16", epochs=1)
    with own_randomness(config):
        assert Stack([config]).configs[0].precision == "float32"


@pytest.mark.parametrize("method", all_names())
@pytest.mark.parametrize("native", [True, False])
def test_the_best_of_a_gpu_is_16_bits_where_it_has_them_and_float16_for_vat(method, native, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    expected = ("float16" if method.startswith("vat") else "bfloat16") if native else "float32"
    assert best_precision(torch.device("cuda"), method) == expected


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


@pytest.mark.parametrize(
    ("key", "value"), [("engine", "graph"), ("precision", "tf32"), ("precision", "float16")], ids=str
)
def test_what_needs_a_gpu_is_refused_on_a_cpu(key, value):
    with pytest.raises(UsageError, match=f"^{key} = {value} needs a GPU, and device = cpu: use auto$"):
        Config("two-moons", 12, "pi", device="cpu", **{key: value})


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


# --- compiled: the same training -------------------------------------------------------------------------------------

# Of these the default tier compiles one: the one with the most in it that differs from eager in how it is executed.
EVERY = ["supervised", "sntg", "pi", "tempens", "mt", "vat"]
EVERY += ["supervised+ent+sntg", "pi+ent+sntg", "tempens+ent+sntg", "mt+ent+sntg"]


def fifty_steps(config, perturbed=False):
    """Where 50 steps lead, and from where; without noise the batches, pairs and VAT's start are all that is drawn.

    perturbed: every weight begins one unit in the last place higher.
    """
    with same_draws(), own_randomness(config):
        runs = Stack([config])
        assert runs.configs[0].engine == config.engine
        theta = runs.optimiser.theta
        start = theta.clone()
        if perturbed:
            theta.copy_(torch.nextafter(theta, torch.full_like(theta, torch.inf)))
        for _ in range(50):
            runs.advance()
    return runs, start


def assert_compiled_is_eager(method, chaotic=False, **settings):
    """chaotic: training takes a rounding error far, whoever computes; so far and some more may the engines part."""
    config = make_config(method, noise=0.0, **settings)
    eager, start = fifty_steps(config)
    compiled, same_start = fifty_steps(replace(config, engine="compiled"))
    assert torch.equal(start, same_start)
    ours, theirs = compiled.optimiser.theta, eager.optimiser.theta
    drift = 1e-5 * theirs.norm()
    if chaotic:
        drift = 20 * (fifty_steps(config, perturbed=True)[0].optimiser.theta - theirs).norm()
        assert drift < 0.01 * theirs.norm()
    assert (theirs - start).norm() > 1e-3 * theirs.norm()
    assert (ours - theirs).norm() < drift
    assert_every_step_is_eager(compiled, config)
    if chaotic:
        return
    averages = [list(runs.objective.base.average.parameters()) for runs in (compiled, eager)]
    for p, q in zip(*averages, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(compiled.histories[0], eager.histories[0], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-6)
        assert (ours["lr"], ours["weight"]) == (theirs["lr"], theirs["weight"])
        for name in ("teacher_error", "graph_precision", "graph_recall"):
            assert ours[name] == pytest.approx(theirs[name], abs=2.0 if "error" in name else 0.02)


def assert_every_step_is_eager(compiled, config):
    """The same 50 steps, each from the eager run's own state: no error adds up, so none may be seen."""
    with same_draws(), own_randomness(config):
        eager = Stack([config])
        for _ in range(50):
            state, before = copied(eager.state()), eager.optimiser.theta.clone()
            eager.advance()
            compiled.load_state(state, [list(h) for h in eager.histories])
            compiled.advance()
            step = eager.optimiser.theta - before
            difference = compiled.optimiser.theta - eager.optimiser.theta
            assert difference.norm() < 2e-3 * step.norm() + 1e-8 * before.norm()  # at a tiny rate steps are rounding


def test_compiled_training_is_eager_training():
    assert_compiled_is_eager("vat+ent+sntg")


@pytest.mark.slow
@pytest.mark.parametrize("method", EVERY)
def test_compiled_training_is_eager_training_for_every_method(method):
    assert_compiled_is_eager(method)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("mt+sntg", {"labelled_batch": 6}),
        ("mt", {"consistency": "kl"}),
        ("pi+sntg", {"pairs": "all"}),
        ("pi+sntg", {"pairs": "random", "n_pairs": 7}),
        ("pi+sntg", {"graph": "soft", "graph_labels": "teacher"}),
        ("sntg", {"graph": "knn"}),
        ("vat", {"xi": 0.1, "power_iterations": 2}),
        ("pi", {"ramp_up": 5, "ramp_down": 5, "stepwise": True, "early_epochs": 2, "early_momentum": 0.9}),
    ],
    ids=str,
)
def test_compiled_training_is_eager_training_in_every_variant(method, settings):
    assert_compiled_is_eager(method, **settings)


@pytest.mark.slow
def test_compiled_training_parts_from_eager_training_no_faster_than_rounding_does():
    """The entropy alone drives every point to a class of its own, and any difference with it."""
    assert_compiled_is_eager("supervised+ent", chaotic=True)


@pytest.mark.slow
def test_runs_of_a_compiled_stack_train_as_they_do_eagerly():
    configs = [make_config("pi+sntg", noise=0.0, lr=lr, seed=seed) for lr, seed in ((0.003, 0), (0.001, 1))]
    ends = []
    for engine in ("eager", "compiled"):
        with same_draws(), own_randomness(configs[0]):
            runs = Stack([replace(c, engine=engine) for c in configs])
            for _ in range(50):
                runs.advance()
        ends.append(runs.optimiser.theta)
    assert (ends[1] - ends[0]).norm() < 1e-5 * ends[0].norm()


# All terms at full weight and rate, and nothing drawn but batches and VAT's start.
IMAGES = {"ramp_up": 0, "ramp_down": 0, "skip_first": False, "epochs": 3, "epoch_steps": 8, "batch": 20}
IMAGES |= {"noise": 0.0, "dropout": 0.0, "translate": 0, "flip": False}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pi+sntg", "vat+ent+sntg"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_compiled_steps_on_images_are_eager_steps(method, precision):
    """One step at a time from a common state: a convolutional net at full rate takes a rounding error far."""
    settings = IMAGES | {"batch": 40, "labelled_batch": 8, "precision": precision}
    config = resolve("digits", 20, method, engine="eager", **settings)
    with same_draws(), own_randomness(config):
        compiled, eager = Stack([replace(config, engine="compiled")]), Stack([config])
        for _ in range(5):
            state = copied(eager.state())
            eager.advance()
            compiled.load_state(state, [[]])
            compiled.advance()
            step = eager.optimiser.theta - torch.cat([state[n].flatten() for n, _ in named(eager)])
            difference = compiled.optimiser.theta - eager.optimiser.theta
            assert difference.norm() < (0.01 if precision == "float32" else 0.5) * step.norm()


def named(runs):
    return [(f"model/{name}", p) for name, p in runs.model.named_parameters()]


# --- compiled: nothing is frozen -------------------------------------------------------------------------------------


class Compiled:
    """A compiled stack in the midst of an epoch, and steps from there under chosen conditions, all of them data."""

    def __init__(self, config):
        self.config = config
        with own_randomness(config):
            self.runs = Stack([config])
            self.at_start = copied(self.runs.state())
            for _ in range(5):
                self.runs.advance()
            self.state = copied(self.runs.state())
        assert self.runs.configs[0].engine == "compiled"
        self.history = [list(h) for h in self.runs.histories]
        networks = self.runs.model, self.runs.objective.base.average
        noises = [m for net in networks for m in net.modules() if isinstance(m, GaussianNoise)]
        self.noise = [(noise.std, noise.std.clone()) for noise in noises]

    def step(self, seed, noise=True, graph=True, lr=True):
        """The weights after a step from that state with random numbers of its own."""
        self.prepare(noise, graph, lr)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.runs.advance()
        return self.runs.optimiser.theta.clone()

    def prepare(self, noise, graph, lr):
        self.runs.timetable.loaded = None
        with torch.random.fork_rng():
            self.runs.load_state(self.state, [list(h) for h in self.history])
        for std, value in self.noise:
            std.copy_(value if noise else torch.zeros_like(value))
        if not graph:
            self.runs.timetable.lines[:, 4 + self.runs.timetable.terms.index("sntg")] = 0.0
        if not lr:
            self.runs.timetable.lines[:, 3] = 0.0


@pytest.fixture(scope="module")
def points():
    """Mean Teacher with everything on points that is drawn within a step: noise and pairs."""
    return Compiled(make_config("mt+ent+sntg", "compiled", pairs="random", n_pairs=7, noise=0.1))


def test_compiling_leaves_no_trace(points):
    expected, _ = new_state(replace(points.config, engine="eager"))
    assert same_state(points.at_start, expected)


def test_a_compiled_step_with_the_same_random_numbers_is_the_same(points):
    assert torch.equal(points.step(1), points.step(1))


def test_a_compiled_step_draws_its_noise_anew(points):
    assert not torch.equal(points.step(1, graph=False), points.step(2, graph=False))


def test_a_compiled_step_draws_its_pairs_anew(points):
    assert not torch.equal(points.step(1, noise=False), points.step(2, noise=False))


def test_without_noise_and_pairs_a_compiled_step_depends_on_no_random_number(points):
    """So it was the noise, and the pairs, that told the steps apart."""
    assert torch.equal(points.step(1, noise=False, graph=False), points.step(2, noise=False, graph=False))


def test_consecutive_compiled_steps_have_noise_of_their_own(points):
    """At a rate of zero the network stays; put back to the same batch, its loss differs by the noise alone."""
    points.prepare(noise=True, graph=False, lr=False)
    losses, sums = [], points.runs.log.losses.clone()
    for _ in range(3):
        points.runs.batches.load_state({n[8:]: t for n, t in points.state.items() if n.startswith("batches/")})
        points.runs._run()
        losses.append(tuple((points.runs.log.losses - sums)[:2, 0].tolist()))
        sums = points.runs.log.losses.clone()
    assert len(set(losses)) == 3


def test_consecutive_compiled_steps_have_batches_of_their_own(points):
    """At a rate of zero and without noise the loss differs by the batch alone, and is that of the batch's rows."""
    points.prepare(noise=False, graph=False, lr=False)
    runs = points.runs
    sums, seen = runs.log.losses.clone(), []
    for _ in range(3):
        stream = runs.batches.streams["all"]
        rows = stream.order[0, stream.taken : stream.taken + 30]
        runs._run()
        entropy = (runs.log.losses - sums)[runs.log.names.index("entropy"), 0].item()
        sums = runs.log.losses.clone()
        with torch.no_grad():
            p = runs.model(runs.batches.x[:, rows]).logits.softmax(-1)
        assert entropy == pytest.approx(-(p * p.log()).sum(-1).mean().item(), rel=1e-4)
        seen.append(entropy)
    assert len(set(seen)) == 3


def test_every_compiled_step_has_the_rate_and_weights_of_its_own_line(points):
    """Were the first step's captured, the later ones would move the weights whatever the timetable says."""
    before = torch.cat([points.state[name].flatten() for name, _ in named(points.runs)])
    assert torch.equal(points.step(1, lr=False), before)
    assert not torch.equal(points.step(1), before)
    assert not torch.equal(points.step(1, graph=False), points.step(1, graph=True))


def test_stopped_in_mid_run_a_compiled_run_goes_on_to_the_same_bits(points):
    """In a stack that is compiled anew, whatever its random numbers were."""
    state, history = points.state, [list(h) for h in points.history]
    with own_randomness(points.config):
        points.prepare(noise=True, graph=True, lr=True)
        points.runs.load_state(state, history)
        while points.runs.step < 14:
            points.runs.advance()
        expected = copied(points.runs.state())
    with own_randomness(replace(points.config, seed=99)):
        again = Stack([points.config])
        assert again.configs[0].engine == "compiled"
        again.load_state(state, [list(h) for h in points.history])
        while again.step < 14:
            again.advance()
        assert same_state(again.state(), expected)
    assert again.histories[0] == points.runs.histories[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sntg", "pi+ent+sntg", "tempens+ent+sntg", "vat+ent+sntg"])
@pytest.mark.parametrize("stop", [3, 6])
def test_every_compiled_method_goes_on_to_the_same_bits(method, stop):
    config = make_config(method, "compiled", pairs="random", n_pairs=7, noise=0.1, epochs=3)
    with own_randomness(config):
        runs = Stack([config])
        for _ in range(stop):
            runs.advance()
        state, history = copied(runs.state()), [list(h) for h in runs.histories]
        while not runs.finished:
            runs.advance()
        expected = copied(runs.state())
    with own_randomness(replace(config, seed=99)):
        again = Stack([config])
        again.load_state(state, history)
        while not again.finished:
            again.advance()
        assert same_state(again.state(), expected)
    assert again.histories == runs.histories


@pytest.mark.slow
@pytest.mark.parametrize(
    "drawn", [{"dropout": 0.5}, {"translate": 2}, {"flip": True}, {"noise": 0.3}, {}], ids=lambda d: "-".join(d)
)
def test_compiled_steps_on_images_draw_masks_places_and_flips_anew(drawn):
    """Each alone; with none of them the step depends on no random number."""
    runs = Compiled(resolve("digits", 20, "pi", engine="compiled", **(IMAGES | drawn)))
    before = torch.cat([runs.state[name].flatten() for name, _ in named(runs.runs)])
    first, again, other = runs.step(1), runs.step(1), runs.step(2)
    assert not torch.equal(first, before)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (not drawn)


@pytest.mark.slow
def test_a_compiled_run_warns_of_nothing_and_reports_as_an_eager_one_does(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trained = run(make_config("pi+sntg", "compiled", noise=0.1), tmp_path / "run")
    assert trained.config.engine == "compiled"
    assert 0 <= trained.error <= 100
