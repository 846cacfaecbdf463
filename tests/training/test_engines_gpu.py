"""The engines on a GPU: eager, compiled and recorded training are the same, and a replay repeats nothing it should not.

A convolutional net at full learning rate is chaotic: under Adam a difference of 1e-7 grows about tenfold every few
steps. So engines are compared over 50 steps of which each begins where eager's does, and over 50 in a row; and both
differences are held against those of an eager twin whose weights began one unit in the last place away. In float64,
where chaos has further to go, they are compared in a row for as long as the twin is near.
"""

import os
import signal
import statistics
import warnings
from dataclasses import replace

import pytest
import torch
from engine_runs import LABELS, fixed_graph, leave_out_figures, overflow_above, random_inputs

from sntg.models.noise import Dropout, GaussianNoise
from sntg.training import Stopped, engines, resolve, resume_series, run, run_series
from sntg.training.adam import Adam
from sntg.training.engines import SlowerEngine
from sntg.training.lanes import Lane
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

DEVICE, MODEL, ENGINES = "cuda", "conv13", ("compiled", "graph")
METHODS = ["supervised", "sntg", "pi", "tempens", "mt", "vat"]
METHODS += ["vat+sntg", "supervised+ent+sntg", "pi+ent+sntg", "tempens+ent+sntg", "mt+ent+sntg", "vat+ent+sntg"]
POINTS, LABELLED, BATCH = 400, 80, 20  # a shuffle is 20 batches
# All terms at full weight and rate from the first step on; epochs and shuffles end apart.
FULL = {"epochs": 8, "epoch_steps": 7, "batch": BATCH, "eval_every": 8, "bn_batches": 0, "whitening": "none"}
FULL |= {"ramp_up": 0, "ramp_down": 0, "skip_first": False, "graph_start": 0, "graph_ramp": 0}
STILL = {"noise": 0.0, "dropout": 0.0, "flip": False, "translate": 0}  # nothing is drawn but batches and VAT's start


def make_inputs(dataset="cifar10"):
    return random_inputs(dataset, POINTS, LABELLED)


def make_config(method, engine="eager", precision="float32", **settings):
    apart = {"labelled_batch": 10} if method.startswith("vat") else {"labelled_batch": 0}
    known = {"device": DEVICE, "model": MODEL, "engine": engine, "precision": precision}
    return resolve("cifar10", 4000, method, **(known | FULL | apart | settings))


def make_stack(config):
    runs = Stack([config], [make_inputs()])
    assert runs.configs[0].engine == config.engine  # it did not fall back
    return runs


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def differing(one, other):
    """The names of what is not the same in two states."""
    assert one.keys() == other.keys()
    return [name for name, tensor in one.items() if not torch.equal(tensor.cpu(), other[name].cpu())]


def relative(difference, scale):
    return (difference.norm() / scale.norm()).item()


@pytest.fixture
def same_draws(monkeypatch):
    """Compiled code takes its random numbers from the generator one by one, as eager code does.

    It may take them in another order, though. So the noise, which is off, draws nothing: what is left is VAT's start.
    """
    monkeypatch.setattr(GaussianNoise, "draw", lambda self, x: torch.zeros_like(x))
    with torch._inductor.config.patch(fallback_random=True):
        yield


# --- fifty steps from common states, and fifty in a row ---------------------------------------------------------------


def perturb(runs):
    """Every weight one unit in the last place higher."""
    theta = runs.optimiser.theta
    theta.copy_(torch.nextafter(theta, torch.full_like(theta, torch.inf)))


def compare_steps(eager, other, steps):
    """How far the engine's steps end from eager's, each from a state of the eager run; and how far those of its twin.

    The worst of the steps; and the gradients' median, because of millions of maxima and kinks one may fall on the other
    side, once in some steps.
    """
    engine, twin = [], []
    for _ in range(steps):
        state, history = copied(eager.state()), [list(h) for h in eager.histories]
        before = eager.optimiser.theta.clone()
        perturb(eager)
        eager.advance()
        perturbed = copied(outcome_of(eager))
        eager.load_state(state, [list(h) for h in history])
        eager.advance()
        other.load_state(state, history)  # it puts the random numbers back, too
        other.advance()
        twin.append(distances(perturbed, outcome_of(eager), before))
        engine.append(distances(outcome_of(other), outcome_of(eager), before))
    return summary(engine), summary(twin)


