"""The training loop: reproducible, runs of a stack apart from one another, every method and graph through one epoch."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from sntg.data import balanced_split, load_dataset
from sntg.errors import DivergenceError, UsageError
from sntg.methods import METHODS, all_names, parse
from sntg.training import RunFolder, loop, resolve, run, train
from sntg.training.evaluation import error
from sntg.training.loop import STACKABLE, Stack, check_stack
from sntg.training.metrics import EpochLog

# Everything the outcome hangs on, whatever the recipes say; ramps of 0 let every term count from the first step.
QUICK = {"epochs": 2, "batch": 1000, "labelled_batch": 8, "lr": 1e-3, "noise": 0.08, "epsilon": 1.0}
QUICK |= {"w_max": 100.0, "k": 0.4, "ramp_up": 0, "ramp_down": 0, "graph_start": 0, "graph_ramp": 0}


def quick(method="pi+sntg", seed=0, **settings):
    return resolve("two-moons", 12, method, seed, **(QUICK | settings))


def weights(trained):
    return trained.model.state_dict()


def same_weights(a, b):
    return all(torch.equal(value, weights(b)[name]) for name, value in weights(a).items())


# --- reproducible ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", METHODS)
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(base):
    config = quick(f"{base}+ent+sntg")
    torch.manual_seed(1)
    (first,) = train([config])
    torch.manual_seed(2)  # the caller's generator has no say
    (second,) = train([config])
    (other,) = train([replace(config, seed=1)])
    assert first.history == second.history
    assert same_weights(first, second)
    assert first.history != other.history
    assert not same_weights(first, other)


def test_images_are_reproducible_too():
    config = resolve("digits", 20, "pi+sntg", epochs=1, batch=400)
    (first,), (second,) = train([config]), train([config])
    assert first.history == second.history
    assert same_weights(first, second)


@pytest.mark.parametrize("settings", [{}, {"lr": 1e30, "epochs": 3}], ids=["finished", "diverged"])
def test_the_callers_random_numbers_are_left_alone(settings):
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    try:
        train([quick("pi", **settings)])
    except DivergenceError:
        assert settings
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]


# --- a stack ---------------------------------------------------------------------------------------------------------


def make_stack(*configs):
    """The state training starts from."""
    with loop._own_randomness(configs[0]):
        return Stack(configs)


def test_each_run_of_a_stack_has_the_data_labels_and_initial_weights_it_has_alone():
    configs = [quick(seed=seed, noise=noise) for seed, noise in ((3, 0.1), (4, 0.0), (3, 0.5))]
    together = make_stack(*configs)
    for number, config in enumerate(configs):
        alone = make_stack(config)
        assert torch.equal(together.batches.x[number], alone.batches.x[0])
        assert torch.equal(together.batches.labels[number], alone.batches.labels[0])
        assert torch.equal(together.truth[number], alone.truth[0])
        assert torch.equal(together.test_x[number], alone.test_x[0])
        for layer, single in zip(together.model.hidden, alone.model.hidden, strict=True):
            assert torch.equal(layer.V[number], single.V[0])
        assert all(noise.std[number] == torch.tensor(config.noise) for noise in together.model.noises)


def test_the_data_and_labels_are_those_of_the_runs_seed():
    (trained,) = train([quick("supervised", seed=3, epochs=1)])
    data = load_dataset("two-moons", 3)
    assert torch.equal(trained.data.train_x, data.train_x)
    assert torch.equal(trained.labels, balanced_split(data.train_y, 12, 2, seed=3))
    assert trained.labels[trained.labels >= 0].bincount().tolist() == [6, 6]


def test_two_methods_with_one_seed_see_the_same_labels():
    pi, sntg = make_stack(quick("pi")), make_stack(quick("pi+sntg"))
    assert torch.equal(pi.batches.labels, sntg.batches.labels)
    assert torch.equal(pi.model.hidden[0].V, sntg.model.hidden[0].V)


@pytest.mark.parametrize("base", METHODS)
def test_nothing_leaks_from_one_run_of_a_stack_to_another(base):
    """The second run's settings change in everything that may differ; the first run keeps every bit."""
    config = quick(f"{base}+ent+sntg", ramp_up=1)
    other = {"seed": 8, "lr": 0.05, "w_max": 9.0, "k": 3.0, "ent": 2.0, "noise": 0.7, "ramp_up": 2}
    other |= {"graph_start": 1, "graph_ramp": 1}
    assert set(other) == STACKABLE
    first, neighbour = train([config, replace(config, seed=1)])
    again, changed = train([config, replace(config, **other)])
    assert first.history == again.history
    assert same_weights(first, again)
    assert not same_weights(neighbour, changed)


