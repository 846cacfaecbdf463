"""Settings: every value that cannot be is refused in one sentence that names it; text is read as the setting's type."""

import json
import math
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sntg.errors import UsageError
from sntg.training import resolve
from sntg.training.config import ARGUMENTS, BOUNDS, CHOICES, TYPES, Config, config_from, read_setting

GOOD = Config("two-moons", labels=12, method="pi+sntg")
NUMBERS = [f.name for f in fields(Config) if f.type in (int, float) and f.name != "labels"]


def refusal(**changes):
    """The sentence with which a config is refused."""
    with pytest.raises(UsageError) as caught:
        replace(GOOD, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("dataset", "two-mons", "two-moons"),
        ("dataset", "digit", "digits"),
        ("method", "pi+sngt", "pi+sntg"),
        ("method", "tempen", "tempens"),
        ("model", "mpl", "mlp"),
        ("graph", "sof", "soft"),
        ("consistency", "mze", "mse"),
        ("graph_labels", "merged", "merge"),
        ("graph_features", "perturb", "perturbed"),
        ("pairs", "hafl", "half"),
        ("normalisation", "mean-olny", "mean-only"),
        ("decay", "gaus", "gauss"),
        ("split", "balance", "balanced"),
        ("padding", "reflekt", "reflect"),
        ("report", "row", "raw"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(key, value, nearest):
    message = refusal(**{key: value})
    assert f"unknown {key} {value!r}" in message
    assert repr(nearest) in message.split("(valid:")[0]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (6002, "6002 labels are more than the 6000 training points"),
        (13, "13 labels cannot be spread evenly over 2 classes"),
        (1, "1 labels leave a class without a label"),
        (0, "0 labels leave a class without a label"),
        (-2, "-2 labels leave a class without a label"),
    ],
)
def test_a_number_of_labels_that_cannot_be_spread_is_refused(labels, words):
    assert words in refusal(labels=labels)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("seed", 2**31),
        ("epochs", 0),
        ("batch", -1),
        ("labelled_batch", -1),
        ("labelled_batch", 1_000_001),
        ("epoch_steps", -1),
        ("validation", -1),
        ("lr", -1e-9),
        ("beta2", 1.1),
        ("ramp_up", -1),
        ("ramp_down", -1),
        ("w_max", -0.1),
        ("ent", -0.1),
        ("k", -0.1),
        ("margin", -1.0),
        ("margin", 0.0),
        ("graph_start", -1),
        ("graph_ramp", -1),
        ("temperature", 0.0),
        ("temperature", -1.0),
        ("neighbours", 0),
        ("noise", -0.1),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("bn_momentum", 1.1),
        ("bn_batches", -1),
        ("bn_batches", 10_001),
        ("label_noise", -1.0),
        ("label_noise", 100.1),
        ("early_momentum", 1.1),
        ("early_epochs", -1),
        ("checkpoint_seconds", -1.0),
        ("translate", -1),
        ("translate", 9),
        ("alpha", 1.0),
        ("ema", 1.5),
        ("epsilon", -1.0),
        ("power_iterations", 0),
        ("xi", -1e-6),
        ("xi", 1e-10),
        ("xi", 1e4),
        ("eval_every", 0),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_its_name_and_value(key, value):
    message = refusal(**{key: value})
    assert message.startswith(f"{key} = ")
    assert str(value) in message or value == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("key", NUMBERS)
def test_no_number_may_be_nan_or_infinite(key, value):
    assert f"{key} = {value}" in refusal(**{key: value})


@pytest.mark.parametrize("key", ["lr", "w_max", "margin"])
def test_nor_may_a_whole_number_be_larger_than_any_real_one(key):
    assert f"{key} = 1000" in refusal(**{key: 10**400})


@pytest.mark.parametrize("key", ["lr", "labels", "validation", "n_pairs", "seed"])
def test_a_number_that_python_does_not_write_out_is_refused_in_words(key):
    assert f"{key} is out of range: it is a whole number of thousands of digits" in refusal(**{key: -(10**5000)})


def test_who_gives_a_word_for_the_number_of_labels_is_told_the_one_there_is():
    with pytest.raises(UsageError, match="labels = 'some' is not of the kind int, nor 'all'"):
        resolve("two-moons", "some", "pi")