def outcome_of(runs):
    """What a step leaves, to be compared."""
    optimiser = runs.optimiser
    found = {"gradient": optimiser.gradient, "weights": optimiser.theta, "average": runs.objective.base._averaged}
    return found | ({"losses": runs.log.losses} if runs.log.steps else {})  # at an epoch's end they begin anew


def distances(ours, theirs, before):
    """How far apart two outcomes are, and how long the second is; a step is what the weights have moved by."""
    pairs = {name: (ours[name] - theirs[name], theirs[name]) for name in ours}
    pairs["step"] = ours["weights"] - theirs["weights"], theirs["weights"] - before
    return {name: tuple(tensor.norm().item() for tensor in pair) for name, pair in pairs.items()}


def summary(found):
    """The worst distances over the usual lengths: a batch may have next to no loss, and then a gradient of rounding."""
    worst = {}
    for name in FLOORS:
        apart, lengths = zip(*(f[name] for f in found if name in f), strict=True)
        worst[name] = max(apart) / statistics.median(lengths)
        if name == "gradient":
            worst["median gradient"] = statistics.median(apart) / statistics.median(lengths)
    return worst


def steps_in_a_row(config, perturbed=False):
    """The weights after each of 50 steps; perturbed: every one of them began one unit in the last place higher."""
    with own_randomness(config):
        runs = make_stack(config)
        if perturbed:
            perturb(runs)
        for _ in range(50):
            runs.advance()
            yield runs.optimiser.theta.clone()


def fifty_steps(config, perturbed=False):
    """The weights after the last of them."""
    *_, last = steps_in_a_row(config, perturbed)
    return last


# A twin may happen to be nearer to eager than rounding usually is. Where a gradient is nearly zero, Adam's step is of
# full length and of either sign.
FLOORS = {"gradient": 1e-2, "step": 0.05, "weights": 1e-4, "average": 2e-5, "losses": 1e-3}
TIMES = 5  # what an engine rounds differently may move it further than a unit in the last place does


def assert_engine_is_eager(method, engine, record_property, **settings):
    config = make_config(method, **(STILL | settings))
    with own_randomness(config):
        eager = make_stack(config)
        for _ in range(3):  # Adam's first steps are signs alone, and many a gradient's is rounding's
            eager.advance()
        other = make_stack(replace(config, engine=engine))
        found, natural = compare_steps(eager, other, steps=50)  # over the ends of epochs and shuffles
    expected = fifty_steps(config)
    found["drift"] = relative(fifty_steps(replace(config, engine=engine)) - expected, expected)
    natural["drift"] = relative(fifty_steps(config, perturbed=True) - expected, expected)
    for name, value in found.items():
        record_property(name, value)
        record_property(f"twin's {name}", natural[name])
    print(f"\n{method} {engine}: " + ", ".join(f"{n} {v:.1e} (twin {natural[n]:.1e})" for n, v in found.items()))
    for name, floor in FLOORS.items():
        assert found[name] < max(floor, TIMES * natural[name]), name
    assert found["median gradient"] < max(1e-3, TIMES * natural["median gradient"])
    assert found["gradient"] < 0.5
    assert found["weights"] < 1e-3
    assert found["drift"] < max(1e-3, 1.5 * natural["drift"])  # weights that have nothing in common are 1.4 apart


@pytest.mark.parametrize("method", ["pi+ent+sntg", "vat"])
@pytest.mark.parametrize("engine", ENGINES)
def test_training_is_eager_training(method, engine, same_draws, record_property):
    assert_engine_is_eager(method, engine, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("pi+ent+sntg", "vat")])
@pytest.mark.parametrize("engine", ENGINES)
def test_training_is_eager_training_for_every_method(method, engine, same_draws, record_property):
    assert_engine_is_eager(method, engine, record_property)