@pytest.mark.parametrize("method", ["supervised", "pi", "tempens", "mt"])
def test_without_noise_and_with_all_points_in_one_batch_a_run_goes_as_it_goes_alone(method):
    """Then only the points' order is random, and that changes nothing but rounding."""
    configs = [
        quick(method, seed, epochs=4, batch=6000, noise=0.0, lr=lr, ramp_up=2) for seed, lr in ((1, 0.01), (2, 0.003))
    ]
    for together, config in zip(train(configs), configs, strict=True):
        (alone,) = train([config])
        for name, value in weights(alone).items():
            torch.testing.assert_close(weights(together)[name], value, rtol=1e-3, atol=1e-4)
        for ours, theirs in zip(together.history, alone.history, strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-5)
            assert ours["lr"] == theirs["lr"]


def test_a_run_into_a_folder_is_the_stack_of_one(tmp_path):
    config = quick()
    (trained,) = train([config])
    saved = run(config, tmp_path / "run")
    assert saved.history == trained.history
    assert same_weights(saved, trained)


def test_each_run_of_a_stack_is_returned_with_its_own_settings_and_history():
    configs = [quick(seed=2, lr=0.01), quick(seed=1, lr=0.02)]
    runs = train(configs)
    assert [r.config for r in runs] == configs
    for trained, config in zip(runs, configs, strict=True):
        assert [record["epoch"] for record in trained.history] == [1, 2]
        assert trained.history[0]["lr"] == config.lr
        assert trained.error == trained.history[-1]["error"]
        assert trained.error == float(error(trained.model, trained.data.test_x, trained.data.test_y))
        assert torch.equal(trained.data.train_x, load_dataset("two-moons", config.seed).train_x)


OTHER_VALUES = {
    "labels": 14,
    "method": "pi",
    "epochs": 3,
    "batch": 999,
    "labelled_batch": 9,
    "beta2": 0.9,
    "ramp_down": 1,
    "label_factor": False,
    "consistency": "kl",
    "margin": 2.0,
    "pairs": "all",
    "graph": "soft",
    "graph_labels": "teacher",
    "temperature": 2.0,
    "neighbours": 3,
    "fixed_from": "RUN",
    "dropout": 0.1,
    "bn_momentum": 0.9,
    "alpha": 0.1,
    "ema": 0.1,
    "epsilon": 2.0,
    "power_iterations": 2,
    "xi": 0.1,
    "eval_every": 2,
}


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_runs_that_differ_in_what_shapes_the_computation_are_refused(key):
    config = quick()
    with pytest.raises(UsageError, match=f"must share {key}, and it is .* and {OTHER_VALUES[key]}"):
        train([config, config, replace(config, **{key: OTHER_VALUES[key]})])


def test_every_setting_is_either_stackable_or_refused():
    spoken_for = {"dataset", "device", "model", "translate", "n_pairs"}  # cannot differ alone in a valid config
    assert set(quick().as_dict()) == STACKABLE | set(OTHER_VALUES) | spoken_for
    with pytest.raises(UsageError, match="must share dataset"):
        check_stack([quick(), replace(quick(), dataset="four-spins")])


# --- what is recorded ------------------------------------------------------------------------------------------------