@pytest.mark.parametrize("key", BOUNDS)
def test_the_bounds_themselves_are_allowed(key):
    """All but the margin's: a margin of 0 would push nothing apart."""
    for bound in BOUNDS[key]:
        if bound is not None and not (key == "margin" and bound == 0):
            changes = {"model": "small", "dataset": "digits", "labels": 20} if key == "translate" else {}
            changes |= {"labelled_batch": 2} if key == "batch" else {}  # something must be drawn
            assert getattr(replace(GOOD, **{key: bound}, **changes), key) == bound


def test_a_batch_larger_than_the_training_set_is_refused():
    assert replace(GOOD, batch=6000).batch == 6000
    assert "batch = 6001 is more than the 6000 training points of two-moons" in refusal(batch=6001)


@pytest.mark.parametrize(("batch", "labelled_batch"), [(0, 0), (1, 0), (0, 1)])
def test_a_step_of_fewer_than_two_points_is_refused(batch, labelled_batch):
    n = batch + labelled_batch
    assert f"batch + labelled_batch = {n} makes a batch of {n} points" in refusal(
        batch=batch, labelled_batch=labelled_batch
    )


@pytest.mark.parametrize(("batch", "labelled_batch"), [(2, 0), (1, 1), (0, 2), (0, 500)])
def test_a_step_may_be_of_all_points_of_labelled_ones_or_of_both(batch, labelled_batch):
    config = replace(GOOD, batch=batch, labelled_batch=labelled_batch)
    assert (config.batch, config.labelled_batch) == (batch, labelled_batch)


@pytest.mark.parametrize(("batch", "labelled_batch"), [(100, 0), (0, 100), (0, 0)])
def test_a_method_that_draws_two_parts_needs_both(batch, labelled_batch):
    message = refusal(method="vat+sntg", batch=batch, labelled_batch=labelled_batch)
    assert message.startswith("vat+sntg needs batch and labelled_batch above 0")
    assert replace(GOOD, method="vat+sntg", batch=2, labelled_batch=1).labelled_batch == 1


@pytest.mark.parametrize("method", ["tempens", "tempens+ent+sntg"])
def test_a_method_that_averages_over_epochs_needs_batches_of_all_points(method):
    """Of labelled ones alone a batch may have one twice, and two draws would be noted in one place at once."""
    message = refusal(method=method, batch=0, labelled_batch=100)
    assert message == f"{method} needs batch above 0: it averages over epochs what is said of each point"
    assert replace(GOOD, method=method, batch=1, labelled_batch=100).batch == 1


def test_pairs_are_counted_in_the_batch_that_has_them():
    """Joined, the labelled rows are part of it; drawn apart, they are not."""
    joined = {"batch": 6, "labelled_batch": 4, "pairs": "random"}
    assert replace(GOOD, **joined, n_pairs=90).n_pairs == 90
    assert "n(n-1) = 90" in refusal(**joined, n_pairs=91)
    assert "n(n-1) = 30" in refusal(**joined, n_pairs=31, method="vat+sntg")


@pytest.mark.parametrize("n_pairs", [0, -1, 91])
def test_more_pairs_than_a_batch_has_are_refused(n_pairs):
    assert replace(GOOD, batch=10, pairs="random", n_pairs=90).n_pairs == 90
    message = refusal(batch=10, pairs="random", n_pairs=n_pairs)
    assert f"n_pairs = {n_pairs}" in message
    assert "n(n-1) = 90" in message


@pytest.mark.parametrize("pairs", ["half", "all"])
def test_n_pairs_without_random_pairs_is_refused(pairs):
    assert "n_pairs = 5" in refusal(pairs=pairs, n_pairs=5)


def test_a_fixed_graph_needs_a_run_to_come_from():
    assert "fixed_from" in refusal(graph="fixed")
    assert replace(GOOD, graph="fixed", fixed_from="RUN").fixed_from == "RUN"
    assert replace(GOOD, method="pi", graph="fixed").graph == "fixed"  # there is no graph term to need it


@pytest.mark.parametrize(("key", "value"), [("translate", 2), ("flip", True)])
def test_points_in_the_plane_cannot_be_moved_or_mirrored(key, value):
    assert f"{key} = {value} is for images, and two-moons has none" in refusal(**{key: value})
    images = replace(GOOD, dataset="digits", labels=20, **{key: value})
    assert getattr(images, key) == value


