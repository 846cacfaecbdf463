"""Compiled training is eager training, with the same random numbers on a CPU, and nothing in it is frozen.

Compiling takes ten seconds and more, so most tests here share a stack that is compiled once. The rest are slow.
"""

import warnings
from dataclasses import replace

import pytest
import torch
from engine_runs import copied, fixed_graph, make_config, new_state, same_state

from sntg.models.noise import GaussianNoise
from sntg.training import resolve, run
from sntg.training.arithmetic import sums_in_order
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness

# --- compiled: the same training -------------------------------------------------------------------------------------

# Of these the default tier compiles one: the one with the most in it that differs from eager in how it is executed.
EVERY = ["supervised", "sntg", "pi", "tempens", "mt", "vat"]
EVERY += ["supervised+ent+sntg", "pi+ent+sntg", "tempens+ent+sntg", "mt+ent+sntg"]


# Before 2.13 the compiler may draw noises, masks and directions in another order: as good a run, but not eager's.
SAME_DRAWS = torch.__version__ >= (2, 13)


def fifty_steps(config, twin=None):
    """Where 50 steps lead, and from where.

    twin: the number of a run whose weights begin 1e-7 of their size away, where rounding has them as well.
    """
    with own_randomness(config):
        runs = Stack([config])
        assert runs.configs[0].engine == config.engine
        theta = runs.optimiser.theta
        start = theta.clone()
        if twin is not None:
            theta.mul_(1 + 1e-7 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(twin)))
        for _ in range(50):
            runs.advance()
    return runs, start


def assert_compiled_is_eager(method, **settings):
    """They part no further than rounding takes eager runs apart.

    That is mostly 1e-7 of the weights' norm, but 1e-3 and more where it moves a point across a border between classes,
    or a distance across the margin.
    """
    config = make_config(method, noise=0.0, **settings)
    compiled, same_start = fifty_steps(replace(config, engine="compiled"))
    if method.startswith("vat") and not SAME_DRAWS:
        pytest.skip("before torch 2.13 the compiler may draw directions and noise in another order: it compiled them")
    eager, start = fifty_steps(config)
    assert torch.equal(start, same_start)
    ours, theirs = compiled.optimiser.theta, eager.optimiser.theta
    norm = theirs.norm()
    parted = max((fifty_steps(config, twin)[0].optimiser.theta - theirs).norm() for twin in range(8))
    assert parted < 0.01 * norm
    assert (theirs - start).norm() > 1e-3 * norm
    assert (ours - theirs).norm() < 1e-5 * norm + 3 * parted
    if parted < 1e-5 * norm:
        assert_same_report(compiled, eager)
    assert_every_step_is_eager(compiled, config)


def assert_same_report(compiled, eager):
    averages = [list(runs.objective.base.average.parameters()) for runs in (compiled, eager)]
    for p, q in zip(*averages, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(compiled.histories[0], eager.histories[0], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-6)
        assert (ours["lr"], ours["weight"]) == (theirs["lr"], theirs["weight"])
        for name in ("teacher_error", "graph_precision", "graph_recall"):
            assert ours[name] == pytest.approx(theirs[name], abs=2.0 if "error" in name else 0.02)


def noises(runs):
    networks = runs.model, runs.objective.base.average
    return [m for net in networks for m in net.modules() if isinstance(m, GaussianNoise)]


def assert_every_step_is_eager(compiled, config):
    """50 steps with noise, each from the eager run's own state: no error adds up, so none may be seen."""
    with own_randomness(config):
        eager = Stack([config])
        for noise in noises(compiled) + noises(eager):
            noise.std.fill_(0.1 if SAME_DRAWS else 0.0)
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
        ("pi+sntg", {"graph": "soft"}),
        ("pi+sntg", {"graph": "soft", "graph_labels": "teacher"}),
        ("sntg", {"graph": "knn"}),
        ("vat", {"xi": 0.1, "power_iterations": 2}),
        ("vat+sntg", {"graph_features": "perturbed"}),
        ("pi", {"ramp_up": 5, "ramp_down": 5, "stepwise": True, "early_epochs": 2, "early_momentum": 0.9}),
    ],
    ids=str,
)
def test_compiled_training_is_eager_training_in_every_variant(method, settings):
    assert_compiled_is_eager(method, **settings)