def test_a_record_an_epoch_with_steps_rates_and_weights():
    config = quick("pi+ent+sntg", epochs=4, batch=900, ramp_up=2, ramp_down=2, lr=0.01, w_max=500.0, k=0.5, ent=0.2)
    seen = []
    (trained,) = train([config], on_epoch=seen.append)
    assert seen == [[record] for record in trained.history]
    assert [r["epoch"] for r in trained.history] == [1, 2, 3, 4]
    assert [r["step"] for r in trained.history] == [6, 12, 18, 24]  # 6000 // 900 a time
    up = [np.exp(-5.0), np.exp(-5.0 / 4), 1.0, 1.0]
    down = [1.0, 1.0, 1.0, np.exp(-12.5 / 4)]
    assert [r["lr"] for r in trained.history] == pytest.approx([0.01 * u * d for u, d in zip(up, down, strict=True)])
    w = [0.0] + [500.0 * 12 / 6000 * u for u in up[1:]]
    for record, consistency in zip(trained.history, w, strict=True):
        expected = {
            "supervised": 1.0,
            "consistency": consistency,
            "entropy": 0.2 * consistency,
            "sntg": 0.5 * consistency,
        }
        assert record["weight"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "label_factor", "expected"), [(12, True, 0.2), (12, False, 100.0), (6000, True, 100.0)]
)
def test_the_label_factor_is_left_out_where_it_says_so_and_where_all_labels_are_used(labels, label_factor, expected):
    config = resolve("two-moons", labels, "pi", epochs=1, batch=6000, w_max=100.0, label_factor=label_factor, ramp_up=0)
    (trained,) = train([config])
    assert trained.history[0]["weight"]["consistency"] == pytest.approx(expected)


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_the_test_set_is_looked_at_every_so_often_and_at_the_end(every, evaluated):
    (trained,) = train([quick("mt", epochs=5, batch=6000, eval_every=every)])
    assert [r["epoch"] for r in trained.history if r["error"] is not None] == evaluated
    assert [r["epoch"] for r in trained.history if r["student_error"] is not None] == evaluated


def test_evaluating_more_often_changes_nothing_else():
    often, rarely = (train([quick(eval_every=every)])[0] for every in (1, 9))
    assert same_weights(often, rarely)
    assert [r["loss"] for r in often.history] == [r["loss"] for r in rarely.history]


def test_mean_teacher_reports_the_teachers_error_beside_the_students():
    """With ema = 1 the teacher stays where training began; with 0 it is the student."""
    (still,) = train([quick("mt", ema=1.0, lr=0.01)])
    start = make_stack(quick("mt", ema=1.0, lr=0.01))
    assert all(torch.equal(weights(still)[name], p[0]) for name, p in start.model.named_parameters())
    assert (
        still.history[0]["error"] == still.history[1]["error"] == error(start.model, start.test_x, start.test_y).item()
    )
    assert still.history[1]["student_error"] != still.history[1]["error"]
    (same,) = train([quick("mt", ema=0.0, lr=0.01)])
    assert same.history[1]["student_error"] == same.history[1]["error"]


@pytest.mark.parametrize("base", sorted(set(METHODS) - {"mt"}))
def test_the_other_methods_report_the_student(base):
    (trained,) = train([quick(base)])
    assert all(r["error"] == r["student_error"] for r in trained.history)


def test_the_start_is_announced_once_all_is_ready():
    news = []
    train([quick()], lambda records: news.append("epoch"), lambda: news.append("start"))
    assert news == ["start", "epoch", "epoch"]
    news.clear()
    with pytest.raises(UsageError, match=r"has no config\.json"):
        train([quick(graph="fixed", fixed_from="nowhere")], on_start=lambda: news.append("start"))
    assert news == []


# --- it learns, and stops when it does not ---------------------------------------------------------------------------


def test_training_lowers_the_loss_and_the_error():
    (trained,) = train([quick("pi", epochs=12, batch=500, lr=0.003)])
    first, last = trained.history[0], trained.history[-1]
    assert last["loss"]["supervised"] < 0.5 * first["loss"]["supervised"]
    assert last["error"] < 0.8 * first["error"]


