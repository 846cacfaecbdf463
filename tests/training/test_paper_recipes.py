"""The published recipes, number by number: what a resolved run does at each of its steps.

The tables here are written out from the papers and their reference code, not from `recipes.py`; time is in steps.
"""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from sntg.training import Config, Schedule, resolve
from sntg.training.loop import _schedule

N = {"mnist": 60_000, "svhn": 73_257, "cifar10": 50_000, "cifar100": 50_000}


@dataclass
class Plan:
    """A run's settings, and what they come to at a step."""

    config: Config
    schedule: Schedule
    epoch_steps: int

    @property
    def steps(self):
        return self.config.epochs * self.epoch_steps

    def moment(self, step):
        return step / self.epoch_steps if self.config.stepwise else step // self.epoch_steps

    def lr(self, step):
        return self.schedule.lr(self.moment(step))

    def beta1(self, step):
        return self.schedule.beta1(self.moment(step))

    def momenta(self, step):
        return self.schedule.momenta(self.moment(step))

    def weight(self, step, term="consistency"):
        return self.schedule.weights(self.moment(step))[term]


def plan(dataset, labels, method, **settings):
    config = resolve(dataset, labels, method, **settings)
    seen = torch.full((N[dataset],), -1)
    seen[: config.labels] = 0
    epoch_steps = config.epoch_steps or N[dataset] // (config.batch or config.labelled_batch)
    return Plan(config, _schedule(config, SimpleNamespace(labels=seen)), epoch_steps)


def values(config, keys):
    return {key: getattr(config, key) for key in keys}


def up(share):
    return math.exp(-5 * (1 - share) ** 2) if share < 1 else 1.0


def down(share):
    return math.exp(-12.5 * share**2) if share > 0 else 1.0


# --- Pi and temporal ensembling --------------------------------------------------------------------------------------

# dataset, labels, method -> lr_max, w_max, input, flip, translation
PI_AND_TEMPENS = {
    ("mnist", 100, "pi"): (1e-4, 100, "norm", False, 0),
    ("mnist", 20, "pi"): (1e-4, 100, "norm", False, 0),
    ("mnist", 100, "tempens"): (1e-4, 100, "norm", False, 0),
    ("svhn", 1000, "pi"): (3e-3, 100, "norm", False, 2),
    ("svhn", 500, "pi"): (3e-3, 100, "norm", False, 2),
    ("svhn", 250, "pi"): (3e-3, 100, "norm", False, 2),
    ("svhn", "all", "pi"): (3e-3, 100, "norm", False, 2),
    ("svhn", 1000, "tempens"): (1e-3, 30, "norm", False, 2),
    ("svhn", 500, "tempens"): (1e-3, 30, "norm", False, 2),
    ("svhn", 250, "tempens"): (1e-3, 50, "norm", False, 2),
    ("cifar10", 4000, "pi"): (3e-3, 100, "zca", True, 2),
    ("cifar10", 1000, "pi"): (3e-3, 100, "zca", True, 2),
    ("cifar10", "all", "pi"): (3e-3, 100, "zca", True, 2),
    ("cifar10", 4000, "tempens"): (3e-3, 30, "zca", True, 2),
    ("cifar10", 250, "tempens"): (3e-3, 30, "zca", True, 2),
    ("cifar10", "all", "tempens"): (3e-3, 30, "zca", True, 2),
    ("cifar100", 10000, "pi"): (3e-3, 100, "zca", True, 2),
    ("cifar100", "all", "pi"): (3e-3, 100, "zca", True, 2),
    ("cifar100", 10000, "tempens"): (3e-3, 100, "zca", True, 2),
}
RUNS = [(*run, graph) for run in PI_AND_TEMPENS for graph in ("", "+sntg")]


@pytest.mark.parametrize(("dataset", "labels", "method", "graph"), RUNS)
def test_pi_and_tempens_have_the_values_of_the_table(dataset, labels, method, graph):
    lr, w, whitening, flip, translate = PI_AND_TEMPENS[dataset, labels, method]
    run = plan(dataset, labels, method + graph)
    found = values(run.config, ("lr", "w_max", "whitening", "flip", "translate"))
    assert found == {"lr": lr, "w_max": w, "whitening": whitening, "flip": flip, "translate": translate}
    factor = 1.0 if labels == "all" else labels / N[dataset]
    assert run.weight(run.epoch_steps * 100) == pytest.approx(w * factor)


