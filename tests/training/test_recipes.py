"""Recipes are rows of data: later ones override earlier ones, the caller overrides all, ramps follow the schedule."""

import fnmatch
from copy import deepcopy
from dataclasses import fields, replace

import pytest

from sntg.data import CATALOGUE
from sntg.errors import UsageError
from sntg.methods import all_names
from sntg.training import Config, recipe, recipes, resolve
from sntg.training.config import ARGUMENTS
from sntg.training.recipes import Row

DEFAULTS = {f.name: f.default for f in fields(Config)}
LABELS = {"two-moons": 12, "four-spins": 12, "digits": 20, "mnist": 100, "fashion-mnist": 100}
LABELS |= {"svhn": 1000, "cifar10": 4000, "cifar100": 10000}
POINTS = {"mnist": 60000, "svhn": 73257, "cifar10": 50000, "two-moons": 6000}


@pytest.fixture
def rows(monkeypatch):
    """Recipes of the test's own, so that tuning the real ones breaks nothing here."""
    rows = [
        Row("*", "*", "first", {"lr": 0.1, "noise": 0.1, "k": 0.1}),
        Row("two-moons", "*", "second", {"epochs": 200, "ramp_up": 50, "ramp_down": 20, "graph_start": 40, "lr": 0.2}),
        Row("*", "pi*", "third", {"noise": 0.2, "ent": 5.0}),
        Row("*", "pi+sntg", "fourth", {"k": 0.3}),
        Row("digits svhn", "vat mt*", "fifth", {"w_max": 7.0}),
        Row("mnist", "*", "ten", {"alpha": 0.1}, labels=10),
        Row("mnist", "*", "all", {"alpha": 0.2}, labels="all"),
        Row("mnist", "*", "some", {"margin": 3.0}, labels="some"),
        Row("mnist", "*", "noisy", {"k": 0.5}, noise=1e-9),
        Row("mnist", "*", "noisier", {"k": 0.6}, noise=50.0),
        Row("mnist", "*", "augmented", {"epsilon": 8.0}, augment=True),
        Row("mnist", "*", "plain", {"epsilon": 10.0}, augment=False),
        Row("mnist", "*", "all, noisy and plain", {"xi": 0.5}, labels="all", noise=20.0, augment=False),
    ]
    monkeypatch.setattr(recipes, "RECIPES", rows)
    return rows


# --- which rows fit --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "method", "expected"),
    [
        ("four-spins", "mt", {"lr": 0.1, "noise": 0.1, "k": 0.1}),
        ("digits", "vat", {"lr": 0.1, "noise": 0.1, "k": 0.1, "w_max": 7.0}),
        ("digits", "vat+ent", {"lr": 0.1, "noise": 0.1, "k": 0.1}),
        ("svhn", "mt+ent", {"lr": 0.1, "noise": 0.1, "k": 0.1, "w_max": 7.0}),
        ("four-spins", "pi", {"lr": 0.1, "noise": 0.2, "k": 0.1, "ent": 5.0}),
        ("four-spins", "pi+sntg", {"lr": 0.1, "noise": 0.2, "k": 0.3, "ent": 5.0}),
        ("four-spins", "pi+ent", {"lr": 0.1, "noise": 0.2, "k": 0.1, "ent": 5.0}),
        ("four-spins", "pi+ent+sntg", {"lr": 0.1, "noise": 0.2, "k": 0.1, "ent": 5.0}),
    ],
)
def test_a_row_is_for_the_datasets_and_the_methods_its_patterns_fit(rows, dataset, method, expected):
    assert recipe(dataset, method).values == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"labels": 10}, {"alpha": 0.1, "margin": 3.0, "k": 0.1, "epsilon": 8.0}),
        ({"labels": 20}, {"margin": 3.0, "k": 0.1, "epsilon": 8.0}),
        ({"labels": "some"}, {"margin": 3.0, "k": 0.1, "epsilon": 8.0}),
        ({"labels": "all"}, {"alpha": 0.2, "k": 0.1, "epsilon": 8.0}),
        ({"labels": 60000}, {"alpha": 0.2, "k": 0.1, "epsilon": 8.0}),
        ({"labels": 59990}, {"margin": 3.0, "k": 0.1, "epsilon": 8.0}),
        ({"label_noise": 1.0}, {"margin": 3.0, "k": 0.5, "epsilon": 8.0}),
        ({"label_noise": 49.9}, {"margin": 3.0, "k": 0.5, "epsilon": 8.0}),
        ({"label_noise": 50.0}, {"margin": 3.0, "k": 0.6, "epsilon": 8.0}),
        ({"label_noise": 90.0}, {"margin": 3.0, "k": 0.6, "epsilon": 8.0}),
        ({"augment": False}, {"margin": 3.0, "k": 0.1, "epsilon": 10.0}),
        (
            {"labels": "all", "label_noise": 20.0, "augment": False},
            {"alpha": 0.2, "k": 0.5, "epsilon": 10.0, "xi": 0.5},
        ),
        ({"labels": "all", "label_noise": 20.0}, {"alpha": 0.2, "k": 0.5, "epsilon": 8.0}),
        ({"labels": "all", "augment": False}, {"alpha": 0.2, "k": 0.1, "epsilon": 10.0}),
    ],
    ids=str,
)
def test_a_row_may_hold_for_some_cases_only(rows, case, expected):
    assert recipe("mnist", "mt", **case).values == {"lr": 0.1, "noise": 0.1} | expected