def assert_mlp_ends_in_the_same_weights(method):
    """The MLP is not chaotic: after 50 steps all engines are where eager is.

    As long as something pulls at the weights: without noise and labels a student and its mean teacher agree, and all
    that Adam has to magnify is rounding. So half the points keep their labels, and every batch has some.
    """
    apart = {"labelled_batch": 6} if method.startswith("vat") else {}
    config = resolve("two-moons", 3000, method, device=DEVICE, engine="eager", **(FULL | apart | {"noise": 0.0}))
    ends = []
    for engine in ("eager", *ENGINES):
        with own_randomness(config):
            runs = Stack([replace(config, engine=engine)])
            assert runs.configs[0].engine == engine
            for _ in range(50):
                runs.advance()
        ends.append(runs.optimiser.theta.clone())
    for theta in ends[1:]:
        assert relative(theta - ends[0], ends[0]) < 1e-3


def test_after_fifty_steps_the_mlp_has_the_same_weights_under_every_engine(same_draws):
    assert_mlp_ends_in_the_same_weights("pi+ent+sntg")


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in METHODS if m != "pi+ent+sntg"])
def test_after_fifty_steps_of_any_method_the_mlp_has_the_same_weights_under_every_engine(method, same_draws):
    assert_mlp_ends_in_the_same_weights(method)


@pytest.fixture
def double(same_draws, monkeypatch):
    """Weights, points and all that is computed from them in float64, for which the layers have no kernels of ours.

    PyTorch's own kernel for the weights' norm takes the root in float32 on a GPU; a compiler does not call it.
    """
    monkeypatch.setattr(torch, "_weight_norm", lambda V, g: V * (g / V.norm(dim=1, keepdim=True)))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# Without the entropy term but for VAT's: elsewhere it makes training so chaotic that a row ends at once.
IN_A_ROW = ["supervised", "sntg", "pi", "pi+sntg", "tempens", "tempens+sntg", "mt", "mt+sntg"]
IN_A_ROW += ["vat", "vat+sntg", "vat+ent", "vat+ent+sntg"]
CALM = 1e-6  # as long as the twin is nearer than this, rounding has not grown into anything


@pytest.mark.slow
@pytest.mark.parametrize("method", IN_A_ROW)
def test_in_float64_steps_in_a_row_have_the_same_weights_under_every_engine(method, double, record_property):
    """All fifty of them, but where even float64's rounding grows up within them: there those before it has."""
    config = make_config(method, **STILL)
    expected = list(steps_in_a_row(config))
    rows = {engine: steps_in_a_row(replace(config, engine=engine)) for engine in ENGINES}
    rows["twin"] = steps_in_a_row(config, perturbed=True)
    apart = {name: [relative(a - b, b) for a, b in zip(row, expected, strict=True)] for name, row in rows.items()}
    calm = next((step for step, distance in enumerate(apart["twin"]) if not distance <= CALM), 50)
    found = {name: max(distances[:calm]) for name, distances in apart.items()}
    for name, value in {"calm steps": calm, **found}.items():
        record_property(name, value)
    print(f"\n{method}, {calm} steps in float64: " + ", ".join(f"{name} {value:.1e}" for name, value in found.items()))
    assert expected[-1].dtype == torch.float64
    assert calm > config.epoch_steps  # the end of an epoch is among them
    assert all(distance < 1e-3 for engine in ENGINES for distance in apart[engine][:calm])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("mt+sntg", {"labelled_batch": 5, "pairs": "all"}),
        ("vat", {"normalisation": "batch-logits"}),
        ("vat", {"xi": 0.1}),
        ("pi+sntg", {"graph": "soft"}),
        ("tempens+sntg", {"graph": "knn"}),
        ("pi", {"ramp_up": 3, "ramp_down": 3, "stepwise": True, "early_epochs": 2, "early_momentum": 0.9}),
    ],
    ids=str,
)
def test_recorded_training_is_eager_training_in_every_variant(method, settings, same_draws, record_property):
    assert_engine_is_eager(method, ENGINES[-1], record_property, **settings)