@pytest.mark.parametrize("dataset", ["two-moons", "digits"])
def test_only_pixels_from_files_are_whitened(dataset):
    message = refusal(dataset=dataset, labels=20, whitening="norm")
    assert message == f"whitening = norm is for pixels read from files: use none for {dataset}"
    assert replace(GOOD, dataset="mnist", labels=20, whitening="norm").whitening == "norm"


def test_an_unknown_whitening_is_answered_with_the_nearest_one():
    message = refusal(dataset="cifar10", labels=20, whitening="gcnzca")
    assert "unknown whitening 'gcnzca'" in message
    assert "'gcn-zca'" in message.split("(valid:")[0]


# --- which points keep their labels ----------------------------------------------------------------------------------


def test_labels_are_counted_among_the_points_that_are_not_held_out():
    assert replace(GOOD, validation=1000, labels=5000).labels == 5000  # all that are left
    assert replace(GOOD, validation=1000, labels=4998).labels == 4998
    assert "5002 labels are more than the 5000 training points" in refusal(validation=1000, labels=5002)


@pytest.mark.parametrize("validation", [6000, 7000])
def test_holding_out_every_point_is_refused(validation):
    assert f"validation = {validation} leaves none of the 6000 points" in refusal(validation=validation)


def test_a_batch_larger_than_what_is_left_to_train_on_is_refused():
    assert replace(GOOD, validation=5900, batch=100).batch == 100
    assert "batch = 101 is more than the 100 training points" in refusal(validation=5900, batch=101)


def test_labels_that_need_not_be_balanced_need_not_be_spread_evenly():
    assert replace(GOOD, labels=13, split="unbalanced").labels == 13
    assert replace(GOOD, labels=13, split_file="split.txt").labels == 13


def test_a_split_files_labels_are_not_corrupted():
    assert replace(GOOD, label_noise=20.0).label_noise == 20
    assert refusal(label_noise=20.0, split_file="split.txt").startswith("label_noise corrupts labels that are drawn")


@pytest.mark.parametrize(
    ("device", "words"),
    [("tpu9", "is not a device"), ("", "is not a device"), ("meta", "is not supported"), ("cpu:7", "is not supported")],
)
def test_a_device_that_is_none_is_refused(device, words):
    message = refusal(device=device)
    assert f"device = {device!r}" in message
    assert words in message


def test_cuda_is_refused_where_there_is_none_and_allowed_where_there_is(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert "device = 'cuda': this machine has 0 usable CUDA GPUs" in refusal(device="cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert replace(GOOD, device="cuda").device == "cuda"
    assert "device = 'cuda:7': this machine has 1 usable CUDA GPUs" in refusal(device="cuda:7")


@pytest.mark.parametrize(
    ("key", "value"), [("epochs", 2.5), ("seed", 1.5), ("labels", 12.0), ("epochs", "3"), ("k", "1")]
)
def test_a_value_of_another_kind_is_refused(key, value):
    assert f"{key} = {value!r} is not of the kind" in refusal(**{key: value})


def test_a_whole_number_may_stand_for_a_real_one_but_a_truth_value_for_neither():
    assert replace(GOOD, margin=2).margin == 2
    assert "margin = True is not of the kind float" in refusal(margin=True)


def test_a_config_cannot_be_changed_afterwards_to_something_unchecked():
    with pytest.raises(AttributeError):
        GOOD.margin = -1.0


# --- reading text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("epochs=20", "epochs", 20),
        ("epochs=-3", "epochs", -3),
        ("lr=1e-3", "lr", 0.001),
        ("lr=2", "lr", 2.0),
        (" margin = 0.5 ", "margin", 0.5),
        ("label_factor=false", "label_factor", False),
        ("label_factor=True", "label_factor", True),
        ("n_pairs=None", "n_pairs", None),
        ("n_pairs=none", "n_pairs", None),
        ("n_pairs=7", "n_pairs", 7),
        ("graph=soft", "graph", "soft"),
        ("fixed_from=a=b", "fixed_from", "a=b"),
        ("fixed_from=", "fixed_from", ""),
        ("stepwise=true", "stepwise", True),
        ("skip_first=FALSE", "skip_first", False),
        ("epoch_steps=400", "epoch_steps", 400),
        ("label_noise=20", "label_noise", 20.0),
        ("whitening=gcn-zca", "whitening", "gcn-zca"),
    ],
)
def test_a_setting_is_read_as_its_own_type(text, key, value):
    assert read_setting(text) == (key, value)
    assert type(read_setting(text)[1]) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs=2.5", "epochs = '2.5' is not a whole number"),
        ("epochs=none", "epochs = 'none' is not a whole number"),
        ("epochs=", "epochs = '' is not a whole number"),
        ("n_pairs=many", "n_pairs = 'many' is not a whole number"),
        ("lr=fast", "lr = 'fast' is not a number"),
        ("lr=none", "lr = 'none' is not a number"),
        ("label_factor=1", "label_factor = '1' is neither true nor false"),
        ("epochs", "--set 'epochs' is not of the form key=value"),
        ("", "--set '' is not of the form key=value"),
        ("epoch=3", "unknown key 'epoch': did you mean 'epochs'"),
        ("=3", "unknown key ''"),
    ],
)
def test_a_text_that_is_no_value_is_refused(text, words):
    with pytest.raises(UsageError) as caught:
        read_setting(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("key", sorted(ARGUMENTS))
def test_what_has_an_argument_of_its_own_is_not_set(key):
    with pytest.raises(UsageError, match=f"{key} is not changed by --set"):
        read_setting(f"{key}=1")


def test_the_arguments_are_not_offered_as_keys():
    with pytest.raises(UsageError) as caught:
        read_setting("sead=1")
    offered = str(caught.value).split("(valid: ")[1].removesuffix(")").split(", ")
    assert offered == sorted(set(TYPES) - ARGUMENTS)


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.integers(1, 10**6),
        "lr": st.floats(0, 1e6),
        "margin": st.floats(1e-6, 1e6),
        "k": st.floats(0, 1e3),
        "label_factor": st.booleans(),
        "graph": st.sampled_from(["hard", "soft", "knn"]),
        "noise": st.floats(0, 10),
        "batch": st.integers(2, 6000),
    },
)


