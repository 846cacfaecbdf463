"""TensorBoard: every number of the metrics as TensorBoard itself reads it back, the features, and resumed runs."""

import importlib.util
import json
import logging
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sntg.errors import UsageError
from sntg.training import resolve, resume, run
from sntg.training.tensorboard import Board, check_tensorboard

CONFIG = {"epochs": 3, "batch": 2000, "eval_every": 2, "tensorboard": True}


@pytest.fixture(autouse=True)
def quiet():
    """TensorBoard says on its logger which events it leaves out, as it should."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)


def scalars(folder):
    """name -> {step: value}, as TensorBoard shows it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    shown = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert all(len(dict(points)) == len(points) for points in shown.values())  # each step once
    return {name: dict(points) for name, points in shown.items()}


def flat(record, prefix=""):
    for name, value in record.items():
        if isinstance(value, dict):
            yield from flat(value, f"{name}/")
        elif value is not None:
            yield prefix + name, value


def expected(history):
    """What the metrics have, in single precision as TensorBoard keeps it."""
    found = {}
    for record in history:
        for name, value in flat(record):
            if name not in ("epoch", "step"):
                found.setdefault(name, {})[record["step"]] = float(np.float32(value))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, run(resolve("two-moons", 12, "pi+sntg", **CONFIG), folder)


def test_every_number_of_the_metrics_is_a_scalar_at_its_step(finished):
    folder, trained = finished
    shown = scalars(folder)
    assert shown == expected(trained.history)
    assert {"loss/supervised", "loss/sntg", "weight/sntg", "lr", "error", "ema_error", "student_error"} <= set(shown)
    assert list(shown["lr"]) == [3, 6, 9]
    assert list(shown["error"]) == [6, 9]  # only where there was an evaluation


def test_the_projector_has_the_test_features_and_their_classes(finished):
    folder, trained = finished
    board = folder / "tensorboard"
    (tensors,) = board.rglob("tensors.tsv")
    (classes,) = board.rglob("metadata.tsv")
    saved = load_file(folder / "features.safetensors")
    shown = np.loadtxt(tensors, delimiter="\t", dtype=np.float32)
    np.testing.assert_array_equal(shown.astype(np.float16), saved["features"].numpy())
    np.testing.assert_array_equal(np.loadtxt(classes, dtype=int), trained.data.test_y.numpy())
    assert str(tensors.relative_to(board)) in (board / "projector_config.pbtxt").read_text()


def test_the_metrics_are_written_as_json_lines_too(finished):
    folder, trained = finished
    assert [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] == trained.history


def test_a_run_is_the_same_with_and_without_it(finished, tmp_path):
    plain = run(resolve("two-moons", 12, "pi+sntg", **CONFIG | {"tensorboard": False}), tmp_path)
    assert plain.history == finished[1].history
    assert not (tmp_path / "tensorboard").exists()


def test_a_resumed_run_shows_each_step_once_and_as_it_was_in_the_end(finished, tmp_path, capsys, monkeypatch):
    """Stopped after the second epoch with the checkpoint of the first: what the second showed is void."""

    def stop(record):
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    closed = []
    monkeypatch.setattr(Board, "close", lambda board: closed.append(board.folder) or board.writer.close())
    config = resolve("two-moons", 12, "pi+sntg", **CONFIG, checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", stop)
    assert closed == [tmp_path / "run" / "tensorboard"]  # else its thread and its file would stay with the process
    shown = scalars(tmp_path / "run")
    assert list(shown["lr"]) == [3, 6]
    assert resume(tmp_path / "run").history == finished[1].history
    assert scalars(tmp_path / "run") == scalars(finished[0])
    assert capsys.readouterr().out == ""


def test_a_run_stopped_at_the_very_end_is_finished_without_a_word(tmp_path, capsys, monkeypatch):
    def fail(trained, folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["sntg.training.run"], "draw_figures", fail)
    config = resolve("two-moons", 12, "pi", epochs=1, batch=3000, tensorboard=True)
    with pytest.raises(OSError, match="No space left"):
        run(config, tmp_path / "run")
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert capsys.readouterr().out == ""
    assert len(list((tmp_path / "run/tensorboard").rglob("tensors.tsv"))) == 1


def test_later_steps_of_an_earlier_process_are_void(tmp_path):
    first = Board(tmp_path)
    for step, loss in ((2, 5.0), (4, 6.0), (6, 7.0)):
        first.add({"epoch": 1, "step": step, "loss": {"supervised": loss}})
    first.close()
    again = Board(tmp_path, step=4)
    again.add({"epoch": 3, "step": 6, "loss": {"supervised": 8.0}, "error": None})
    again.embed(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    again.close()
    assert scalars(tmp_path) == {"loss/supervised": {2: 5.0, 4: 6.0, 6: 8.0}}


def test_where_tensorboard_is_not_installed_nothing_is_begun(tmp_path, monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr("sntg.training.tensorboard.find_spec", lambda n: None if n == "tensorboard" else known(n))
    with pytest.raises(UsageError, match=r"tensorboard is not installed: pip install 'sntg\[tensorboard\]'"):
        check_tensorboard()
    with pytest.raises(UsageError, match="not installed"):
        run(resolve("two-moons", 12, "pi", **CONFIG), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