@pytest.mark.slow
def test_recorded_training_on_a_fixed_graph_is_eager_training(tmp_path, same_draws, record_property):
    seed = {"seed": 1}  # with 0 an untrained network predicts one class, and all rows of that graph are alike
    settings = seed | fixed_graph(tmp_path / "earlier", make_config("pi", **STILL, **seed), [make_inputs()])
    with own_randomness(config := make_config("pi+sntg", **STILL, **settings)):
        assert make_stack(config).state()["graph/classes"].unique().numel() > 1
    assert_engine_is_eager("pi+sntg", ENGINES[-1], record_property, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", [name for name in LABELS if name != "cifar10"])
def test_every_method_is_recorded_on_every_other_dataset(dataset, method):
    """With the network, normalisation, augmentation and precision of its recipe there; two epochs and an evaluation."""
    apart = {"labelled_batch": 10} if method.startswith("vat") else {}
    settings = FULL | apart | {"epochs": 2, "eval_every": 2, "epoch_steps": POINTS // BATCH}
    config = resolve(dataset, LABELS[dataset], method, device=DEVICE, engine=ENGINES[-1], **settings)
    with own_randomness(config), warnings.catch_warnings():
        warnings.simplefilter("error", SlowerEngine)  # it says why
        runs = Stack([config], [make_inputs(dataset)])
        before = runs.optimiser.theta.clone()
        *_, (last,) = [runs.advance() for _ in range(2 * runs.epoch_steps)]
    assert runs.configs[0].engine == ENGINES[-1]
    assert 0 <= last["error"] <= 100
    assert all(0 < loss < float("inf") for loss in last["loss"].values())
    assert 0 < relative(runs.optimiser.theta - before, before) < 1


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.float16), ("float16", torch.float16)]
)
def test_images_are_kept_in_16_bits_where_the_convolutions_round_them(precision, dtype):
    runs = make_stack(make_config("pi", "eager", precision, model="small"))
    assert runs.batches.x.dtype == runs.test_x.dtype == dtype
    before = runs.errors()
    runs.test_x = torch.stack([i.data.test_x for i in runs.inputs]).to(DEVICE)
    assert runs.errors()["ema_error"][0] == pytest.approx(before["ema_error"][0], abs=4.0)  # two of the 50 images


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["tf32", "bfloat16", "float16"])
@pytest.mark.parametrize("method", ["pi", "mt+sntg", "vat"])
def test_in_fewer_bits_a_recorded_step_is_near_the_eager_one(method, precision, same_draws):
    """The gradient's direction and length, and the losses; each engine rounds at places of its own."""
    config = make_config(method, precision=precision, **STILL)
    with own_randomness(config):
        eager = make_stack(config)
        other = make_stack(replace(config, engine=ENGINES[-1]))
        for _ in range(4):
            state, history = copied(eager.state()), [list(h) for h in eager.histories]
            eager.advance()
            other.load_state(state, history)
            other.advance()
            ours, theirs = other.optimiser.gradient, eager.optimiser.gradient
            assert torch.cosine_similarity(ours, theirs, dim=0) > 0.95
            assert ours.norm().item() == pytest.approx(theirs.norm().item(), rel=0.1)
            assert torch.isfinite(other.optimiser.theta).all()
            assert relative(other.log.losses - eager.log.losses, eager.log.losses) < 0.05


# --- a replay repeats nothing it should not --------------------------------------------------------------------------


class Recorded:
    """A stack in mid-epoch, and steps from there with chosen random numbers."""

    def __init__(self, config):
        with own_randomness(config):
            self.runs = make_stack(config)
            self.at_start = copied(self.runs.state())
            for _ in range(4):
                self.runs.advance()
            self.state = copied(self.runs.state())

    def step(self, seed):
        """The weights after a step from that state."""
        with torch.random.fork_rng(devices=[torch.device(DEVICE)] if DEVICE == "cuda" else []):
            self.runs.load_state(self.state, [[]])
            torch.manual_seed(seed)
            self.runs.advance()
        return self.runs.optimiser.theta.clone()

    def losses_of_one_batch(self, steps):
        """The losses of one batch, step after step, of a network that stays as it is."""
        self.runs.load_state(self.state, [[]])
        self.runs.timetable.lines[:, 3] = 0.0
        found, sums = [], self.runs.log.losses.clone()
        for _ in range(steps):
            self.runs.batches.load_state({n[8:]: t for n, t in self.state.items() if n.startswith("batches/")})
            self.runs._run()
            found.append(tuple((self.runs.log.losses - sums)[:, 0].tolist()))
            sums = self.runs.log.losses.clone()
        return found


