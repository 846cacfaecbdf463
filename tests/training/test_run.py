"""One run into a folder: what is kept when it ends well, badly, or in the middle."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sntg.data import load_dataset
from sntg.errors import DivergenceError, UsageError
from sntg.figures import embeddings
from sntg.training import resolve, run
from sntg.training.evaluation import error, predict
from sntg.training.run import caption, decisions, embedding
from sntg.training.run_folder import load, read_config

RUN = sys.modules["sntg.training.run"]  # the package has the function under the module's name
PNG = b"\x89PNG\r\n\x1a\n"


def quick(method="pi+sntg", **settings):
    return resolve("two-moons", 12, method, **({"epochs": 2, "batch": 1000} | settings))


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def plain_projection(monkeypatch):
    """t-SNE takes seconds; what it is applied to can be seen without it."""
    monkeypatch.setattr(embeddings, "project", lambda features: features[:, :2])


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """A finished run on points in the plane."""
    folder = tmp_path_factory.mktemp("runs") / "points"
    return folder, run(quick(), folder)


def test_the_run_is_told_of_epoch_by_epoch_after_it_is_written(tmp_path):
    seen = []

    def look(record):
        seen.append(record)
        assert metrics(tmp_path)[-1] == record
        assert "model.safetensors" not in files(tmp_path)

    trained = run(quick("supervised"), tmp_path, look)
    assert seen == trained.history == metrics(tmp_path)


def test_the_run_is_told_of_step_by_step(tmp_path, monkeypatch):
    monkeypatch.setattr(RUN, "draw_figures", lambda trained, folder: None)
    seen = []
    run(quick("supervised"), tmp_path / "run", on_step=lambda runs: seen.append((runs.step, runs.steps)))
    assert seen == [(step, 12) for step in range(1, 13)]


def test_the_averaged_and_the_raw_error_are_in_every_evaluation_and_one_of_them_is_reported(points):
    for record in points[1].history:
        assert record["error"] == record["student_error"] != record["ema_error"]
        assert 0 <= record["ema_error"] <= 100


@pytest.mark.parametrize("report", ["ema", "raw"])
def test_the_weights_are_those_whose_error_is_reported(tmp_path, monkeypatch, report):
    monkeypatch.setattr(RUN, "draw_figures", lambda trained, folder: None)
    trained = run(quick("pi", report=report), tmp_path / "run")
    last = metrics(tmp_path / "run")[-1]
    assert last["error"] == last["ema_error" if report == "ema" else "student_error"]
    assert float(error(load(tmp_path / "run"), trained.data.test_x, trained.data.test_y)) == last["error"]


def test_the_features_of_the_test_set_are_kept_in_half_precision(points):
    folder, trained = points
    saved = load_file(folder / "features.safetensors")
    features = predict(trained.model, trained.data.test_x).features
    assert saved.keys() == {"features", "classes"}
    assert saved["features"].dtype == torch.float16
    assert torch.equal(saved["features"], features.half())
    assert torch.equal(saved["classes"], trained.data.test_y)


def test_the_split_is_kept_and_leads_to_the_same_run(points, tmp_path, monkeypatch):
    monkeypatch.setattr(RUN, "draw_figures", lambda trained, folder: None)
    folder, trained = points
    rows = np.loadtxt(folder / "split.txt", dtype=int)
    known = (trained.labels >= 0).nonzero()[:, 0]
    assert rows.tolist() == [[row, int(trained.labels[row])] for row in known.tolist()]
    assert (folder / "split.txt").read_text().startswith("# two-moons, 12 labels, seed 0, balanced\n")
    assert not (folder / "validation.txt").exists()
    config = quick(split_file=str(folder / "split.txt"))
    assert config.labels == 12
    assert run(config, tmp_path / "run").history == trained.history
    source = f"# two-moons, 12 labels, seed 0, listed in {config.split_file!r}"  # and not drawn by this seed
    assert (tmp_path / "run/split.txt").read_text().splitlines()[0] == source


def test_points_held_out_are_kept_by_number_and_tested_on(tmp_path, monkeypatch):
    monkeypatch.setattr(RUN, "draw_figures", lambda trained, folder: None)
    trained = run(quick("pi", validation=900), tmp_path / "run")
    held_out = np.loadtxt(tmp_path / "run/validation.txt", dtype=int)
    labelled = np.loadtxt(tmp_path / "run/split.txt", dtype=int)[:, 0]
    assert len(set(held_out)) == len(held_out) == 900
    assert not set(held_out) & set(labelled)
    whole = load_dataset("two-moons", 0)
    assert torch.equal(trained.data.test_x, whole.train_x[held_out])
    assert len(trained.data.train_x) == len(trained.labels) == 5100
    tested = float(error(load(tmp_path / "run"), whole.train_x[held_out], whole.train_y[held_out]))
    assert tested == metrics(tmp_path / "run")[-1]["error"]


def test_the_figures_of_a_run_on_points(points):
    for name in ("curves", "decisions"):
        assert (points[0] / "figures" / f"{name}.png").read_bytes().startswith(PNG)


def test_a_run_on_images_saves_a_model_that_loads_and_an_embedding(tmp_path, plain_projection):
    trained = run(resolve("digits", 20, "mt+sntg", epochs=1, batch=599), tmp_path / "run")
    assert files(tmp_path / "run") == [
        "config.json",
        "features.safetensors",
        "figures/curves.png",
        "figures/embedding.png",
        "metrics.jsonl",
        "model.safetensors",
        "split.txt",
    ]
    assert (tmp_path / "run/figures/embedding.png").read_bytes().startswith(PNG)
    model = load(tmp_path / "run")
    assert float(error(model, trained.data.test_x, trained.data.test_y)) == metrics(tmp_path / "run")[-1]["error"]


def test_the_panel_of_decisions_shows_the_models_classes_and_the_labelled_points(points):
    _, trained = points
    panel = decisions(trained)
    assert panel.points.shape == (6000, 2)
    assert panel.labelled.shape == (12, 2)
    known = trained.labels >= 0
    np.testing.assert_array_equal(panel.labelled, trained.data.train_x[known].numpy())
    expected = predict(trained.model, trained.data.train_x).logits.argmax(-1).numpy()
    np.testing.assert_array_equal(panel.classify(panel.points.astype(np.float64)), expected)
    wrong = 100 * (panel.classify(panel.points) != trained.data.train_y.numpy()).mean()
    assert panel.title == caption(trained) == f"pi+sntg: {wrong:.2f} % error"


def test_the_panel_of_features_shows_the_test_set(points):
    _, trained = points
    panel = embedding(trained)
    assert panel.features.shape == (6000, 100)
    np.testing.assert_array_equal(panel.classes, trained.data.test_y.numpy())
    np.testing.assert_array_equal(panel.features, predict(trained.model, trained.data.test_x).features.numpy())


# --- ends that are not good ------------------------------------------------------------------------------------------


def test_a_diverged_run_keeps_its_settings_and_the_metrics_before(tmp_path):
    config = quick("pi", lr=1e30, epochs=9, batch=6000, ramp_up=0)
    with pytest.raises(DivergenceError, match=r"loss became (nan|inf) at step \d+") as caught:
        run(config, tmp_path / "run")
    step = int(str(caught.value).split()[-1])
    assert files(tmp_path / "run") == ["config.json", "metrics.jsonl", "split.txt"]
    assert [record["epoch"] for record in metrics(tmp_path / "run")] == list(range(1, step))  # one step an epoch
    with pytest.raises(UsageError, match="did not finish"):
        load(tmp_path / "run")


def test_an_interrupted_run_keeps_what_was_written(tmp_path):
    def stop(record):
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(quick("pi", epochs=5), tmp_path / "run", stop)
    assert files(tmp_path / "run") == ["config.json", "metrics.jsonl", "split.txt"]
    assert len(metrics(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"graph": "fixed", "fixed_from": "nowhere"}, "fixed_from: .*nowhere' is not a run folder"),
        (
            {"graph": "knn", "neighbours": 6000},
            "neighbours = 6000 is out of range: of 6000 training points, one has 5999 others",
        ),
        ({"model": "small"}, "takes images"),
    ],
)
def test_what_only_the_data_can_tell_is_refused_before_anything_is_written(tmp_path, settings, words):
    with pytest.raises(UsageError, match=words):
        run(quick(**settings), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr("sntg.training.inputs.load_dataset", lambda *a: pytest.fail("work was begun"))
    with pytest.raises(UsageError, match="is not empty"):
        run(quick(), tmp_path)
    assert files(tmp_path) == ["notes.txt"]


def test_a_run_can_be_repeated_from_its_own_config(points, tmp_path):
    again = run(read_config(points[0]), tmp_path / "again")
    assert again.history == points[1].history
    saved = [(folder / "model.safetensors").read_bytes() for folder in (points[0], tmp_path / "again")]
    assert saved[0] == saved[1]
    assert torch.equal(again.labels, points[1].labels)


def test_a_runs_config_with_another_split_is_another_run(points, tmp_path):
    """As of a run that chose a value on held-out points: the next keeps them."""
    config = replace(read_config(points[0]), validation=1000)
    assert len(run(config, tmp_path / "other").labels) == 5000


def test_what_is_no_config_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"a config is wanted, .* not str"):
        run("two-moons", tmp_path / "RUN")
    assert not (tmp_path / "RUN").exists()
