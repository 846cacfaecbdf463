"""The training loop: reproducible, runs of a stack apart from one another, every method and graph through one epoch."""

import gc
import random
import weakref
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from sntg.data import balanced_split, load_dataset
from sntg.errors import DivergenceError, UsageError
from sntg.methods import METHODS, all_names, parse
from sntg.training import loop, resolve, run, train
from sntg.training.evaluation import error
from sntg.training.loop import STACKABLE, Stack, check_stack
from sntg.training.metrics import EpochLog
from sntg.training.randomness import own_randomness
from sntg.training.timetable import Timetable

# Everything the outcome hangs on, whatever the recipes say; ramps of 0 let every term count from the first step.
QUICK = {"epochs": 2, "batch": 1000, "labelled_batch": 0, "lr": 1e-3, "noise": 0.08, "epsilon": 1.0}
QUICK |= {"w_max": 100.0, "k": 0.4, "ramp_up": 0, "ramp_down": 0, "graph_start": 0, "graph_ramp": 0}


def quick(method="pi+sntg", seed=0, **settings):
    apart = {"labelled_batch": 8} if method.startswith("vat") else {}
    return resolve("two-moons", 12, method, seed, **(QUICK | apart | settings))


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


def test_what_is_told_of_an_epoch_may_draw_random_numbers(tmp_path):
    """Somebody may look at a few points of their own after each: the run is the one it is without."""
    config, draw = quick(), lambda records: torch.rand(3)
    (expected,), (drawn,) = train([config]), train([config], draw)
    assert drawn.history == run(config, tmp_path / "run", draw).history == expected.history
    assert same_weights(drawn, expected)


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
    with own_randomness(configs[0]):
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
    inputs = [loop.load_inputs(config) for config in configs]
    hashes = [{"data_hash": i.data.content_hash, "split_hash": i.split.content_hash} for i in inputs]
    decided = {"engine": "eager", "precision": "float32"}
    assert [r.config for r in runs] == [replace(c, **h, **decided) for c, h in zip(configs, hashes, strict=True)]
    for trained, config in zip(runs, configs, strict=True):
        assert [record["epoch"] for record in trained.history] == [1, 2]
        assert trained.history[0]["lr"] == config.lr
        assert trained.error == trained.history[-1]["error"]
        assert trained.error == float(error(trained.model, trained.data.test_x, trained.data.test_y))
        assert torch.equal(trained.data.train_x, load_dataset("two-moons", config.seed).train_x)


