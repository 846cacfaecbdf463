"""Recipes are rows of data: later ones override earlier ones, the caller overrides all, ramps follow the schedule."""

import fnmatch
from dataclasses import fields

import pytest

from sntg.data import CATALOGUE
from sntg.errors import UsageError
from sntg.methods import all_names
from sntg.training import Config, recipe, recipes, resolve

DEFAULTS = {f.name: f.default for f in fields(Config)}
LABELS = {"two-moons": 12, "four-spins": 12, "digits": 20}


@pytest.fixture
def rows(monkeypatch):
    """Recipes of the test's own, so that tuning the real ones breaks nothing here."""
    rows = [
        ("*", "*", {"lr": 0.1, "noise": 0.1, "k": 0.1}),
        ("two-moons", "*", {"epochs": 200, "ramp_up": 50, "ramp_down": 20, "graph_start": 40, "lr": 0.2}),
        ("*", "pi*", {"noise": 0.2, "ent": 5.0}),
        ("*", "pi+sntg", {"k": 0.3}),
        ("digits", "vat", {"w_max": 7.0}),
    ]
    monkeypatch.setattr(recipes, "RECIPES", rows)
    return rows


@pytest.mark.parametrize(
    ("dataset", "method", "expected"),
    [
        ("four-spins", "mt", {"lr": 0.1, "noise": 0.1, "k": 0.1}),
        ("digits", "vat", {"lr": 0.1, "noise": 0.1, "k": 0.1, "w_max": 7.0}),
        ("digits", "vat+ent", {"lr": 0.1, "noise": 0.1, "k": 0.1}),
        ("four-spins", "pi", {"lr": 0.1, "noise": 0.2, "k": 0.1, "ent": 5.0}),
        ("four-spins", "pi+sntg", {"lr": 0.1, "noise": 0.2, "k": 0.3, "ent": 5.0}),
        ("four-spins", "pi+ent", {"lr": 0.1, "noise": 0.2, "k": 0.1, "ent": 5.0}),
        ("four-spins", "pi+ent+sntg", {"lr": 0.1, "noise": 0.2, "k": 0.1, "ent": 5.0}),
    ],
)
def test_a_row_is_for_the_dataset_and_the_methods_its_patterns_fit(rows, dataset, method, expected):
    assert recipe(dataset, method) == expected


def test_later_rows_override_earlier_ones(rows):
    assert recipe("two-moons", "mt")["lr"] == 0.2


def test_reading_a_recipe_leaves_the_table_alone(rows):
    before = [(d, m, dict(values)) for d, m, values in rows]
    resolve("two-moons", 12, "pi+sntg", epochs=3, lr=9.0)
    assert rows == before


def test_the_caller_overrides_the_recipe_which_overrides_the_defaults(rows):
    config = resolve("two-moons", 12, "pi", seed=7, lr=0.5)
    assert (config.lr, config.noise, config.margin) == (0.5, 0.2, DEFAULTS["margin"])
    assert (config.dataset, config.labels, config.method, config.seed) == ("two-moons", 12, "pi", 7)


@pytest.mark.parametrize(
    ("epochs", "ramps"),
    [
        (200, (50, 20, 40)),
        (100, (25, 10, 20)),
        (400, (100, 40, 80)),
        (3, (1, 1, 1)),  # a ramp that is there stays there
        (1, (1, 1, 1)),
    ],
)
def test_another_number_of_epochs_scales_the_recipes_ramps(rows, epochs, ramps):
    config = resolve("two-moons", 12, "pi", epochs=epochs)
    assert config.epochs == epochs
    assert (config.ramp_up, config.ramp_down, config.graph_start) == ramps


def test_ramps_the_recipe_does_not_name_scale_from_the_defaults(rows):
    config = resolve("four-spins", 12, "mt", epochs=150)  # half of the default 300
    assert (config.ramp_up, config.ramp_down) == (DEFAULTS["ramp_up"] // 2, DEFAULTS["ramp_down"] // 2)


def test_ramps_the_caller_sets_are_not_scaled(rows):
    config = resolve("two-moons", 12, "pi", epochs=20, ramp_up=17)
    assert (config.ramp_up, config.ramp_down) == (17, 2)


def test_without_epochs_the_ramps_are_the_recipes(rows):
    config = resolve("two-moons", 12, "pi")
    assert (config.epochs, config.ramp_up, config.ramp_down) == (200, 50, 20)


@pytest.mark.parametrize("name", [" PI+SNTG ", "pi+sntg"])
def test_the_method_is_kept_in_its_printed_form(name):
    assert resolve("two-moons", 12, name) == resolve("two-moons", 12, "pi+sntg")
    assert resolve("two-moons", 12, "supervised+sntg").method == "sntg"


@pytest.mark.parametrize("dataset", CATALOGUE)
def test_every_shipped_recipe_is_a_valid_config(dataset):
    for method in all_names():
        config = resolve(dataset, LABELS[dataset], method)
        assert config.as_dict() == DEFAULTS | config.as_dict() | recipe(dataset, method)


def test_shipped_recipes_name_only_what_exists():
    keys = set(DEFAULTS) - {"dataset", "labels", "method", "seed", "device"}
    for dataset, method, values in recipes.RECIPES:
        assert fnmatch.filter(CATALOGUE, dataset), dataset
        assert fnmatch.filter(all_names(), method), method
        assert set(values) <= keys


def test_an_unknown_dataset_or_method_is_refused():
    with pytest.raises(UsageError, match="unknown dataset 'two-mons': did you mean 'two-moons'"):
        resolve("two-mons", 12, "pi")
    with pytest.raises(UsageError, match="unknown method 'pie': did you mean 'pi'"):
        resolve("two-moons", 12, "pie")


def test_an_unknown_setting_is_refused_with_the_nearest_names():
    with pytest.raises(UsageError, match=r"'epoch'.*'epochs'"):
        resolve("two-moons", 12, "pi", epoch=3)


@pytest.mark.parametrize("epochs", [0, -4, float("nan"), float("inf")])
def test_a_number_of_epochs_that_cannot_be_is_refused(epochs):
    with pytest.raises(UsageError, match="epochs = "):
        resolve("two-moons", 12, "pi", epochs=epochs)