@pytest.mark.parametrize(("dataset", "labels", "method", "graph"), RUNS)
def test_pi_and_tempens_share_the_rest(dataset, labels, method, graph):
    config = resolve(dataset, labels, method + graph)
    common = {
        "model": "conv13",
        "normalisation": "mean-only",
        "batch": 100,
        "labelled_batch": 0,
        "epochs": 300,
        "epoch_steps": 0,
        "beta2": 0.999,
        "early_epochs": 0,
        "consistency": "mse",
        "k": 0.4,
        "margin": 1.0,
        "pairs": "half",
        "n_pairs": None,
        "graph": "hard",
        "graph_labels": "merge",
        "graph_start": 0,
        "graph_ramp": 0,
        "split": "balanced",
        "label_noise": 0.0,
        "padding": "reflect",
        "noise": 0.15,
        "dropout": 0.5,
        "bn_momentum": 0.999,
        "bn_batches": 0,
        "alpha": 0.6,
        "ema": 0.999,
        "report": "ema",
    }
    assert values(config, common) == common


@pytest.mark.parametrize(
    ("dataset", "labels", "epoch_steps"),
    [("mnist", 100, 600), ("svhn", 1000, 732), ("cifar10", 4000, 500), ("cifar100", 10000, 500)],
)
@pytest.mark.parametrize("method", ["pi+sntg", "tempens+sntg"])
def test_their_ramps_are_constant_within_an_epoch_and_the_first_one_has_no_consistency(
    dataset, labels, epoch_steps, method
):
    run = plan(dataset, labels, method)
    assert run.epoch_steps == epoch_steps
    assert run.steps == 300 * epoch_steps
    w = run.config.w_max * labels / N[dataset]
    for e in (0, 1, 2, 40, 79, 80, 200, 249, 250, 251, 275, 299):
        fall = down((e - 250) / 50)
        for step in (e * epoch_steps, (e + 1) * epoch_steps - 1):
            assert run.lr(step) == pytest.approx(run.config.lr * up(e / 80) * fall, rel=1e-12)
            assert run.beta1(step) == pytest.approx(0.9 * fall + 0.5 * (1 - fall), rel=1e-12)
            assert run.momenta(step) == (0.999, 0.999)
            expected = w * up(e / 80) if e else 0.0
            assert run.weight(step) == pytest.approx(expected, rel=1e-12)
            assert run.weight(step, "sntg") == pytest.approx(0.4 * expected, rel=1e-12)
            assert run.weight(step, "supervised") == 1


@pytest.mark.parametrize(
    ("percent", "w"), [(0, 30), (1, 300), (20, 300), (49, 300), (50, 3000), (80, 3000), (90, 3000)]
)
@pytest.mark.parametrize("method", ["tempens", "tempens+sntg"])
def test_tempens_on_svhn_with_all_labels_noisy_or_not(percent, w, method):
    run = plan("svhn", "all", method, label_noise=float(percent))
    expected = {"lr": 1e-3, "w_max": w, "epochs": 150, "whitening": "norm", "flip": False, "translate": 2}
    assert values(run.config, expected) == expected
    assert run.weight(732 * 100) == w  # no L/N where all labels are used
    assert run.lr(732 * 99) == pytest.approx(1e-3)
    assert run.lr(732 * 125) == pytest.approx(1e-3 * down(25 / 50))


def test_noise_changes_no_weight_where_some_labels_are_missing():
    assert resolve("svhn", 1000, "tempens", label_noise=60.0).w_max == 30


