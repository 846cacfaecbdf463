"""The run folder: nothing before the start, whole files only, and a model that comes back as it was saved."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import sntg
from sntg.data import Split
from sntg.errors import DivergenceError, UsageError
from sntg.models import Output
from sntg.training import RunFolder, load, resolve, resume, resume_series, run
from sntg.training.evaluation import error
from sntg.training.run_folder import LOCK, check_free, read_config, save_tensors

CONFIG = resolve("two-moons", 12, "pi+sntg", seed=3, epochs=2, batch=1000, n_pairs=5, pairs="random")


DECIDED = {"engine": "eager", "precision": "float32"}  # what "auto" is on a CPU

SPLIT = Split(torch.tensor([-1, 1, 0, -1]), torch.tensor([3]))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run and what training returned."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, run(CONFIG, folder)


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the finished run to break."""
    return shutil.copytree(finished[0], tmp_path / "copy")


def refusal(what, *arguments):
    with pytest.raises(UsageError) as caught:
        what(*arguments)
    return str(caught.value)


# --- a new folder ----------------------------------------------------------------------------------------------------


def started(path, split=SPLIT):
    folder = RunFolder(path)
    with folder.locked():
        folder.start(CONFIG, split)
    return folder


@pytest.mark.parametrize("name", ["new", "a/b/c"])
def test_nothing_is_written_before_the_start(tmp_path, name):
    folder = RunFolder(tmp_path / name)
    check_free(folder.path)
    assert list(tmp_path.iterdir()) == []
    started(tmp_path / name)
    assert sorted(p.name for p in (tmp_path / name).iterdir()) == [LOCK, "config.json", "split.txt", "validation.txt"]


def test_the_split_is_written_with_what_it_is_of(tmp_path):
    started(tmp_path / "run")
    assert (tmp_path / "run/split.txt").read_text().splitlines() == [
        "# two-moons, 12 labels, seed 3, balanced",
        "# index class",
        "1 1",
        "2 0",
    ]
    assert (tmp_path / "run/validation.txt").read_text().splitlines()[2:] == ["3"]


def test_without_points_held_out_there_is_no_list_of_them(tmp_path):
    started(tmp_path / "run", Split(SPLIT.labels, torch.zeros(0, dtype=torch.long)))
    assert not (tmp_path / "run/validation.txt").exists()


def test_an_empty_folder_may_be_used_and_one_that_was_locked_only(tmp_path):
    with RunFolder(str(tmp_path)).locked():
        pass
    assert [p.name for p in tmp_path.iterdir()] == [LOCK]
    started(str(tmp_path))
    assert (tmp_path / "config.json").exists()


def test_a_folder_in_which_a_process_was_killed_over_its_first_file_may_be_used(tmp_path):
    for name in ("split.txt", "config.json"):
        (tmp_path / f"{name}.4711.partial").write_text("the beginn")
    started(tmp_path)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("name", ["thesis.mp4.partial", "config.json.partial", "split.txt.4711.partial/mine"])
def test_what_only_looks_like_it_is_somebodys(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert "is not empty" in refusal(check_free, tmp_path)
    assert "is not empty" in refusal(started, tmp_path)
    assert (tmp_path / name).exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".hidden").touch()
    message = f"the output folder {str(tmp_path / 'run')!r} is not empty: choose a new one"
    assert refusal(check_free, tmp_path / "run") == message
    assert refusal(started, tmp_path / "run") == message


@pytest.mark.parametrize("below", ["", "run", "deep/run"])
def test_a_file_in_the_way_is_named(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("mine")
    message = refusal(check_free, file / below if below else file)
    assert message.endswith(f"cannot be made: {str(file)!r} is a file")
    assert file.read_text() == "mine"


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, target):
    (tmp_path / "link").symlink_to(tmp_path / target)
    message = refusal(check_free, tmp_path / "link")
    assert message.endswith(f"cannot be made: {str(tmp_path / 'link')!r} is a link that leads nowhere")


def test_a_folder_may_be_used_in_which_a_process_was_killed_while_it_tried_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: None)
    check_free(tmp_path)
    monkeypatch.undo()
    assert list(tmp_path.iterdir())
    started(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [LOCK, "config.json", "split.txt", "validation.txt"]


@pytest.mark.parametrize("below", ["n" * 300, f"new/{'n' * 300}/b", "/".join(["n" * 100] * 39)])
def test_a_folder_whose_name_is_too_long_is_refused_and_none_is_made_above_it(tmp_path, below):
    with pytest.raises(UsageError, match="File name too long"):
        run(CONFIG, tmp_path / below)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [None, 3, "a\0b", "a\ud800"])
