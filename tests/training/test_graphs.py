"""The graph of a run's settings: the knn graph of its own points, the fixed one of an earlier run's predictions."""

import shutil
from dataclasses import replace

import pytest
import torch

from sntg.errors import UsageError
from sntg.graph import HardGraph, SoftGraph
from sntg.training import RunFolder, Stack, load, loop, resolve, run, train
from sntg.training.graphs import SAME_SPLIT, build_graph, check_graph, check_same_split
from sntg.training.inputs import load_inputs
from sntg.training.metrics import EpochLog
from sntg.training.randomness import own_randomness

QUICK = {"epochs": 2, "batch": 1000, "lr": 1e-3, "noise": 0.08, "w_max": 100.0, "k": 0.4}
QUICK |= {"ramp_up": 0, "ramp_down": 0, "graph_start": 0, "graph_ramp": 0}


def quick(method="pi+sntg", seed=0, **settings):
    return resolve("two-moons", 12, method, seed, **(QUICK | settings))


@pytest.fixture
def steps(monkeypatch):
    """Every step's rows, (runs, s) at either end of the pairs, and the W of the pairs."""
    kept = []

    class Spy(EpochLog):
        def add(self, rows, terms, seen):
            if seen.pairs is not None:
                kept.append((rows[:, seen.pairs.i], rows[:, seen.pairs.j], seen.W))
            super().add(rows, terms, seen)

    monkeypatch.setattr(loop, "EpochLog", Spy)
    return kept


def test_a_graph_built_in_every_step_needs_nothing_of_the_points():
    nothing = []
    assert isinstance(build_graph([quick()], nothing, nothing), HardGraph)
    soft = build_graph([quick(graph="soft", temperature=0.3)], nothing, nothing)
    assert isinstance(soft, SoftGraph)
    assert soft.temperature == 0.3


# --- k nearest neighbours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("validation", [0, 2000])
def test_the_knn_graph_has_each_runs_own_nearest_points_as_neighbours(steps, validation):
    configs = [quick("sntg", s, epochs=1, graph="knn", neighbours=60, validation=validation) for s in (1, 2)]
    runs = train(configs)
    points = 6000 - validation
    assert len(steps) == points // 1000
    for number, trained in enumerate(runs):
        distance = torch.cdist(trained.data.train_x.double(), trained.data.train_x.double()).fill_diagonal_(torch.inf)
        near = torch.zeros(points, points, dtype=torch.bool)
        near.scatter_(1, distance.topk(60, largest=False).indices, True)
        for i, j, W in steps:
            expected = near[i[number], j[number]] | near[j[number], i[number]]
            assert (W[number] != expected).sum() <= 1  # a tie in float32
        assert sum(W[number].sum() for _, _, W in steps) > 10
        assert trained.history[0]["teacher_error"] is None  # nobody was asked


# --- an earlier run's predictions ------------------------------------------------------------------------------------


def earlier_run(folder, **settings):
    """A supervised run in a folder, and its network."""
    config = quick("supervised", epochs=4, lr=0.01, **settings)
    (trained,) = train([config])
    folder.mkdir()
    RunFolder(folder).start(trained.config, load_inputs(config).split)
    RunFolder(folder).save_model(trained.model)
    return trained.model


@pytest.mark.parametrize("graph_labels", ["teacher", "merge"])
def test_a_fixed_graph_is_what_an_earlier_run_predicts_for_each_runs_points(tmp_path, steps, graph_labels):
    model = earlier_run(tmp_path / "earlier", validation=500)
    settings = {"graph": "fixed", "fixed_from": str(tmp_path / "earlier"), "graph_labels": graph_labels}
    runs = train([quick("pi+sntg", 0, k=k, validation=500, **settings) for k in (0.1, 0.2)])
    assert len(steps) == 10
    for number, trained in enumerate(runs):
        classes = model(trained.data.train_x).logits.argmax(-1)
        if graph_labels == "merge":
            classes = torch.where(trained.labels >= 0, trained.labels, classes)
        for i, j, W in steps:
            assert torch.equal(W[number], (classes[i[number]] == classes[j[number]]).float())