DRAWN = {
    "noise": {"noise": 0.3},
    "dropout": {"dropout": 0.5},
    "translation": {"translate": 2},
    "flips": {"flip": True},
    "pairs": {"pairs": "random", "n_pairs": 7},
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("what", ["dropout", "noise"])
def test_every_replay_draws_anew(what, precision):
    assert_drawn_anew(what, precision)


@pytest.mark.slow
@pytest.mark.parametrize("what", [w for w in DRAWN if w not in ("dropout", "noise")])
def test_every_replay_draws_everything_anew(what):
    assert_drawn_anew(what, "float32")


def assert_drawn_anew(what, precision):
    """Each kind of draw alone: other random numbers lead elsewhere, the same ones to the same place."""
    settings = STILL | {"model": "small"} | DRAWN[what]
    recorded = Recorded(make_config("pi+sntg", ENGINES[-1], precision, **settings))
    first, again, other = recorded.step(1), recorded.step(1), recorded.step(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(set(recorded.losses_of_one_batch(4))) == 4


@pytest.mark.slow
def test_where_nothing_is_drawn_every_replay_of_a_batch_has_the_same_loss():
    """So it was the draws that told the replays apart; and a new batch has another loss."""
    recorded = Recorded(make_config("pi", ENGINES[-1], **(STILL | {"model": "small"})))
    assert torch.equal(recorded.step(1), recorded.step(2))
    assert len(set(recorded.losses_of_one_batch(3))) == 1
    recorded.runs.load_state(recorded.state, [[]])
    sums, losses = recorded.runs.log.losses.clone(), []
    for _ in range(3):
        recorded.runs._run()
        losses.append(tuple((recorded.runs.log.losses - sums)[:, 0].tolist()))
        sums = recorded.runs.log.losses.clone()
    assert len(set(losses)) == 3


@pytest.mark.slow
def test_vats_start_is_drawn_anew_at_every_replay():
    recorded = Recorded(make_config("vat", ENGINES[-1], **(STILL | {"model": "small"})))
    assert torch.equal(recorded.step(1), recorded.step(1))
    assert not torch.equal(recorded.step(1), recorded.step(2))


@pytest.mark.parametrize("method", ["tempens+ent+sntg"])
@pytest.mark.parametrize("engine", ENGINES)
def test_getting_an_engine_ready_leaves_no_trace(method, engine):
    config = make_config(method, engine, model="small")
    with own_randomness(config):
        state = copied(make_stack(config).state())
    with own_randomness(config):
        expected = copied(make_stack(replace(config, engine="eager")).state())
    assert differing(state, expected) == []


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_replays_drop_half_add_noise_of_the_right_size_and_keep_the_views_apart(precision, monkeypatch):
    """The draws themselves, taken out of the recorded step: a mask that keeps 0.4, or one mask for both views, would
    train, a little worse."""
    config = make_config("pi", ENGINES[-1], precision, model="conv13")
    for kind in (GaussianNoise, Dropout):

        def draw(self, x, plain=kind.draw):
            self.seen = plain(self, x)
            return self.seen

        monkeypatch.setattr(kind, "draw", draw)
    with own_randomness(config):
        runs = make_stack(config)
        net = runs.model
        seen = {module: [] for module in (net.noise, *net.dropouts)}
        for _ in range(8):
            runs.advance()
            for module, kept in seen.items():
                kept.append(module.seen.detach().float().clone())
    for module, kept in seen.items():
        drawn = torch.stack(kept)  # (steps, runs, views, n, C, H, W)
        a, b = drawn[:, 0, 0], drawn[:, 0, 1]
        count = a.numel()
        if module is net.noise:
            assert abs(drawn.mean().item()) < 5 / count**0.5
            assert drawn.std().item() == pytest.approx(1, abs=5 / count**0.5)
        else:
            assert set(drawn.unique().tolist()) == {0.0, 2.0}
            assert drawn.mean().item() == pytest.approx(1, abs=5 / count**0.5)
        for one, other in ((a, b), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a[:, :, 1:], a[:, :, :-1])):
            correlation = torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
            assert abs(correlation.item()) < 6 / one.numel() ** 0.5


def test_a_recording_that_fails_leaves_a_run_that_goes_on_compiled(monkeypatch):
    """A step that asks the host: it compiles and runs, but cannot be recorded."""
    config = make_config("pi+sntg", "graph", model="small", epochs=1)
    gather = Adam.gather

    def asks(self):
        gather(self)
        self.gradient.sum().item()

    monkeypatch.setattr(Adam, "gather", asks)
    ends = []
    for engine in ("graph", "compiled"):
        with own_randomness(config), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runs = Stack([replace(config, engine=engine)], [make_inputs()])
            told = [str(w.message) for w in caught if issubclass(w.category, SlowerEngine)]
            assert len(told) == (engine == "graph")
            assert all("captur" in reason for reason in told)
            assert runs.configs[0].engine == "compiled"
            while not runs.finished:
                runs.advance()
        ends.append(copied(runs.state()))
    assert differing(*ends) == []


def test_a_run_that_can_neither_be_recorded_nor_compiled_is_the_eager_run(monkeypatch):
    """Our kernels are gone with the compiler: they may be what failed, and a resumed run would not have them."""

    def fails(step):
        step()
        raise RuntimeError("no compiler here")

    for name in ENGINES:
        monkeypatch.setitem(engines.ENGINES, name, fails)
    ends = []
    for engine in ("graph", "eager"):
        config = make_config("mt+sntg", engine, "bfloat16", model="small", epochs=1)
        with own_randomness(config), warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowerEngine)
            runs = Stack([config], [make_inputs()])
            assert runs.configs[0].engine == "eager"
            while not runs.finished:
                runs.advance()
        ends.append(copied(runs.state()))
    assert differing(*ends) == []