@pytest.mark.parametrize("weight", ["lr", "w_max", "k", "ent", "noise"])
def test_every_weight_has_an_effect(weight):
    config = quick("pi+ent+sntg")
    plain, changed = (
        train([config, config]),
        train([config, replace(config, **{weight: 3.0 * getattr(config, weight)})]),
    )
    assert not same_weights(plain[1], changed[1])


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step():
    """One step an epoch, so the broken step comes right after as many as there were sound epochs."""
    seen = []
    with pytest.raises(DivergenceError, match=r"^the \w+ loss became (nan|inf) at step \d+$") as caught:
        train([quick("pi", lr=1e30, batch=6000, epochs=9)], on_epoch=seen.append)
    assert 0 < len(seen) < 9
    assert str(caught.value).endswith(f"at step {len(seen) + 1}")


def test_the_broken_term_is_the_one_named(monkeypatch):
    """The consistency breaks at the ninth step, the third of the second epoch."""
    calls = []

    def breaks(logits, target, known=None):
        calls.append(0)
        return (logits - target).square().mean((-2, -1)) * (float("nan") if len(calls) == 9 else 1.0)

    monkeypatch.setattr(loop, "consistency_mse", breaks)
    with pytest.raises(DivergenceError, match=r"^the consistency loss became nan at step 9$"):
        train([quick("pi+sntg")])


# --- every method, graph and kind of pair ----------------------------------------------------------------------------


def expected_terms(method):
    name = parse(method)
    consistency = [] if name.base == "supervised" else ["consistency"]
    return ["supervised", *consistency, *["entropy"] * name.ent, *["sntg"] * name.sntg]


@pytest.mark.parametrize("method", all_names())
def test_every_method_trains_on_points(method):
    (trained,) = train([quick(method, epochs=1, batch=2000)])
    (record,) = trained.history
    assert list(record["loss"]) == list(record["weight"]) == expected_terms(method)
    assert all(np.isfinite(value) for value in record["loss"].values())
    assert 0 <= record["error"] <= 100
    name = parse(method)
    if name.base != "tempens":  # in its first epoch it has no opinions, so there is little or nothing to measure
        assert (record["graph_recall"] is not None) == name.sntg
        assert (record["teacher_error"] is not None) == (name.base != "supervised" or name.sntg)
    else:
        assert record["teacher_error"] is None


@pytest.mark.parametrize("method", ["sntg", "pi+ent+sntg", "tempens", "mt+sntg", "vat+ent+sntg"])
def test_methods_train_on_images(method):
    (trained,) = train([resolve("digits", 20, method, epochs=1, batch=300, labelled_batch=8)])
    (record,) = trained.history
    assert list(record["loss"]) == expected_terms(method)
    assert record["step"] == 3
    assert 0 <= record["error"] <= 100


@pytest.mark.parametrize(
    "settings",
    [
        {"graph": "soft", "temperature": 0.5},
        {"graph": "knn", "neighbours": 300},
        {"pairs": "random"},
        {"pairs": "random", "n_pairs": 700},
        {"pairs": "all", "batch": 300},
        {"graph_labels": "teacher"},
        {"margin": 3.0},
    ],
    ids=lambda s: "-".join(str(v) for v in s.values()),
)
def test_every_graph_and_kind_of_pair_trains_and_differs_from_the_default(settings):
    default = quick(epochs=1, batch=settings.get("batch", 1000))
    (plain,), (changed,) = train([default]), train([replace(default, **settings)])
    assert changed.history[0]["loss"]["sntg"] != plain.history[0]["loss"]["sntg"]
    assert not same_weights(plain, changed)
    assert 0 < changed.history[0]["graph_precision"] <= 1
    assert 0 < changed.history[0]["graph_recall"] <= 1