def test_later_rows_override_earlier_ones(rows):
    assert recipe("two-moons", "mt").values["lr"] == 0.2


def test_every_value_has_the_source_of_the_row_it_is_from(rows):
    found = recipe("two-moons", "pi+sntg")
    assert found.sources == {
        "lr": "second",
        "noise": "third",
        "k": "fourth",
        "ent": "third",
        "epochs": "second",
        "ramp_up": "second",
        "ramp_down": "second",
        "graph_start": "second",
    }
    assert set(found.sources) == set(found.values)


def test_reading_a_recipe_leaves_the_table_alone(rows):
    before = deepcopy(rows)
    resolve("two-moons", 12, "pi+sntg", epochs=3, lr=9.0)
    recipe("mnist", "pi", 10).values["lr"] = 5.0
    assert rows == before


# --- a run's settings ------------------------------------------------------------------------------------------------


def test_the_caller_overrides_the_recipe_which_overrides_the_defaults(rows):
    config = resolve("two-moons", 12, "pi", seed=7, lr=0.5)
    assert (config.lr, config.noise, config.margin) == (0.5, 0.2, DEFAULTS["margin"])
    assert (config.dataset, config.labels, config.method, config.seed) == ("two-moons", 12, "pi", 7)


def test_what_the_caller_sets_is_written_down():
    assert resolve("two-moons", 12, "pi").overridden == ()
    assert resolve("two-moons", 12, "pi", noise=0.3, lr=0.5).overridden == ("lr", "noise")
    set_to_the_same = resolve("two-moons", 12, "pi", epochs=resolve("two-moons", 12, "pi").epochs)
    assert set_to_the_same.overridden == ("epochs",)


def test_where_a_run_finds_its_data_stays_true_in_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = [resolve("mnist", 100, "pi", data=named).data for named in ("", "sets", "~/sets", str(tmp_path))]
    assert found == ["", str(tmp_path / "sets"), str(tmp_path / "home" / "sets"), str(tmp_path)]


def test_where_a_run_finds_its_data_and_what_it_holds_out_is_no_change_of_the_recipe(tmp_path):
    (tmp_path / "split.txt").write_text("0\n1\n")
    arguments = {"device": "cpu", "data": str(tmp_path / "somewhere"), "validation": 10, "tensorboard": True}
    config = resolve("two-moons", 2, "pi", split_file=str(tmp_path / "split.txt"), **arguments)
    assert config.overridden == ()
    assert {key: getattr(config, key) for key in arguments} == arguments


