"""One run into a folder: what is kept when it ends well, badly, or in the middle."""

import json

import numpy as np
import pytest
import torch

from sntg.errors import DivergenceError, UsageError
from sntg.figures import embeddings
from sntg.training import resolve, run
from sntg.training.evaluation import error, predict
from sntg.training.run import caption, decisions, embedding
from sntg.training.run_folder import load, read_config

PNG = b"\x89PNG\r\n\x1a\n"


def quick(method="pi+sntg", **settings):
    return resolve("two-moons", 12, method, **({"epochs": 2, "batch": 1000} | settings))


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


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


def test_the_figures_of_a_run_on_points(points):
    for name in ("curves", "decisions"):
        assert (points[0] / "figures" / f"{name}.png").read_bytes().startswith(PNG)


def test_a_run_on_images_saves_a_model_that_loads_and_an_embedding(tmp_path, plain_projection):
    trained = run(resolve("digits", 20, "mt+sntg", epochs=1, batch=599), tmp_path / "run")
    assert files(tmp_path / "run") == [
        "config.json",
        "figures/curves.png",
        "figures/embedding.png",
        "metrics.jsonl",
        "model.safetensors",
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
    assert files(tmp_path / "run") == ["config.json", "metrics.jsonl"]
    assert [record["epoch"] for record in metrics(tmp_path / "run")] == list(range(1, step))  # one step an epoch
    with pytest.raises(UsageError, match="did not finish"):
        load(tmp_path / "run")


def test_an_interrupted_run_keeps_what_was_written(tmp_path):
    def stop(record):
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(quick("pi", epochs=5), tmp_path / "run", stop)
    assert files(tmp_path / "run") == ["config.json", "metrics.jsonl"]
    assert len(metrics(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"graph": "fixed", "fixed_from": "nowhere"}, "'nowhere' is not a run folder"),
        ({"graph": "knn", "neighbours": 6000}, "6000 nearest neighbours need more than 6000 points"),
        ({"model": "small"}, "takes images"),
    ],
)
def test_what_only_the_data_can_tell_is_refused_before_anything_is_written(tmp_path, settings, words):
    with pytest.raises(UsageError, match=words):
        run(quick(**settings), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr("sntg.training.loop.load_dataset", lambda *a: pytest.fail("work was begun"))
    with pytest.raises(UsageError, match="is not empty"):
        run(quick(), tmp_path)
    assert files(tmp_path) == ["notes.txt"]


def test_a_run_can_be_repeated_from_its_own_config(points, tmp_path):
    again = run(read_config(points[0]), tmp_path / "again")
    assert again.history == points[1].history
    saved = [(folder / "model.safetensors").read_bytes() for folder in (points[0], tmp_path / "again")]
    assert saved[0] == saved[1]
    assert torch.equal(again.labels, points[1].labels)