@pytest.mark.parametrize("dataset", ["mnist", "svhn", "cifar10", "cifar100"])
@pytest.mark.parametrize("method", ["supervised", "pi+sntg", "tempens+sntg", "mt+sntg", "vat+ent+sntg"])
def test_without_augmentation_only_flip_and_translation_are_off(dataset, method):
    labels = {"mnist": 100, "svhn": 1000, "cifar10": 4000, "cifar100": 10000}[dataset]
    full, plain = resolve(dataset, labels, method), resolve(dataset, labels, method, augment=False)
    assert (plain.flip, plain.translate) == (False, 0)
    assert (plain.noise, plain.dropout) == (full.noise, full.dropout)
    same = {"flip": full.flip, "translate": full.translate, "augment": True, "overridden": ()}
    assert replace(plain, **same, epsilon=full.epsilon) == full


# --- Mean Teacher ----------------------------------------------------------------------------------------------------

# dataset, labels -> batch, labelled batch, steps, cost at full weight, (EMA, beta2) until step 40k and after it, input
MEAN_TEACHER = {
    ("cifar10", 4000): (100, 0, 150_000, 100 * 4000 / 50_000, (0.999, 0.999), "gcn-zca"),
    ("cifar10", 2000): (100, 0, 150_000, 100 * 2000 / 50_000, (0.999, 0.999), "gcn-zca"),
    ("cifar10", 1000): (100, 0, 150_000, 100 * 1000 / 50_000, (0.999, 0.999), "gcn-zca"),
    ("cifar10", "all"): (100, 0, 150_000, 100, (0.999, 0.999), "gcn-zca"),
    ("svhn", 250): (99, 1, 180_000, 1, (0.99, 0.99), "norm"),
    ("svhn", 500): (99, 1, 180_000, 1, (0.99, 0.99), "norm"),
    ("svhn", 1000): (99, 1, 180_000, 1, (0.99, 0.99), "norm"),
    ("svhn", "all"): (100, 0, 180_000, 100, (0.99, 0.99), "norm"),
}


@pytest.mark.parametrize(("dataset", "labels"), MEAN_TEACHER)
@pytest.mark.parametrize("method", ["mt", "mt+sntg"])
def test_mean_teacher(dataset, labels, method):
    batch, labelled_batch, steps, cost, early, whitening = MEAN_TEACHER[dataset, labels]
    run = plan(dataset, labels, method)
    expected = {
        "batch": batch,
        "labelled_batch": labelled_batch,
        "whitening": whitening,
        "flip": dataset == "cifar10",
        "translate": 2,
        "padding": "reflect",
        "lr": 3e-3,
        "model": "conv13",
        "normalisation": "mean-only",
        "consistency": "mse",
        "noise": 0.15,
        "dropout": 0.5,
        "report": "ema",
        "split": "balanced",
        "pairs": "half",
        "graph_labels": "merge",
        "bn_batches": 0,
    }
    assert values(run.config, expected) == expected
    assert run.steps == steps
    for step in (0, 1, 499, 500, 20_000, 39_999, 40_000, 40_001, steps - 25_001, steps - 25_000, steps - 12_345):
        fall = down((step - (steps - 25_000)) / 25_000)
        assert run.lr(step) == pytest.approx(3e-3 * up(step / 40_000) * fall, rel=1e-9)
        assert run.weight(step) == pytest.approx(cost * up(step / 40_000), rel=1e-9)  # not zeroed at first
        assert run.weight(step, "sntg") == pytest.approx(0.4 * cost * up(step / 40_000), rel=1e-9)
        assert run.beta1(step) == pytest.approx(0.9 * fall + 0.5 * (1 - fall), rel=1e-9)
        assert run.momenta(step) == (early if step < 40_000 else (0.999, 0.999))
    assert run.beta1(steps - 1) == pytest.approx(0.5, abs=1e-5)


# --- VAT -------------------------------------------------------------------------------------------------------------