@pytest.mark.parametrize("dataset", POINTS)
@pytest.mark.parametrize("validation", [0, 1000])
def test_all_labels_are_as_many_as_there_are_points_to_train_on(dataset, validation):
    config = resolve(dataset, "all", "pi", validation=validation)
    assert config.labels == POINTS[dataset] - validation
    assert resolve(dataset, POINTS[dataset] - validation, "pi", validation=validation) == config


def test_all_the_labels_that_a_held_out_part_leaves_take_the_recipe_of_all_labels():
    full, held_out = resolve("svhn", "all", "mt"), resolve("svhn", "all", "mt", validation=5000)
    assert replace(held_out, validation=0, labels=73257) == full
    assert full.w_max != resolve("svhn", 68250, "mt", validation=5000).w_max  # some, not all


def test_an_index_file_says_itself_how_many_labels_there_are(tmp_path):
    path = tmp_path / "split.txt"
    path.write_text("# index class\n" + "".join(f"{row} {row % 2}\n" for row in range(250)))
    with pytest.raises(UsageError, match=r"^labels = 1000, and the split file '.*' names 250 points$"):
        resolve("svhn", 1000, "tempens", split_file=str(path))
    config = resolve("svhn", "all", "tempens", split_file=str(path))
    assert config == resolve("svhn", 250, "tempens", split_file=str(path))
    assert (config.labels, config.split_file) == (250, str(path))
    assert config.w_max == resolve("svhn", 250, "tempens").w_max != resolve("svhn", 1000, "tempens").w_max


def test_an_index_file_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"the split file 'nowhere\.txt' cannot be read"):
        resolve("svhn", 1000, "pi", split_file="nowhere.txt")


def test_the_recipe_is_the_one_for_the_runs_labels_noise_and_augmentation(rows):
    config = resolve("mnist", "all", "mt", label_noise=30.0, augment=False)
    assert (config.alpha, config.k, config.epsilon, config.xi) == (0.2, 0.5, 10.0, 0.5)
    assert config.overridden == ("augment", "label_noise")
    assert resolve("mnist", 10, "mt").alpha == 0.1


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


def test_the_time_of_the_early_momentum_scales_with_the_ramps():
    assert resolve("svhn", 1000, "mt", epochs=36).early_epochs == 8