@pytest.fixture
def steps(monkeypatch):
    """Every step's rows, (runs, s) at either end of the pairs, and the W of the pairs."""
    kept = []

    class Spy(EpochLog):
        def add(self, batch, terms, seen):
            if seen.pairs is not None:
                kept.append((batch.rows[:, seen.pairs.i], batch.rows[:, seen.pairs.j], seen.W))
            super().add(batch, terms, seen)

    monkeypatch.setattr(loop, "EpochLog", Spy)
    return kept


def test_the_knn_graph_has_each_runs_own_nearest_points_as_neighbours(steps):
    runs = train([quick("sntg", seed, epochs=1, graph="knn", neighbours=60) for seed in (1, 2)])
    assert len(steps) == 6
    for number, trained in enumerate(runs):
        distance = torch.cdist(trained.data.train_x.double(), trained.data.train_x.double()).fill_diagonal_(torch.inf)
        near = torch.zeros(6000, 6000, dtype=torch.bool)
        near.scatter_(1, distance.topk(60, largest=False).indices, True)
        for i, j, W in steps:
            expected = near[i[number], j[number]] | near[j[number], i[number]]
            assert (W[number] != expected).sum() <= 1  # a tie in float32
        assert sum(W[number].sum() for _, _, W in steps) > 10
        assert trained.history[0]["teacher_error"] is None  # nobody was asked


def test_the_consistency_may_be_kl():
    mse, kl = (train([quick("pi", epochs=1, consistency=c)])[0] for c in ("mse", "kl"))
    assert mse.history[0]["loss"]["consistency"] != kl.history[0]["loss"]["consistency"]
    assert not same_weights(mse, kl)


@pytest.mark.parametrize("graph_labels", ["teacher", "merge"])
def test_a_fixed_graph_is_what_an_earlier_run_predicts_for_each_runs_points(tmp_path, steps, graph_labels):
    earlier = quick("supervised", epochs=4, lr=0.01)
    (teacher,) = train([earlier])
    folder = RunFolder(tmp_path / "earlier")
    folder.start(earlier)
    folder.save_model(teacher.model)
    settings = {"graph": "fixed", "fixed_from": str(folder.path), "graph_labels": graph_labels}
    runs = train([quick("pi+sntg", 0, k=k, **settings) for k in (0.1, 0.2)])
    assert len(steps) == 12
    for number, trained in enumerate(runs):
        classes = teacher.model(trained.data.train_x).logits.argmax(-1)
        if graph_labels == "merge":
            classes = torch.where(trained.labels >= 0, trained.labels, classes)
        for i, j, W in steps:
            assert torch.equal(W[number], (classes[i[number]] == classes[j[number]]).float())


def test_a_fixed_graph_from_another_dataset_is_refused(tmp_path):
    run(quick("supervised", epochs=1), tmp_path / "earlier")
    config = resolve("four-spins", 12, "pi+sntg", epochs=1, graph="fixed", fixed_from=str(tmp_path / "earlier"))
    with pytest.raises(UsageError, match="dataset = two-moons, and this run has dataset = four-spins"):
        train([config])


@pytest.mark.parametrize(("key", "value"), [("seed", 3), ("labels", 20)])
def test_a_fixed_graph_from_another_split_is_refused(tmp_path, key, value):
    """It may know labels that are hidden from this run."""
    run(quick("supervised", epochs=1), tmp_path / "earlier")
    config = replace(quick("pi+sntg", graph="fixed", fixed_from=str(tmp_path / "earlier")), **{key: value})
    with pytest.raises(UsageError, match=f"and this run has {key} = {value}"):
        train([config])


def test_translation_moves_the_images_in_training():
    settings = {"epochs": 1, "batch": 1198, "noise": 0.0, "dropout": 0.0}
    plain, moved = (train([resolve("digits", 20, "supervised", translate=t, **settings)])[0] for t in (0, 2))
    assert plain.history[0]["loss"] != moved.history[0]["loss"]


def test_no_run_at_all_is_refused():
    with pytest.raises(UsageError, match="no run to train"):
        train([])