# --- stopping and going on -------------------------------------------------------------------------------------------


def assert_goes_on_to_the_same_bits(method, engine, stop, **settings):
    """Through the state alone, in a new stack, whatever its random numbers were."""
    config = make_config(method, engine, pairs="random", n_pairs=7, epochs=2, **({"model": "small"} | settings))
    with own_randomness(config):
        runs = make_stack(config)
        for _ in range(stop):
            runs.advance()
        state, history = copied(runs.state()), [list(h) for h in runs.histories]
        assert state["random/cpu"].device.type == "cpu"
        while not runs.finished:
            runs.advance()
        expected = copied(runs.state())
    on_host = {name: tensor.cpu() for name, tensor in state.items()}  # as a checkpoint gives it back
    with own_randomness(replace(config, seed=99)):
        again = make_stack(config)
        again.advance()
        again.load_state(on_host, [list(h) for h in history])
        while not again.finished:
            again.advance()
        found = copied(again.state())
    assert differing(found, expected) == []
    assert again.histories == runs.histories


@pytest.mark.parametrize("stop", [3, 10])
@pytest.mark.parametrize("method", ["mt+ent+sntg", "vat+ent+sntg"])
def test_stopped_in_mid_epoch_a_recorded_run_goes_on_to_the_same_bits(method, stop):
    assert_goes_on_to_the_same_bits(method, ENGINES[-1], stop)


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("mt+ent+sntg", "vat+ent+sntg")])
def test_every_recorded_method_goes_on_to_the_same_bits(method):
    assert_goes_on_to_the_same_bits(method, ENGINES[-1], 3)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", *ENGINES])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16", "float16"])
def test_the_papers_network_goes_on_to_the_same_bits_in_every_precision(engine, precision):
    assert_goes_on_to_the_same_bits("pi+ent+sntg", engine, 3, precision=precision, model="conv13")


@pytest.mark.parametrize("engine", ["eager", *ENGINES])
def test_a_step_that_overflows_in_float16_is_not_taken(engine, monkeypatch):
    """The first two do, by a scale that halves with each."""
    overflow_above(300, monkeypatch)
    config = make_config("vat+ent+sntg", engine, "float16", model="small")
    with own_randomness(config):
        runs = make_stack(config)
        begun, moved = runs.optimiser.theta.clone(), []
        for _ in range(3):
            runs.advance()
            moved.append(not torch.equal(runs.optimiser.theta, begun))
    assert moved == [False, False, True]
    assert runs.optimiser.scale.value.item() == 256
    assert runs.optimiser.theta.isfinite().all()