@pytest.mark.slow
def test_compiled_training_on_a_fixed_graph_is_eager_training(tmp_path):
    assert_compiled_is_eager("pi+sntg", **fixed_graph(tmp_path / "earlier", make_config("pi")))


@pytest.mark.slow
def test_compiled_training_parts_from_eager_training_no_faster_than_rounding_does():
    """The entropy alone drives every point to a class of its own, and any difference with it."""
    assert_compiled_is_eager("supervised+ent")


@pytest.mark.slow
def test_runs_of_a_compiled_stack_train_as_they_do_eagerly():
    configs = [make_config("pi+sntg", noise=0.0, lr=lr, seed=seed) for lr, seed in ((0.003, 0), (0.001, 1))]
    ends = []
    for engine in ("eager", "compiled"):
        with own_randomness(configs[0]):
            runs = Stack([replace(c, engine=engine) for c in configs])
            for _ in range(50):
                runs.advance()
        ends.append(runs.optimiser.theta)
    assert (ends[1] - ends[0]).norm() < 1e-5 * ends[0].norm()


# All terms at full weight and rate, and nothing drawn but batches, VAT's start and what a test asks for.
IMAGES = {"ramp_up": 0, "ramp_down": 0, "skip_first": False, "epochs": 3, "epoch_steps": 8, "batch": 20}
IMAGES |= {"noise": 0.0, "dropout": 0.0, "translate": 0, "flip": False}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pi+sntg", "vat+ent+sntg"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_compiled_steps_on_images_are_eager_steps(method, precision, dropout):
    """One step at a time from a common state: a convolutional net at full rate takes a rounding error far."""
    if dropout and not SAME_DRAWS:
        pytest.skip("before torch 2.13 the compiler may draw masks in another order")
    settings = IMAGES | {"batch": 40, "labelled_batch": 8, "precision": precision, "dropout": dropout}
    config = resolve("digits", 20, method, engine="eager", **settings)
    with own_randomness(config):
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
        self.noise = [(noise.std, noise.std.clone()) for noise in noises(self.runs)]

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
    with sums_in_order():  # as in a run with such pairs: outside, each step would be compiled anew
        yield Compiled(make_config("mt+ent+sntg", "compiled", pairs="random", n_pairs=7, noise=0.1))


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


@pytest.mark.parametrize(("noise", "different"), [(True, 3), (False, 1)])
def test_consecutive_compiled_steps_have_noise_of_their_own(points, noise, different):
    """At a rate of zero the student stays; put back to the same batch, its losses differ by the noise alone."""
    points.prepare(noise=noise, graph=False, lr=False)
    runs = points.runs
    of_the_student = [runs.log.names.index(name) for name in ("supervised", "entropy")]  # the teacher moves on
    losses, sums = [], runs.log.losses.clone()
    for _ in range(3):
        runs.batches.load_state({n[8:]: t for n, t in points.state.items() if n.startswith("batches/")})
        runs._run()
        losses.append(tuple((runs.log.losses - sums)[of_the_student, 0].tolist()))
        sums = runs.log.losses.clone()
    assert all(len({round(loss, 6) for loss in term}) == different for term in zip(*losses, strict=True))


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


def test_consecutive_compiled_steps_read_consecutive_lines_of_the_timetable(points):
    """Of three steps only the second has a rate, so it alone moves the weights."""
    points.prepare(noise=True, graph=True, lr=False)
    timetable, theta = points.runs.timetable, points.runs.optimiser.theta
    timetable.lines[int(timetable.place) + 1, 3] = 0.1
    moved = []
    for _ in range(3):
        before = theta.clone()
        points.runs._run()
        moved.append(not torch.equal(theta, before))
    assert moved == [False, True, False]


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
    assert [stack.configs[0].engine for stack in (runs, again)] == ["compiled"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "drawn", [{"dropout": 0.5}, {"translate": 2}, {"flip": True}, {"noise": 0.3}, {}], ids=lambda d: "-".join(d)
)
def test_compiled_steps_on_images_draw_masks_places_and_flips_anew(drawn):
    """Each alone; with none of them the step depends on no random number."""
    # Half of the rows labelled: where a batch has none, Pi's branches agree, and nothing hangs on a flip.
    runs = Compiled(resolve("digits", 600, "pi", engine="compiled", **(IMAGES | drawn)))
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