def test_what_can_be_no_folder_is_refused(path):
    for what in (RunFolder, load, resume):
        assert f"not {path!r}" in refusal(what, path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    """As a full or read-only disk answers; permissions do not bind the root user that tests may run as."""

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    message = refusal(check_free, tmp_path / "run")
    assert message == f"the output folder {str(tmp_path / 'run')!r} cannot be written: Permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_folder_without_permission_is_refused(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert "Permission denied" in refusal(check_free, closed / "run")


def test_a_folder_that_vanishes_before_the_start_is_told_in_a_sentence(tmp_path):
    check_free(tmp_path / "run")
    (tmp_path / "run").write_text("somebody was quicker")
    assert "cannot be written: File exists" in refusal(started, tmp_path / "run")


def test_a_disk_that_is_full_at_the_start_is_told_in_a_sentence(tmp_path, monkeypatch):
    def fail(path, text):
        raise OSError(28, "No space left on device")

    def refuse(path, rows, header):
        raise UsageError("the split file cannot be written")

    monkeypatch.setattr("sntg.training.run_folder.write_text", fail)
    assert refusal(started, tmp_path / "run") == (
        f"the output folder {str(tmp_path / 'run')!r} cannot be written: No space left on device"
    )
    monkeypatch.undo()
    monkeypatch.setattr("sntg.training.run_folder.write_rows", refuse)
    assert refusal(started, tmp_path / "run") == "the split file cannot be written"
    monkeypatch.undo()
    started(tmp_path / "run")  # nothing was left in the way


def test_the_check_leaves_nothing_behind(tmp_path):
    check_free(tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- one at a time ---------------------------------------------------------------------------------------------------


def lock(folder):
    with folder.locked():
        pass


def test_a_folder_somebody_is_at_work_on_is_refused_until_they_are_done(tmp_path):
    with RunFolder(tmp_path).locked():
        message = refusal(lock, RunFolder(tmp_path))
        assert message == f"another process is at work on the run {str(tmp_path)!r}: let it finish first"
    lock(RunFolder(tmp_path))


def test_the_lock_is_given_back_after_an_error(tmp_path):
    def fail():
        with RunFolder(tmp_path).locked():
            raise OSError(28, "No space left on device", str(tmp_path))

    with pytest.raises(OSError, match="No space left"):  # as it was raised, not as a folder that cannot be written
        fail()
    lock(RunFolder(tmp_path))


def test_two_runs_may_go_on_beside_each_other(tmp_path):
    with RunFolder(tmp_path / "a").locked():
        lock(RunFolder(tmp_path / "b"))


# --- what is in it ---------------------------------------------------------------------------------------------------


def test_a_finished_run_has_its_files_and_no_partial_ones(finished):
    names = sorted(str(p.relative_to(finished[0])) for p in finished[0].rglob("*") if p.is_file())
    figures = ["figures/curves.png", "figures/decisions.png"]
    tensors = ["features.safetensors", "model.safetensors"]
    assert names == sorted([LOCK, "config.json", "metrics.jsonl", "split.txt", *figures, *tensors])
    assert not (finished[0] / "checkpoints").exists()


def test_the_config_holds_every_value_and_reads_back_equal(finished):
    values = json.loads((finished[0] / "config.json").read_text())
    content = sntg.load_dataset("two-moons", seed=3).content_hash
    hashes = {"data_hash": content, "split_hash": sntg.load_inputs(CONFIG).split.content_hash}
    assert values == CONFIG.as_dict() | DECIDED | hashes | {"overridden": list(CONFIG.overridden)}
    assert finished[1].config == replace(CONFIG, **hashes, **DECIDED)
    assert read_config(finished[0], keep_device=True) == finished[1].config


def test_reading_a_network_draws_none_of_the_callers_random_numbers(finished):
    before = torch.get_rng_state()
    load(finished[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("missing", ["model.safetensors", "figures/curves.png"])
@pytest.mark.parametrize("home", [".", ".."], ids=["its own", "its pass's"])
def test_a_run_with_checkpoints_is_finished_when_its_weights_and_its_last_figure_are_there(copy, missing, home):
    (copy / home / "checkpoints" / "000000000120").mkdir(parents=True)
    assert RunFolder(copy).finished
    (copy / missing).unlink()
    assert not RunFolder(copy).finished


@pytest.mark.parametrize("missing", ["model.safetensors", "features.safetensors"])
def test_a_run_without_checkpoints_is_finished_when_its_weights_and_features_are_there(copy, missing):
    shutil.rmtree(copy / "figures")
    assert RunFolder(copy).finished
    (copy / missing).unlink()
    assert not RunFolder(copy).finished


def test_a_finished_run_whose_figures_were_removed_is_not_trained_again(copy):
    shutil.rmtree(copy / "figures")
    metrics = (copy / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="is finished"):
        resume(copy)
    assert (copy / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize("engine", ["eager", "compiled", "graph"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16", "float16"])
def test_a_run_made_on_a_gpu_reads_on_a_machine_without_one(copy, engine, precision):
    values = json.loads((copy / "config.json").read_text())
    values |= {"device": "cuda", "engine": engine, "precision": precision}
    (copy / "config.json").write_text(json.dumps(values))
    asked_for = replace(read_config(copy), engine="auto", precision="auto")
    assert asked_for == replace(CONFIG, data_hash=values["data_hash"], split_hash=values["split_hash"])
    assert isinstance(load(copy)(torch.zeros(3, 2)), Output)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_but_goes_on_only_where_there_is_one(copy):
    (copy / "model.safetensors").unlink()
    values = json.loads((copy / "config.json").read_text()) | {"device": "cuda"}
    (copy / "config.json").write_text(json.dumps(values))
    expected = f"{str(copy)!r} began on a GPU that this machine does not have: go on with it where there is one"
    assert refusal(resume, copy) == expected
    (copy / "series.json").write_text(json.dumps([values]))
    assert refusal(resume_series, copy) == expected


def test_the_metrics_are_one_json_object_an_epoch(finished):
    folder, trained = finished
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == trained.history
    assert list(trained.history[0]) == [
        "epoch",
        "step",
        "lr",
        "weight",
        "loss",
        "teacher_error",
        "graph_precision",
        "graph_recall",
        "student_error",
        "ema_error",
        "error",
    ]


def test_a_line_of_metrics_is_there_as_soon_as_it_is_added(tmp_path):
    folder = started(tmp_path / "run")
    for epoch in (1, 2):
        folder.add_metrics({"epoch": epoch})
        assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == epoch


def test_metrics_put_back_are_to_the_byte_what_was_added(tmp_path):
    folder = started(tmp_path / "run")
    records = [{"epoch": epoch, "error": 0.1 * epoch, "teacher_error": None} for epoch in (1, 2, 3)]
    for record in records:
        folder.add_metrics(record)
    lines = (tmp_path / "run/metrics.jsonl").read_bytes().splitlines(keepends=True)
    for count in (3, 1, 0):
        folder.set_metrics(json.loads(json.dumps(records[:count])))
        assert (tmp_path / "run/metrics.jsonl").read_bytes() == b"".join(lines[:count])
    folder.add_metrics(records[0])
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == lines[0]


def test_the_weights_are_those_of_the_trained_model(finished):
    folder, trained = finished
    saved, state = load_file(folder / "model.safetensors"), trained.model.state_dict()
    assert saved.keys() == state.keys()
    assert all(torch.equal(saved[name], state[name]) for name in state)


# --- giving it back --------------------------------------------------------------------------------------------------


def test_a_loaded_model_has_the_error_of_the_last_line_of_metrics(finished):
    model = sntg.load(str(finished[0]))
    data = sntg.load_dataset("two-moons", seed=3)
    last = json.loads((finished[0] / "metrics.jsonl").read_text().splitlines()[-1])
    assert float(error(model, data.test_x, data.test_y)) == last["error"] == finished[1].error


def test_a_model_is_loaded_without_its_data(finished, monkeypatch):
    for module in ("sntg.training.inputs", "sntg.data"):
        monkeypatch.setattr(sys.modules[module], "load_dataset", lambda *a: pytest.fail("the data were wanted"))
    assert sntg.load(finished[0])(torch.zeros(1, 2)).logits.shape == (1, 2)


def test_a_loaded_model_gives_logits_and_features_without_noise(finished):
    model = sntg.load(finished[0])
    x = torch.randn(7, 2)
    output = model(x)
    assert isinstance(output, Output)
    assert output.logits.shape == (7, 2)
    assert output.features.shape == (7, 100)
    assert not model.training
    assert torch.equal(output.logits, model(x).logits)
    assert torch.equal(output.logits, finished[1].model(x).logits)


def test_a_loaded_model_can_be_trained_on_with_the_runs_noise(finished):
    model = sntg.load(finished[0]).train()
    assert all(noise.std.item() == pytest.approx(CONFIG.noise) for noise in model.noises)
    model(torch.randn(7, 2)).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_for_mean_teacher_the_saved_weights_are_the_teachers(tmp_path, monkeypatch):
    """With ema = 1 the teacher never moves, so a longer run saves the same weights."""
    monkeypatch.setattr(sys.modules["sntg.training.run"], "draw_figures", lambda trained, folder: None)
    for epochs in (1, 2):
        config = resolve("two-moons", 12, "mt", epochs=epochs, batch=2000, ema=1.0, lr=0.01, ramp_up=0, ramp_down=0)
        trained = run(config, tmp_path / str(epochs))
        assert trained.history[-1]["student_error"] != trained.history[-1]["error"]
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("1", "2"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_weights_that_are_no_numbers_are_never_saved(finished, tmp_path):
    model = load(finished[0])
    model.output.g.data[0] = float("nan")
    with pytest.raises(DivergenceError, match=r"output\.g"):
        RunFolder(tmp_path / "new").save_model(model)
    assert not (tmp_path / "new").exists()


# --- folders that are no runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["missing", "empty", "file"])
def test_what_is_no_run_folder_is_refused(tmp_path, make):
    folder = tmp_path / "x"
    if make == "empty":
        folder.mkdir()
    elif make == "file":
        folder.touch()
    message = refusal(load, folder)
    assert str(folder) in message
    assert "config.json" in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        "7",
        "null",
        '"two-moons"',
        "{}",
        '{"dataset": "two-moons", "labels": "12", "method": "pi"}',
        '{"dataset": "two-moons", "labels": 12, "method": 5}',
        '{"dataset": ["two-moons"], "labels": 12, "method": "pi"}',
        '{"dataset": "two-moons", "labels": 12, "method": "pi", "epochs": null}',
        '{"dataset": "two-moons", "labels": 12, "method": "pi", "colour": "red"}',
        '{"dataset": "two-mons", "labels": 12, "method": "pi"}',
    ],
)
def test_a_broken_config_is_refused(copy, text):
    (copy / "config.json").write_text(text)
    assert f"{str(copy / 'config.json')!r} cannot be read" in refusal(load, copy)


def test_a_config_that_is_no_text_is_refused(copy):
    (copy / "config.json").write_bytes(b"\xff\xfe\x00{")
    assert "config.json' cannot be read" in refusal(load, copy)


def test_a_run_that_did_not_finish_is_refused(copy):
    (copy / "model.safetensors").unlink()
    assert refusal(load, copy) == f"the run {str(copy)!r} has no model.safetensors: it did not finish"


@pytest.mark.parametrize("size", [0, 5, 100, -4])
def test_truncated_weights_are_refused(copy, size):
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:size])
    assert "model.safetensors' cannot be read" in refusal(load, copy)


@pytest.mark.parametrize("change", ["missing", "extra", "shape"])
def test_weights_of_another_network_are_refused_in_one_sentence(copy, change):
    weights = load_file(copy / "model.safetensors")
    if change == "missing":
        del weights["output.b"]
    elif change == "extra":
        weights["output.c"] = torch.zeros(2)
    else:
        weights["output.b"] = torch.zeros(3)
    save_file(weights, copy / "model.safetensors")
    message = refusal(load, copy)
    assert "model.safetensors' cannot be read" in message
    assert "\n" not in message


def test_weights_of_a_transposed_tensor_are_saved_whole(tmp_path):
    weight = torch.arange(6.0).reshape(2, 3).T
    save_tensors({"weight": weight}, tmp_path / "w.safetensors")
    assert torch.equal(load_file(tmp_path / "w.safetensors")["weight"], weight)
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