# dataset -> labels, steps, where the decay starts, input, normalisation, split, epsilon with and without augmentation
VAT = {
    "cifar10": (4000, 200_000, 184_000, "scale-zca", "batch", "balanced", 8.0, 10.0),
    "svhn": (1000, 48_000, 32_000, "scale", "batch-logits", "unbalanced", 3.5, 2.5),
}


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("method", ["vat", "vat+sntg", "vat+ent", "vat+ent+sntg"])
@pytest.mark.parametrize("dataset", VAT)
def test_vat(dataset, method, augment):
    labels, steps, decay, whitening, normalisation, split, epsilon, plain_epsilon = VAT[dataset]
    run = plan(dataset, labels, method, augment=augment)
    expected = {
        "batch": 128,
        "labelled_batch": 32,
        "whitening": whitening,
        "normalisation": normalisation,
        "split": split,
        "epsilon": epsilon if augment else plain_epsilon,
        "power_iterations": 1,
        "xi": 0.0,
        "flip": augment and dataset == "cifar10",
        "translate": 2 * augment,
        "padding": "zero",
        "model": "conv13",
        "noise": 0.0,
        "dropout": 0.5,
        "bn_momentum": 0.99,
        "bn_batches": 100,
        "report": "raw",
        "beta2": 0.999,
        "early_epochs": 0,
        "pairs": "half",
        "graph_labels": "merge",
        "graph_features": "perturbed" if method == "vat+sntg" else "clean",
    }
    assert values(run.config, expected) == expected
    assert run.steps == steps
    for step in (0, 1, 399, 400, decay - 1, decay, decay + 1, (decay + steps) // 2, steps - 1):
        fall = min(1.0, (steps - step) / (steps - decay))
        assert run.lr(step) == pytest.approx(1e-3 * fall, rel=1e-9)
        assert run.beta1(step) == (0.9 if step < decay else 0.5)
        assert run.schedule.weights(run.moment(step)) == {
            "supervised": 1,
            "consistency": 1,
            "entropy": 1,
            "sntg": 0.4,
        }


# --- supervised only -------------------------------------------------------------------------------------------------


def test_supervised_cifar10_is_the_recipe_of_the_pi_model_without_consistency():
    pi, supervised = resolve("cifar10", 4000, "pi"), resolve("cifar10", 4000, "supervised")
    assert replace(supervised, method="pi") == pi


@pytest.mark.parametrize("labels", [250, 500, 1000])
def test_supervised_svhn_is_mean_teachers(labels):
    run = plan("svhn", labels, "supervised")
    expected = {"batch": 0, "labelled_batch": 100, "whitening": "norm", "flip": False, "translate": 2, "lr": 3e-3}
    assert values(run.config, expected) == expected
    assert run.steps == 40_000
    for step in (0, 1, 20_000, 29_999, 30_000, 35_000, 39_999):
        fall = down((step - 30_000) / 10_000)
        assert run.lr(step) == pytest.approx(3e-3 * up(step / 40_000) * fall, rel=1e-9)
        assert run.momenta(step) == (0.99, 0.99)


def test_supervised_svhn_with_all_labels_is_as_long_as_mean_teacher():
    run = plan("svhn", "all", "supervised")
    assert (run.config.batch, run.config.labelled_batch, run.steps) == (100, 0, 180_000)
    assert run.lr(154_999) == pytest.approx(3e-3)
    assert run.lr(167_500) == pytest.approx(3e-3 * down(0.5))


@pytest.mark.parametrize("method", ["sntg", "supervised+ent", "supervised+ent+sntg"])
def test_a_term_on_unlabelled_points_is_given_unlabelled_points(method):
    """Mean Teacher's batches of labelled points are for the cross-entropy alone."""
    run, pi = plan("svhn", 1000, method), plan("svhn", 1000, "pi")
    assert replace(run.config, method="pi") == pi.config
    assert run.weight(732 * 100, "entropy") == pytest.approx(100 * 1000 / 73_257)


# --- the synthetic sets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", ["two-moons", "four-spins"])
def test_the_synthetic_sets_have_500_epochs_and_the_pi_models_batches(dataset):
    config = resolve(dataset, 12, "pi+sntg")
    expected = {"epochs": 500, "batch": 100, "lr": 1e-3, "model": "mlp", "margin": 1.0, "pairs": "half"}
    expected |= {"beta2": 0.999, "consistency": "mse", "skip_first": True, "label_factor": True, "stepwise": False}
    assert values(config, expected) == expected