def test_a_run_goes_on_with_the_fixed_graph_it_began_with_though_the_earlier_run_is_another_by_now(tmp_path):
    earlier_run(tmp_path / "earlier")
    config = quick("pi+sntg", graph="fixed", fixed_from=str(tmp_path / "earlier"), graph_labels="teacher")
    with own_randomness(config):
        runs = Stack([config])
        state = {name: tensor.clone() for name, tensor in runs.state().items()}
        changed = load(tmp_path / "earlier")
        changed.output.b.data += torch.tensor([9.0, -9.0])
        RunFolder(tmp_path / "earlier").save_model(changed)
        later = Stack([config])
        assert not torch.equal(later.state()["graph/classes"], state["graph/classes"])
        later.load_state(state, [[]])
        assert torch.equal(later.state()["graph/classes"], state["graph/classes"])
        later.load_state({name: t for name, t in state.items() if not name.startswith("graph/")}, [[]])  # an older one


def test_a_fixed_graph_from_another_dataset_is_refused(tmp_path):
    run(quick("supervised", epochs=1), tmp_path / "earlier")
    config = resolve("four-spins", 12, "pi+sntg", epochs=1, graph="fixed", fixed_from=str(tmp_path / "earlier"))
    with pytest.raises(UsageError, match="dataset = two-moons, and this run has dataset = four-spins"):
        train([config])


def test_a_fixed_graph_from_nowhere_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"is not a run folder: it has no config\.json"):
        train([quick(graph="fixed", fixed_from=str(tmp_path))])


def test_without_a_graph_term_nobody_asks_what_it_would_be_made_from(tmp_path):
    check_graph([quick("pi", graph="fixed", fixed_from=str(tmp_path))])
    with pytest.raises(UsageError, match=r"fixed_from: .* is not a run folder"):
        check_graph([quick("pi+sntg", graph="fixed", fixed_from=str(tmp_path))])


def test_where_an_earlier_run_is_stays_true_in_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert quick(graph="fixed", fixed_from="earlier").fixed_from == str(tmp_path / "earlier")
    assert quick().fixed_from == ""


OTHERS = {"seed": 3, "labels": 20, "split": "unbalanced", "label_noise": 10.0}
OTHERS |= {"validation": 100, "dataset": "four-spins"}


@pytest.mark.parametrize("key", OTHERS)
def test_a_fixed_graph_from_another_split_is_refused(key):
    """It may know labels that are hidden from this run."""
    ours = quick()
    theirs = replace(ours, **{key: OTHERS[key]})
    message = f"fixed_from is a run with {key} = {getattr(theirs, key)}, and this run has {key} = {getattr(ours, key)}"
    with pytest.raises(UsageError, match=f"^{message}: it takes an earlier run on the same points and labels$"):
        check_same_split([ours], theirs)
    with pytest.raises(UsageError, match=f"run with {key} = "):
        check_same_split([theirs, ours], theirs)  # every run of a stack


def test_a_fixed_graph_from_a_run_with_other_inputs_is_refused():
    """Its network would be shown images it was not trained on."""
    ours, theirs = resolve("cifar10", 4000, "pi+sntg"), resolve("cifar10", 4000, "mt")
    with pytest.raises(UsageError, match="run with whitening = gcn-zca, and this run has whitening = zca"):
        check_same_split([ours], theirs)


def test_a_run_that_differs_in_training_alone_makes_a_fixed_graph():
    check_same_split([quick()], quick("supervised", lr=0.1, epochs=7, model="mlp", noise=0.0, batch=50))
    assert set(OTHERS) | {"whitening"} == set(SAME_SPLIT)


def test_a_fixed_graph_of_the_same_labels_may_come_from_an_index_file_and_one_of_others_may_not(tmp_path):
    """The files' names say nothing: the rows and classes do."""
    for name, rows in (("one.txt", "0\n3001\n"), ("other.txt", "0\n3002\n")):
        (tmp_path / name).write_text(rows)
    shutil.copy(tmp_path / "one.txt", tmp_path / "copy.txt")
    settings = {"epochs": 1, "batch": 3000}
    run(resolve("two-moons", "all", "supervised", split_file=str(tmp_path / "one.txt"), **settings), tmp_path / "run")
    fixed = settings | {"graph": "fixed", "fixed_from": str(tmp_path / "run")}
    train([resolve("two-moons", "all", "pi+sntg", split_file=str(tmp_path / "copy.txt"), **fixed)])
    with pytest.raises(UsageError, match="fixed_from is a run that saw other labels"):
        train([resolve("two-moons", "all", "pi+sntg", split_file=str(tmp_path / "other.txt"), **fixed)])
