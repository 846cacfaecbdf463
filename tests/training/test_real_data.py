"""Every method takes steps of its own recipe on real images: all terms at full weight, none of them dead.

A part of each set goes through the small net, VAT in smaller batches, as its direction takes so long; the paper's
network takes a step each, with the recipe's own batches, in the slow tier. The images are whitened as in a full run,
but for the ZCA's images: it is fitted on the first 10,000, once, and kept beside the data.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch

from sntg.data import IMAGE_SETS, load_dataset, whitening
from sntg.data.images import find
from sntg.methods import parse
from sntg.training import inputs, resolve
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness

DATASETS = ("mnist", "svhn", "cifar10")
METHODS = ["supervised", "sntg", "pi", "pi+sntg", "tempens", "tempens+sntg", "mt", "mt+sntg"]
METHODS += ["vat", "vat+ent", "vat+ent+sntg"]
PER_CLASS, TEST_PER_CLASS, LABELS = 13, 10, 100  # so few that a batch meets most rows of the one before
FITTED = 10_000  # more than an image has values


def first_of_each_class(y, count):
    return torch.cat([(y == c).nonzero()[:count, 0] for c in range(10)]).sort().values


def part_of(data):
    """The same number of images of each class, as pixels."""
    train, test = first_of_each_class(data.train_y, PER_CLASS), first_of_each_class(data.test_y, TEST_PER_CLASS)
    return replace(
        data,
        train_x=data.train_x[train],
        train_y=data.train_y[train],
        test_x=data.test_x[test],
        test_y=data.test_y[test],
    )


@pytest.fixture(scope="session")
def whitened(real_data):
    """The part of a set, whitened as a larger part of it is."""
    full = cache(lambda name: load_dataset(name, 0, str(real_data)))
    fit = whitening._fit

    @cache
    def whitened(name, how):
        data = full(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SNTG_CACHE", str(real_data / "whitening"))
            if whitening._RECIPES[how].scales is not None:
                known = whitening.content_hash(data.train_x[:FITTED].numpy())
                patch.setattr(whitening, "content_hash", lambda x: known)
                patch.setattr(whitening, "_fit", lambda x, *rest: fit(data.train_x[:FITTED], *rest))
            return whitening.whiten(part_of(data), how)

    return whitened


@pytest.fixture
def make_run(real_data, whitened, monkeypatch):
    """A stack of one run of a recipe on the part of its set, without ramps: at full weight and rate at once."""

    def make_run(dataset, method, model, **settings):
        if find(IMAGE_SETS[dataset], real_data).missing:
            pytest.skip(f"{dataset} is not in {real_data}")
        full_weight = {"ramp_up": 0, "ramp_down": 0, "skip_first": False}
        size = {"model": model, "epochs": 2, "epoch_steps": 1, "eval_every": 2}
        config = resolve(dataset, LABELS, method, **full_weight, **size, **settings)
        if config.bn_batches:
            config = replace(config, bn_batches=2)
        part = whitened(dataset, config.whitening)
        monkeypatch.setattr(inputs, "load_dataset", lambda *args: part)
        monkeypatch.setattr(inputs, "whiten", lambda data, *args: data)
        return Stack([config])

    return make_run


def terms_of(method):
    name = parse(method)
    own = ["supervised"] if name.base == "supervised" else ["supervised", "consistency"]
    return own + ["entropy"] * name.ent + ["sntg"] * name.sntg


def assert_every_term_is_alive(runs):
    """Each one alone, weighing 1, has a gradient that reaches the first layer, and the schedule gives it a weight."""
    runs.model.train()
    runs.batches.refill()
    terms, _ = runs.objective(runs.batches.next())
    runs.timetable.load(runs.step)
    values = runs.timetable.next()
    assert list(terms) == terms_of(runs.shared.method)
    first = next(p for name, p in runs.model.named_parameters() if name.startswith("blocks.0.0."))
    for name, term in terms.items():
        (gradient,) = torch.autograd.grad(term.sum(), first, retain_graph=True)
        assert torch.isfinite(gradient).all(), name
        assert gradient.norm() > 1e-7, name
        assert values.weights[name].item() > 0, name


def assert_a_step_moves_every_weight(runs):
    before = {name: p.detach().clone() for name, p in runs.model.named_parameters()}
    records = runs.advance()
    for name, p in runs.model.named_parameters():
        assert torch.isfinite(p).all(), name
        assert not torch.equal(p, before[name]), name
    return records


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_method_takes_steps_of_its_recipe(make_run, dataset, method):
    """One epoch first, of one step: temporal ensembling has its targets from there."""
    with own_randomness(resolve(dataset, LABELS, method)):
        smaller = {"batch": 48, "labelled_batch": 12} if method.startswith("vat") else {}
        runs = make_run(dataset, method, "small", **smaller)
        assert_a_step_moves_every_weight(runs)
        assert_every_term_is_alive(runs)
        (record,) = assert_a_step_moves_every_weight(runs)
    c = runs.shared
    factor = LABELS / (10 * PER_CLASS) if c.label_factor else 1.0
    full = {"supervised": 1.0, "consistency": c.w_max * factor, "entropy": c.w_max * factor * c.ent}
    full["sntg"] = full["consistency"] * c.k
    assert record["weight"] == pytest.approx({name: full[name] for name in terms_of(method)})
    assert record["lr"] == c.lr == resolve(dataset, LABELS, method).lr
    assert all(0 < loss < 1e3 for loss in record["loss"].values())
    assert all(0 <= record[name] <= 100 for name in ("error", "student_error", "ema_error"))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_method_takes_a_step_of_its_recipe_with_the_papers_network(make_run, dataset, method):
    with own_randomness(resolve(dataset, LABELS, method)):
        runs = make_run(dataset, method, "conv13")
        assert runs.shared.model == resolve(dataset, LABELS, method).model
        if method.startswith("tempens"):
            runs.advance()
        assert_every_term_is_alive(runs)
        assert_a_step_moves_every_weight(runs)