def test_ramps_the_recipe_does_not_name_scale_from_the_defaults(rows):
    config = resolve("four-spins", 12, "mt", epochs=150)  # half of the default 300
    assert (config.ramp_up, config.ramp_down) == (DEFAULTS["ramp_up"] // 2, DEFAULTS["ramp_down"] // 2)


def test_ramps_the_caller_sets_are_not_scaled(rows):
    config = resolve("two-moons", 12, "pi", epochs=20, ramp_up=17)
    assert (config.ramp_up, config.ramp_down) == (17, 2)


def test_a_recipe_without_a_ramp_gets_none_by_scaling():
    config = resolve("cifar10", 4000, "vat", epochs=50)
    assert (config.ramp_up, config.ramp_down) == (0, 4)


def test_without_epochs_the_ramps_are_the_recipes(rows):
    config = resolve("two-moons", 12, "pi")
    assert (config.epochs, config.ramp_up, config.ramp_down) == (200, 50, 20)


@pytest.mark.parametrize("name", [" PI+SNTG ", "pi+sntg"])
def test_the_method_is_kept_in_its_printed_form(name):
    assert resolve("two-moons", 12, name) == resolve("two-moons", 12, "pi+sntg")
    assert resolve("two-moons", 12, "supervised+sntg").method == "sntg"


# --- the shipped ones ------------------------------------------------------------------------------------------------


def cases(dataset):
    yield from ({"labels": LABELS[dataset]}, {"labels": "all"}, {"labels": LABELS[dataset], "augment": False})
    yield {"labels": "all", "label_noise": 60.0}


@pytest.mark.parametrize("dataset", CATALOGUE)
def test_every_shipped_recipe_is_a_valid_config(dataset):
    for method in all_names():
        for case in cases(dataset):
            settings = {key: value for key, value in case.items() if key != "labels"}
            config = resolve(dataset, case["labels"], method, **settings)
            assert config.as_dict() == DEFAULTS | config.as_dict() | recipe(dataset, method, **case).values


@pytest.mark.parametrize("dataset", sorted(set(CATALOGUE) - {"two-moons", "four-spins", "digits"}))
def test_a_recipe_of_an_image_set_leaves_no_value_of_its_training_to_the_defaults(dataset):
    """A default may change for another dataset's sake; what is published must not change with it."""
    free = {"n_pairs", "temperature", "neighbours", "fixed_from", "power_iterations", "xi", "augment", "label_noise"}
    free |= {"ent", "graph_start", "graph_ramp", "eval_every", "checkpoint_seconds", "bn_batches", "epoch_steps"}
    free |= {"labelled_batch", "early_momentum", "early_epochs"}
    for method in all_names():
        needed = set(DEFAULTS) - ARGUMENTS - free
        needed -= set() if method.startswith("tempens") else {"alpha"}
        needed -= set() if method.startswith("vat") else {"epsilon", "graph_features"}
        assert needed <= set(recipe(dataset, method, LABELS[dataset]).values), method


def test_shipped_recipes_name_only_what_exists():
    keys = set(DEFAULTS) - ARGUMENTS
    sources = {value for name, value in vars(recipes).items() if name.isupper() and isinstance(value, str)}
    for row in recipes.RECIPES:
        for pattern in row.datasets.split():
            assert fnmatch.filter(CATALOGUE, pattern), pattern
        for pattern in row.methods.split():
            assert fnmatch.filter(all_names(), pattern), pattern
        assert set(row.values) <= keys
        assert row.source in sources
        assert isinstance(row.labels, int) or row.labels in (None, "all", "some")


def test_no_shipped_row_is_dead():
    """Each one decides some value of some run."""
    live = set()
    for dataset in CATALOGUE:
        for method in all_names():
            for labels in {LABELS[dataset], 250, CATALOGUE[dataset].points}:
                for noise in (0.0, 20.0, 50.0):
                    for augment in (True, False):
                        case = recipes.Case(labels, labels == CATALOGUE[dataset].points, noise, augment)
                        decided = {}
                        for row in recipes._rows(dataset, method, case):
                            decided.update(dict.fromkeys(row.values, id(row)))
                        live |= set(decided.values())
    assert [row for row in recipes.RECIPES if id(row) not in live] == []


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_an_unknown_dataset_or_method_is_refused():
    with pytest.raises(UsageError, match="unknown dataset 'two-mons': did you mean 'two-moons'"):
        resolve("two-mons", 12, "pi")
    with pytest.raises(UsageError, match="unknown method 'pie': did you mean 'pi'"):
        resolve("two-moons", 12, "pie")


@pytest.mark.parametrize("name", [None, 3, ["pi"]])
def test_a_name_that_is_no_text_is_refused_as_any_other(name):
    with pytest.raises(UsageError, match="unknown dataset "):
        resolve(name, 12, "pi")
    with pytest.raises(UsageError, match="unknown method "):
        resolve("two-moons", 12, name)


@pytest.mark.parametrize("key", ["epochs", "validation"])
def test_a_setting_of_another_type_is_refused_before_anything_is_done_with_it(key):
    with pytest.raises(UsageError, match=f"{key} = '3' is not of the kind"):
        resolve("two-moons", 12, "pi", **{key: "3"})


def test_a_number_of_labels_that_is_a_word_other_than_all_is_refused():
    with pytest.raises(UsageError, match="labels = 'some' is not of the kind int"):
        resolve("two-moons", "some", "pi")


def test_an_unknown_setting_is_refused_with_the_nearest_names():
    with pytest.raises(UsageError, match=r"'epoch'.*'epochs'"):
        resolve("two-moons", 12, "pi", epoch=3)


@pytest.mark.parametrize("epochs", [0, -4, float("nan"), float("inf")])
def test_a_number_of_epochs_that_cannot_be_is_refused(epochs):
    with pytest.raises(UsageError, match="epochs = "):
        resolve("two-moons", 12, "pi", epochs=epochs)