def test_stopped_between_overflows_a_recorded_run_goes_on_to_the_same_bits(monkeypatch):
    overflow_above(300, monkeypatch)
    assert_goes_on_to_the_same_bits("vat+ent+sntg", ENGINES[-1], 1, precision="float16")


# --- streamed points -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("method", ["pi+sntg", "vat"])
def test_points_streamed_from_the_host_train_to_the_same_bits(method, engine):
    """Over two shuffles, so that a batch prefetched too early or copied too late would show."""
    ends = []
    for storage in ("device", "host"):
        config = make_config(method, engine, model="small", storage=storage)
        with own_randomness(config):
            runs = make_stack(config)
            kept = "cpu" if storage == "host" else DEVICE
            assert (runs.batches.x.device.type, runs.test_x.device.type) == (kept, kept)
            while not runs.finished:
                runs.advance()
        ends.append(copied(runs.state()))
    assert differing(*ends) == []


# --- seeds in turns --------------------------------------------------------------------------------------------------


@pytest.fixture
def series(monkeypatch):
    """Seeds of the small net on images made up here; figures, which take longest, are left out."""
    monkeypatch.setattr("sntg.training.inputs.load_dataset", lambda *named: make_inputs().data)
    leave_out_figures(monkeypatch)

    def configs(seeds, method="pi+sntg", engine="graph", precision="bfloat16", **settings):
        short = {"model": "small", "epochs": 3, "eval_every": 1, **settings}
        return [replace(make_config(method, engine, precision, seed=seed, **short), labels=LABELLED) for seed in seeds]

    return configs


def outcome(folder):
    names = ("model.safetensors", "metrics.jsonl", "features.safetensors", "config.json")
    return {name: (folder / name).read_bytes() for name in names}


def assert_as_alone(configs, folder, alone):
    for config in configs:
        run(config, alone / str(config.seed))
        assert outcome(folder / f"seed-{config.seed}") == outcome(alone / str(config.seed))


def test_lanes_have_streams_and_random_numbers_of_their_own_and_leave_the_callers():
    torch.cuda.manual_seed(7)
    torch.rand(5, device=DEVICE)
    before, stream = torch.cuda.get_rng_state(), torch.cuda.current_stream()
    lanes = [Lane(torch.device(DEVICE)) for _ in range(3)]
    for seed, lane in enumerate(lanes):
        with lane.turn():
            torch.cuda.manual_seed(seed)
    expected = []
    for seed in range(3):
        with torch.random.fork_rng([torch.device(DEVICE)]):
            torch.cuda.manual_seed(seed)
            expected.append(torch.rand(4, device=DEVICE))
    streams, drawn = [], [[] for _ in lanes]
    for _ in range(2):
        for lane, numbers in zip(lanes, drawn, strict=True):
            with lane.turn():
                streams.append(torch.cuda.current_stream().cuda_stream)
                numbers.append(torch.rand(4, device=DEVICE))
    torch.cuda.synchronize()
    assert len({*streams, stream.cuda_stream}) == 4
    assert all(torch.equal(numbers[0], first) for numbers, first in zip(drawn, expected, strict=True))
    assert not any(torch.equal(*numbers) for numbers in drawn)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.cuda.current_stream() == stream


def test_recordings_of_lanes_draw_their_own_numbers_when_they_are_replayed_at_once():
    """Nothing waits between the replays: of one state, a later one would overwrite what an earlier one reads."""
    lanes, rows, recordings = [Lane(torch.device(DEVICE)) for _ in range(3)], [], []
    for seed, lane in enumerate(lanes):
        with lane.turn():
            torch.manual_seed(seed)
            row, record = torch.empty(2**22, device=DEVICE), torch.cuda.CUDAGraph()
            row.uniform_()
            torch.manual_seed(seed)
            with torch.cuda.graph(record, stream=lane.stream):
                row.uniform_()
            rows.append(row)
            recordings.append(record)
    sums = torch.zeros(3, 20, dtype=torch.float64, device=DEVICE)
    torch.cuda.synchronize()
    for step in range(20):
        for number, lane in enumerate(lanes):
            with lane.turn():
                recordings[number].replay()
                sums[number, step] = rows[number].double().sum()
    torch.cuda.synchronize()
    for seed in range(3):
        with torch.random.fork_rng([torch.device(DEVICE)]):
            torch.manual_seed(seed)
            alone = [torch.empty_like(rows[0]).uniform_().double().sum() for _ in range(20)]
        assert torch.equal(sums[seed], torch.stack(alone))