OTHER_VALUES = {
    "data": "elsewhere",
    "validation": 100,
    "split_file": "split.txt",
    "tensorboard": True,
    "engine": "compiled",
    "precision": "bfloat16",
    "storage": "host",
    "normalisation": "batch",
    "epoch_steps": 3,
    "decay": "linear",
    "stepwise": True,
    "skip_first": False,
    "split": "unbalanced",
    "label_noise": 10.0,
    "augment": False,
    "padding": "zero",
    "bn_batches": 2,
    "early_momentum": 0.5,
    "early_epochs": 1,
    "report": "ema",
    "checkpoint_seconds": 5.0,
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
    "graph_features": "perturbed",
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
    # What cannot differ alone in a valid config, and what a run writes down by itself.
    spoken_for = {"dataset", "device", "model", "translate", "flip", "whitening", "n_pairs", "overridden"}
    spoken_for |= {"data_hash", "split_hash"}
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


@pytest.mark.parametrize("base", METHODS)
def test_the_averaged_weights_error_stands_beside_the_students(base):
    """With ema = 1 the average stays where training began; with 0 it is the student."""
    config = quick(base, ema=1.0, lr=0.01, report="ema")
    (still,) = train([config])
    start = make_stack(config)
    first = error(start.model, start.test_x, start.test_y).item()
    assert all(torch.equal(weights(still)[name], p[0]) for name, p in start.model.named_parameters())
    assert [r["ema_error"] for r in still.history] == [first, first]
    assert still.history[1]["student_error"] != first
    (same,) = train([quick(base, ema=0.0, lr=0.01)])
    assert same.history[1]["student_error"] == same.history[1]["ema_error"]


@pytest.mark.parametrize("base", METHODS)
def test_the_report_is_of_the_network_the_settings_name_and_changes_nothing_else(base):
    reports = {}
    for name in ("ema", "raw"):
        (trained,) = train([quick(base, ema=0.9, lr=0.01, report=name)])
        last = trained.history[-1]
        assert trained.error == last["error"] == last["ema_error" if name == "ema" else "student_error"]
        assert trained.error == float(error(trained.model, trained.data.test_x, trained.data.test_y))
        reports[name] = trained
    assert not same_weights(reports["ema"], reports["raw"])
    others = [[{k: v for k, v in r.items() if k != "error"} for r in t.history] for t in reports.values()]
    assert others[0] == others[1]


def test_the_average_is_the_exponential_one_of_every_steps_weights():
    config = quick("pi", ema=0.8, lr=0.01, epochs=1, batch=2000, report="ema")
    with own_randomness(config):
        runs = Stack([config])
        expected = {name: p.detach().clone() for name, p in runs.model.named_parameters()}
        while not runs.finished:
            runs.advance()
            for name, p in runs.model.named_parameters():
                expected[name] = 0.8 * expected[name] + 0.2 * p.detach()
    assert runs.step == 3
    for name, p in runs.objective.base.averaged().named_parameters():
        torch.testing.assert_close(p, expected[name])


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


def test_of_several_runs_the_one_that_diverged_is_named():
    fine, broken = quick("pi"), quick("pi", lr=1e30, ramp_up=0)
    with pytest.raises(DivergenceError, match=r"^run 2 of 2: the \w+ loss became (nan|inf) at step \d+$"):
        train([fine, broken])
    with pytest.raises(DivergenceError, match=r"^seed 7: the \w+ loss became (nan|inf) at step \d+$"):
        train([fine, replace(broken, seed=7)])


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
    default = quick(epochs=1, epoch_steps=3, batch=settings.get("batch", 1000))
    (plain,), (changed,) = train([default]), train([replace(default, **settings)])
    assert changed.history[0]["loss"]["sntg"] != plain.history[0]["loss"]["sntg"]
    assert not same_weights(plain, changed)
    assert 0 < changed.history[0]["graph_precision"] <= 1
    assert 0 < changed.history[0]["graph_recall"] <= 1


def test_the_consistency_may_be_kl():
    mse, kl = (train([quick("pi", epochs=1, consistency=c)])[0] for c in ("mse", "kl"))
    assert mse.history[0]["loss"]["consistency"] != kl.history[0]["loss"]["consistency"]
    assert not same_weights(mse, kl)


def first_loss(**settings):
    """Of the digits in one batch, without any other noise; the data-dependent initialisation sees no change."""
    plain = {"epochs": 1, "batch": 1198, "noise": 0.0, "dropout": 0.0, "translate": 0}
    (trained,) = train([resolve("digits", 20, "supervised", **(plain | settings))])
    return trained.history[0]["loss"]["supervised"]


def test_images_are_moved_and_mirrored_in_training():
    losses = [first_loss(), first_loss(translate=2), first_loss(flip=True), first_loss(translate=2, padding="zero")]
    assert len({round(loss, 5) for loss in losses}) == 4


def test_no_run_at_all_is_refused():
    with pytest.raises(UsageError, match="no run to train"):
        train([])


def test_what_is_no_list_of_configs_is_refused():
    config = resolve("two-moons", 12, "pi")
    with pytest.raises(UsageError, match="a list of configs is wanted, not generator"):
        train(each for each in [config])
    with pytest.raises(UsageError, match=r"a list of them is wanted: \[config\]"):
        train(config)
    with pytest.raises(UsageError, match=r"a config is wanted, .* not dict"):
        train([config, {"epochs": 3}])


# --- step by step ----------------------------------------------------------------------------------------------------


def test_an_epoch_is_as_many_whole_batches_as_the_points_make_or_as_many_steps_as_it_says():
    assert make_stack(quick(batch=900)).epoch_steps == 6
    assert make_stack(quick(batch=900, epoch_steps=4)).epoch_steps == 4
    assert make_stack(quick(batch=900, epoch_steps=11)).epoch_steps == 11
    assert make_stack(quick("supervised", batch=0, labelled_batch=500)).epoch_steps == 12
    assert make_stack(quick("vat", batch=900)).epoch_steps == 6


@pytest.mark.parametrize("batch", [1000, 900])
def test_an_epoch_is_one_shuffle_of_the_points(monkeypatch, batch):
    """No row twice; where batches are whole, each row once. Temporal ensembling's targets count on it."""
    epochs = []

    class Spy(EpochLog):
        def __init__(self, truth, names):
            super().__init__(truth, names)
            epochs.append([])

        def begin(self, step):
            super().begin(step)
            epochs.append([])

        def add(self, rows, terms, seen):
            epochs[-1] += rows[0].tolist()
            super().add(rows, terms, seen)

    monkeypatch.setattr(loop, "EpochLog", Spy)
    train([quick("tempens", epochs=3, batch=batch)])
    assert len(epochs) == 4  # the last was begun and not gone into
    assert epochs.pop() == []
    whole = 6000 // batch * batch
    assert [len(set(rows)) for rows in epochs] == [len(rows) for rows in epochs] == [whole] * 3


@pytest.mark.parametrize("epoch_steps", [1, 4, 11])
def test_a_record_comes_at_the_end_of_each_epoch_and_the_last_one_ends_the_run(epoch_steps):
    config = quick("supervised", epochs=3, epoch_steps=epoch_steps, batch=2000)
    with own_randomness(config):
        runs = Stack([config])
        assert (runs.step, runs.steps, runs.finished) == (0, 3 * epoch_steps, False)
        came = []
        while not runs.finished:
            records = runs.advance()
            came.append(records is not None)
            if records:
                assert (records[0]["epoch"], records[0]["step"]) == (runs.step // epoch_steps, runs.step)
                assert records[0] == runs.histories[0][-1]
    assert came == [step % epoch_steps == 0 for step in range(1, 3 * epoch_steps + 1)]


@pytest.mark.parametrize("stepwise", [True, False])
def test_the_schedules_move_with_every_step_or_with_every_epoch(stepwise, monkeypatch):
    """What each step used, against what the schedules say of its moment."""
    used = []

    class Spy(Timetable):
        def next(self):
            used.append(super().next())
            return used[-1]

    monkeypatch.setattr(loop, "Timetable", Spy)
    settings = {"epochs": 4, "epoch_steps": 3, "batch": 2000, "stepwise": stepwise, "skip_first": False}
    settings |= {"ramp_up": 2, "ramp_down": 1, "early_epochs": 1, "early_momentum": 0.5, "ema": 0.9, "beta2": 0.95}
    configs = [quick("pi+sntg", lr=0.01, w_max=500.0, k=0.5, **settings), quick("pi+sntg", lr=0.02, k=0.1, **settings)]
    with own_randomness(configs[0]):
        runs = Stack(configs)
        for step in range(12):
            e = step / 3 if stepwise else step // 3
            up = np.exp(-5 * (1 - e / 2) ** 2) if e < 2 else 1.0
            down = np.exp(-12.5 * (e - 3) ** 2) if e >= 3 else 1.0
            records = runs.advance()
            values = used[-1]
            lr = [0.01 * up * down, 0.02 * up * down]
            beta1 = 0.9 * down + 0.5 * (1 - down)
            ema, beta2 = (0.5, 0.5) if e < 1 else (0.9, 0.95)
            correction = np.sqrt(1 - beta2 ** (step + 1)) / (1 - beta1 ** (step + 1))
            assert values.rate.tolist() == pytest.approx([rate * correction for rate in lr], rel=1e-12)
            w = [500 * 12 / 6000 * up, 100 * 12 / 6000 * up]
            assert values.weights["supervised"].tolist() == [1.0, 1.0]
            assert values.weights["consistency"].tolist() == pytest.approx(w, rel=1e-6)
            assert values.weights["sntg"].tolist() == pytest.approx([0.5 * w[0], 0.1 * w[1]], rel=1e-6)
            assert values.beta1.item() == pytest.approx(beta1, rel=1e-12)
            assert (values.ema.item(), values.beta2.item()) == (ema, beta2)
            if records:  # the last step's
                assert [r["lr"] for r in records] == pytest.approx(lr, rel=1e-12)
                assert records[0]["weight"]["sntg"] == pytest.approx(values.weights["sntg"][0].item(), rel=1e-12)
    assert len(used) == 12


def test_the_averages_momentum_is_the_steps_own(monkeypatch):
    config = quick("mt", epochs=3, epoch_steps=2, early_epochs=2, early_momentum=0.5, ema=0.9)
    with own_randomness(config):
        runs = Stack([config])
        used = []
        base = runs.objective.base
        monkeypatch.setattr(type(base), "after_step", lambda self, ema: used.append(float(ema)))
        while not runs.finished:
            runs.advance()
    assert used == [0.5] * 4 + [0.9] * 2


def test_the_first_epoch_has_no_consistency_unless_told():
    for skip_first, weight in ((True, 0.0), (False, 0.2 * np.exp(-5))):
        (trained,) = train([quick("pi+sntg", ramp_up=2, skip_first=skip_first)])
        assert trained.history[0]["weight"]["consistency"] == pytest.approx(weight)
        assert trained.history[1]["weight"]["consistency"] == pytest.approx(0.2 * np.exp(-5 / 4))


def first_batch(runs):
    runs.batches.refill()
    return runs.batches.next()


def test_methods_that_want_it_get_the_labelled_part_apart_and_the_others_joined():
    apart, joined = (first_batch(make_stack(quick(m, batch=50, labelled_batch=6))) for m in ("vat", "mt"))
    assert apart.labelled is not None
    assert apart.rows.shape == (1, 50)
    assert joined.labelled is None
    assert joined.rows.shape == (1, 56)
    assert joined.unlabelled.sum() == 50


# --- stopping and going on -------------------------------------------------------------------------------------------

SIZES = {"epochs": 3, "epoch_steps": 3, "batch": 1500}  # a shuffle is 4 batches: epochs and shuffles end apart


def finish(runs):
    while not runs.finished:
        runs.advance()
    return runs.trained()[0]


@pytest.mark.parametrize("stop", [0, 3, 5, 8])
@pytest.mark.parametrize("base", METHODS)
def test_a_stack_put_back_after_any_step_goes_on_to_the_same_bits(base, stop):
    config = quick(f"{base}+ent+sntg", ramp_up=2, stepwise=True, **SIZES)
    with own_randomness(config):
        runs = Stack([config])
        for _ in range(stop):
            runs.advance()
        state = {name: tensor.clone() for name, tensor in runs.state().items()}
        histories = [list(history) for history in runs.histories]
        expected = finish(runs)
    with own_randomness(replace(config, seed=9)):  # other random numbers, and a start of its own
        again = Stack([config])
        again.advance()
        again.load_state(state, histories)
        assert again.step == stop
        found = finish(again)
    assert found.history == expected.history
    assert same_weights(found, expected)


def test_images_with_running_statistics_go_on_to_the_same_bits_too():
    config = resolve("digits", 20, "mt", epochs=2, epoch_steps=2, batch=100, normalisation="batch", bn_batches=2)
    with own_randomness(config):
        runs = Stack([config])
        runs.advance()
        state = {name: tensor.clone() for name, tensor in runs.state().items()}
        expected = finish(runs)
        again = Stack([config])
        again.load_state(state, [[]])
        found = finish(again)
    assert found.history == expected.history
    assert same_weights(found, expected)


# --- what a run is evaluated with ------------------------------------------------------------------------------------

FULL_BN = {"normalisation": "batch", "bn_momentum": 0.5, "epochs": 4, "epoch_steps": 1, "batch": 40, "dropout": 0.5}


def test_statistics_estimated_for_evaluation_are_those_of_labelled_batches():
    """As many as it says, of 20 labelled points: so many that each point comes equally often."""
    config = resolve("digits", 20, "pi", labelled_batch=20, bn_batches=3, **(FULL_BN | {"noise": 0.0, "dropout": 0.0}))
    with own_randomness(config):
        runs = Stack([config])
        runs.advance()
        running = {name: buffer.clone() for name, buffer in runs.model.named_buffers()}
        evaluated = runs._evaluated(runs.model)
    labelled = runs.inputs[0].data.train_x[runs.inputs[0].labels >= 0]  # as they are: not moved, without a border
    with torch.no_grad():
        V = evaluated.blocks[0][0].V
        outputs = torch.nn.functional.conv2d(labelled, V[0])
    estimated = dict(evaluated.blocks[0][0].named_buffers())
    torch.testing.assert_close(estimated["running_mean"][0], outputs.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(running[name], buffer) for name, buffer in runs.model.named_buffers())
    assert not torch.equal(running["blocks.0.0.running_mean"], estimated["running_mean"])


@pytest.mark.parametrize("method", ["pi", "vat", "mt"])
def test_evaluation_takes_no_random_numbers_from_training(method):
    """A run with more evaluations has the same weights, and its own statistics while it trains."""
    labelled = {"labelled_batch": 8} if method == "vat" else {}
    often, rarely = (
        train([resolve("digits", 20, method, bn_batches=2, eval_every=every, **labelled, **FULL_BN)])[0]
        for every in (1, 9)
    )
    assert same_weights(often, rarely)
    assert [r["loss"] for r in often.history] == [r["loss"] for r in rarely.history]
    assert often.history[-1]["error"] == rarely.history[-1]["error"]
    assert [r["error"] is None for r in rarely.history] == [True] * 3 + [False]


@pytest.mark.parametrize("ends", ["well", "in an error", "diverged"])
def test_what_a_run_holds_is_let_go_when_it_ends(ends, tmp_path, monkeypatch):
    """At once, not when Python next looks for circles: on a GPU the next run needs the memory."""

    def stop(*_):
        if ends == "in an error":
            raise ZeroDivisionError

    held, build = [], Stack.__init__

    def remember(self, *given):
        build(self, *given)
        held.extend(map(weakref.ref, (self.model, self.optimiser.theta, self.batches.x, self.log)))

    monkeypatch.setattr(Stack, "__init__", remember)
    config = quick(lr=1e30 if ends == "diverged" else 1e-3)
    gc.collect()
    gc.disable()
    try:
        for begin in (lambda: train([config], stop), lambda: run(config, tmp_path / "run", stop)):
            with suppress(ZeroDivisionError, DivergenceError):
                begin()
        assert [reference() for reference in held] == [None] * 8
    finally:
        gc.enable()


def test_the_network_returned_is_the_one_that_was_evaluated():
    config = resolve("digits", 20, "pi", bn_batches=2, **FULL_BN)
    (trained,) = train([config])
    assert trained.error == float(error(trained.model, trained.data.test_x, trained.data.test_y))
    (as_it_ran,) = train([replace(config, bn_batches=0)])
    assert not same_weights(trained, as_it_ran)
    parameters = dict(as_it_ran.model.named_parameters())
    assert all(torch.equal(p, parameters[name]) for name, p in trained.model.named_parameters())


# --- points held out, noisy labels, the data's hash ------------------------------------------------------------------


def test_points_held_out_leave_training_and_are_tested_on():
    full, held_out = make_stack(quick()), make_stack(quick(validation=1500))
    rows = held_out.inputs[0].split.validation
    stays = torch.ones(6000, dtype=torch.bool)
    stays[rows] = False
    assert torch.equal(held_out.batches.x[0], full.batches.x[0][stays])
    assert torch.equal(held_out.batches.labels[0], full.batches.labels[0][stays])
    assert torch.equal(held_out.truth[0], full.truth[0][stays])
    assert torch.equal(held_out.test_x[0], full.batches.x[0][rows])
    assert torch.equal(held_out.test_y[0], full.truth[0][rows])
    held_out.timetable.load(0)
    assert held_out.timetable.next().weights["consistency"].item() == pytest.approx(100 * 12 / 4500)


@pytest.mark.parametrize("base", METHODS)
def test_every_method_trains_beside_points_held_out(base):
    (trained,) = train([quick(f"{base}+sntg", validation=1500)])
    assert len(trained.data.train_x) == len(trained.labels) == 4500
    assert trained.history[-1]["step"] == 2 * 4
    assert trained.error == float(error(trained.model, trained.data.test_x, trained.data.test_y))
    assert len(trained.data.test_y) == 1500


def test_noisy_labels_are_what_training_sees_and_not_what_it_is_measured_by():
    (noisy,) = train([resolve("two-moons", "all", "pi", epochs=1, batch=6000, label_noise=40.0)])
    wrong = (noisy.labels != noisy.data.train_y).float().mean().item()
    assert wrong == pytest.approx(0.2, abs=0.02)  # half of the random classes are the true ones
    assert torch.equal(noisy.data.train_y, load_dataset("two-moons").train_y)


def test_the_hash_of_the_data_is_written_down_and_checked():
    (trained,) = train([quick("supervised", epochs=1)])
    assert trained.config.data_hash == load_dataset("two-moons").content_hash
    (again,) = train([trained.config])
    assert same_weights(trained, again)
    with pytest.raises(UsageError, match="two-moons is not what the run was started with"):
        train([replace(trained.config, data_hash="0" * 64)])