@given(SETTINGS)
def test_what_a_config_prints_reads_back_as_itself(changes):
    config = replace(GOOD, **changes)
    read = dict(read_setting(f"{k}={v}") for k, v in config.as_dict().items() if k not in ARGUMENTS)
    assert read == {k: v for k, v in config.as_dict().items() if k not in ARGUMENTS}


@given(SETTINGS)
def test_plain_values_make_an_equal_config(changes):
    config = replace(GOOD, **changes)
    assert config_from(config.as_dict()) == config


def test_a_run_from_before_the_features_could_be_chosen_took_the_clean_passs():
    """Its config.json does not say so; resumed, it must go on as it began."""
    old = replace(GOOD, method="vat+sntg", labelled_batch=4).as_dict()
    del old["graph_features"]
    assert config_from(old).graph_features == "clean"


def test_plain_values_with_a_key_that_does_not_exist_are_refused():
    with pytest.raises(UsageError, match="unknown key 'batches': did you mean 'batch'"):
        config_from(GOOD.as_dict() | {"batches": 3})


def test_the_settings_are_in_the_papers_words():
    wanted = {"epochs", "batch", "lr", "margin", "k", "pairs", "n_pairs", "graph", "noise", "w_max", "ramp_up"}
    assert wanted < set(TYPES)
    assert list(GOOD.as_dict()) == list(TYPES)


def test_the_settings_changed_by_the_caller_survive_json():
    config = replace(GOOD, overridden=("k", "lr"))
    read = config_from(json.loads(json.dumps(config.as_dict())))
    assert read == config
    assert read.overridden == ("k", "lr")


def test_every_setting_is_checked_somehow():
    """A number without bounds, or a word without choices, would let nonsense through."""
    elsewhere = {"dataset", "labels", "method", "device", "pairs", "n_pairs", "margin", "temperature"}
    paths = {"data", "split_file", "fixed_from"}
    written_by_the_run = {"overridden", "data_hash", "split_hash"}
    unchecked = set(TYPES) - set(BOUNDS) - set(CHOICES) - elsewhere - paths - written_by_the_run
    assert {TYPES[key] for key in unchecked} == {bool}


@pytest.mark.parametrize("key", [key for key, kind in TYPES.items() if kind is bool])
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_only_a_truth_value_is_one(key, value):
    assert f"{key} = {value!r} is not of the kind bool" in refusal(**{key: value})


def test_the_changed_settings_are_a_tuple():
    assert "overridden = 'lr' is not of the kind tuple" in refusal(overridden="lr")