@pytest.mark.parametrize("method", ["pi+sntg", "vat"])
def test_recorded_seeds_in_turns_end_in_the_bytes_of_each_alone(method, tmp_path, series):
    configs, seen, told = series(range(4), method, "graph"), {}, []

    def on_step(stack):
        seed = stack.configs[0].seed
        assert torch.cuda.initial_seed() == seed  # the state that is current is the run's
        assert stack.configs[0].engine == "graph"
        seen.setdefault(seed, set()).add(torch.cuda.current_stream().cuda_stream)
        told.append(seed)

    run_series(configs, tmp_path / "series", on_step=on_step)
    assert told[:6] == [0, 1, 2, 0, 1, 2]
    assert all(len(streams) == 1 for streams in seen.values())
    assert len(seen[0] | seen[1] | seen[2] | {torch.cuda.default_stream().cuda_stream}) == 4
    assert_as_alone(configs, tmp_path / "series", tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", *ENGINES])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16", "float16"])
def test_seeds_of_the_papers_network_in_turns_end_in_the_bytes_of_each_alone(engine, precision, tmp_path, series):
    """With pairs that share rows and evaluation that estimates anew, which set what is the whole process's."""
    settings = {"model": MODEL, "pairs": "random", "n_pairs": 7, "bn_batches": 2, "normalisation": "batch"}
    configs = series(range(3), "pi+ent+sntg", engine, precision, **settings)
    run_series(configs, tmp_path / "series")
    assert_as_alone(configs, tmp_path / "series", tmp_path / "alone")


def test_recorded_seeds_asked_to_stop_go_on_in_turns_to_the_same_bytes(tmp_path, series):
    configs = series(range(3))

    def on_step(stack):
        if stack.step == 10 and stack.configs[0].seed == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        run_series(configs, tmp_path / "series", on_step=on_step)
    assert len(list(tmp_path.glob("series/seed-*/checkpoints/*"))) == 3
    resume_series(tmp_path / "series")
    assert_as_alone(configs, tmp_path / "series", tmp_path / "alone")


def test_seeds_whose_recordings_fail_go_on_compiled_in_turns(tmp_path, series, monkeypatch):
    """A recording that fails leaves another state of the generator behind, and that is the lane's from then on."""
    gather = Adam.gather

    def asks(self):
        gather(self)
        self.gradient.sum().item()

    monkeypatch.setattr(Adam, "gather", asks)
    configs = series(range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowerEngine)
        trained = run_series(configs, tmp_path / "series")
        assert [t.config.engine for t in trained] == ["compiled"] * 2
        assert_as_alone(configs, tmp_path / "series", tmp_path / "alone")


# --- what is written down --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "precision"), [("supervised", "bfloat16"), ("vat", "float16")])
def test_on_a_gpu_auto_is_a_recording_in_the_gpus_best_precision(method, precision):
    config = make_config(method, "auto", "auto", model="small")
    with own_randomness(config):
        (decided,) = Stack([config], [make_inputs()]).configs
    assert decided.engine == "graph"
    assert decided.precision == (precision if torch.cuda.is_bf16_supported(including_emulation=False) else "float32")


@pytest.mark.slow
def test_runs_of_a_recorded_stack_keep_apart():
    """Another neighbour changes nothing for a run."""
    config = make_config("pi+sntg", ENGINES[-1], model="small", epochs=1)
    ends = []
    for other in ({"seed": 1}, {"seed": 2, "lr": 0.02, "w_max": 5.0}):
        with own_randomness(config):
            runs = Stack([config, replace(config, **other)], [make_inputs(), make_inputs()])
            while not runs.finished:
                runs.advance()
        ends.append([p.detach().clone() for p in runs.model.parameters()])
    for first, second in zip(*ends, strict=True):
        torch.testing.assert_close(first[0], second[0], rtol=1e-3, atol=1e-5)
        assert not torch.equal(first[1], second[1])
