"""Runs that are stopped, killed, damaged or out of space, and gone on with: the end is the same to the bit."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from processes import SOURCE, Sntg

from sntg.cli import main
from sntg.errors import UsageError
from sntg.methods import METHODS
from sntg.training import Stopped, resolve, resume, run
from sntg.training.checkpoints import read_latest, write_checkpoint
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness
from sntg.training.run_folder import RunFolder

INPUTS, RUN = (sys.modules[f"sntg.training.{name}"] for name in ("inputs", "run"))  # the package has a function `run`
DRAW = RUN.draw_figures

# --- after any step --------------------------------------------------------------------------------------------------

SMALL = {"validation": 5880, "batch": 30, "epochs": 3}  # 120 points, 4 steps an epoch
MOONS = {
    "supervised": {},
    "pi": {"eval_every": 2},
    "tempens": {"pairs": "random", "n_pairs": 7},
    "mt": {
        "batch": 24,
        "labelled_batch": 6,
        "epoch_steps": 4,
        "stepwise": True,
        "early_momentum": 0.9,
        "early_epochs": 1,
    },
    "vat": {"batch": 24, "labelled_batch": 6, "epoch_steps": 4, "xi": 1e-3},
}
DIGITS = {"batch": 60, "epoch_steps": 3, "epochs": 2, "bn_batches": 2, "normalisation": "batch"}
CONFIGS = [resolve("two-moons", 12, f"{base}+ent+sntg", **SMALL | MOONS[base]) for base in METHODS]
CONFIGS += [resolve("digits", 20, "tempens+ent+sntg", **DIGITS)]


def new(config):
    with own_randomness(config):
        return Stack([config])


def end(runs, keep=lambda runs: None):
    """Trains to the end: all the state there is, and the metrics."""
    while not runs.finished:
        runs.advance()
        keep(runs)
    return {name: tensor.clone() for name, tensor in runs.state().items()}, runs.histories[0]


def same(one, other):
    return (
        one[1] == other[1]
        and one[0].keys() == other[0].keys()
        and all(torch.equal(t, other[0][n]) for n, t in one[0].items())
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.dataset}-{c.method}")
def test_stopped_after_any_step_a_run_goes_on_to_the_same_bits(config, tmp_path):
    """Every step of three epochs, through a written checkpoint; of the digits, those around the end of the first."""

    def write(runs):
        write_checkpoint(tmp_path / str(runs.step), runs.step, runs.state(), {"history": runs.histories[0]})

    with own_randomness(config):
        straight = Stack([config])
        whole = end(straight, write)
    steps = range(1, straight.steps) if config.dataset == "two-moons" else (2, 3, 4)
    assert straight.steps > max(steps) > straight.epoch_steps > 1
    for step in steps:
        with own_randomness(replace(config, seed=99)):  # what the generators are at does not matter
            runs = new(config)
            stored = read_latest(tmp_path / str(step))
            runs.load_state(stored.tensors, [stored.facts["history"]])
            assert runs.step == step
            assert same(end(runs), whole), f"after step {step} of {straight.steps}"


@pytest.mark.parametrize("part", ["model", "optimiser", "method", "batches", "log", "progress", "random"])
def test_without_any_one_part_of_the_state_the_end_would_be_another(part):
    config = CONFIGS[2]
    with own_randomness(config):
        runs = Stack([config])
        for _ in range(6):
            runs.advance()
        stored = {name: tensor.clone() for name, tensor in runs.state().items()}
        history = list(runs.histories[0])
        whole = end(runs)
    with own_randomness(config):
        again = new(config)
        own = again.state()
        kept = {name: t for name, t in stored.items() if not name.startswith(f"{part}/")}
        lost = {name: t.clone() for name, t in own.items() if name.startswith(f"{part}/")}
        again.load_state(kept | lost, [history])
        assert not same(end(again), whole)


# --- in this process -------------------------------------------------------------------------------------------------

LABELS = 12
QUICK = {"validation": 5000, "batch": 50, "epochs": 4}  # 1000 points
ARGUMENTS = ["two-moons", "--labels", LABELS, "--validation", 5000, "--set", "batch=50", "--set", "epochs=4"]
EPOCH, STEPS = 20, 80
WRITTEN = ["config.json", "features.safetensors", "figures/curves.png", "figures/decisions.png", "metrics.jsonl"]
WRITTEN += ["model.safetensors", "split.txt", "validation.txt"]


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def outcome(folder):
    """All that a finished run leaves, but for the settings; they say how often checkpoints were wanted."""
    assert files(folder) == WRITTEN
    return {name: (folder / name).read_bytes() for name in WRITTEN if name != "config.json"}


@pytest.fixture
def unpainted(monkeypatch):
    """Drawing takes longer than a short run; where the processes are real, the figures are."""

    def leave_out(trained, folder):
        folder.mkdir(exist_ok=True)
        (folder / "curves.png").touch()

    monkeypatch.setattr(RUN, "draw_figures", leave_out)


def ended_like(folder, whole):
    """Whether all but the figures is as in an undisturbed run."""
    names = [name for name in WRITTEN if name not in ("config.json", "figures/decisions.png")]
    assert files(folder) == sorted([*names, "config.json"])
    names.remove("figures/curves.png")
    return {name: (folder / name).read_bytes() for name in names} == {name: whole[name] for name in names}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """method -> what a run leaves that nothing happened to."""
    known = {}

    def get(method):
        if method not in known:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RUN, "draw_figures", DRAW)
                run(resolve("two-moons", LABELS, method, **QUICK), folder)
            known[method] = outcome(folder)
        return known[method]

    return get


class Interrupt(Exception):
    """Ends a run from within, as nothing expects."""


def interrupt_at(step):
    def look(runs):
        if runs.step == step:
            raise Interrupt

    return look


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory):
    """A run of pi+sntg broken off at its 51st step, with checkpoints of the two steps before."""
    folder = tmp_path_factory.mktemp("broken") / "run"
    with pytest.raises(Interrupt):
        run(resolve("two-moons", LABELS, "pi+sntg", **QUICK, checkpoint_seconds=0.0), folder, on_step=interrupt_at(51))
    assert checkpoints(folder) == ["000000000049", "000000000050"]
    want_checkpoints(folder, 600.0)  # they take longer than the steps
    return folder


def want_checkpoints(folder, seconds):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"checkpoint_seconds": seconds}))


@pytest.fixture
def copy(broken_off, tmp_path):
    return shutil.copytree(broken_off, tmp_path / "run")


def checkpoints(folder):
    place = folder / "checkpoints"
    return sorted(os.listdir(place)) if place.exists() else []


def test_a_run_broken_off_has_no_weights_yet_and_goes_on_to_the_same_end(copy, undisturbed, unpainted):
    assert "model.safetensors" not in files(copy)
    seen = []
    trained = resume(copy, on_epoch=seen.append)
    assert ended_like(copy, undisturbed("pi+sntg"))
    assert [record["epoch"] for record in seen] == [3, 4]
    assert [record["epoch"] for record in trained.history] == [1, 2, 3, 4]


def test_a_run_broken_off_again_and_again_ends_the_same(copy, undisturbed, unpainted):
    want_checkpoints(copy, 0.0)
    for step in (52, 60, 61, 80):
        with pytest.raises(Interrupt):
            resume(copy, on_step=interrupt_at(step))
    resume(copy)
    assert ended_like(copy, undisturbed("pi+sntg"))


@pytest.mark.parametrize("left", ["what is drawn", "the weights", "the features"])
def test_a_run_broken_off_while_its_results_are_written_only_writes_them_again(
    copy, undisturbed, unpainted, monkeypatch, left
):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if left == "what is drawn":
            patch.setattr(RUN, "draw_figures", fail)
        else:
            patch.setattr(RunFolder, "save_model" if left == "the weights" else "save_features", fail)
        with pytest.raises(OSError, match="No space left"):
            resume(copy)
    assert checkpoints(copy)[-1] == "000000000080"
    resume(copy, on_step=lambda runs: pytest.fail("nothing is left to train"))
    assert ended_like(copy, undisturbed("pi+sntg"))


def test_half_a_line_of_metrics_is_put_right(copy, undisturbed, unpainted, monkeypatch):
    """As a disk that is full leaves it."""

    def half(folder, record):
        with (folder.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record)[:40])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add_metrics", half)
        with pytest.raises(OSError, match="No space left"):
            resume(copy)
    resume(copy)
    assert ended_like(copy, undisturbed("pi+sntg"))


def test_lines_of_metrics_after_the_checkpoint_are_not_there_twice(copy):
    with pytest.raises(Interrupt):  # the epoch's line is written, and then no checkpoint any more
        resume(copy, on_step=interrupt_at(60))
    lines = (copy / "metrics.jsonl").read_text()
    assert lines.count("\n") == 3
    with pytest.raises(Interrupt):
        resume(copy, on_step=interrupt_at(60))
    assert (copy / "metrics.jsonl").read_text() == lines


def test_what_killed_processes_left_of_checkpoints_goes_when_the_run_goes_on(copy):
    for name in ("000000000051.partial", "000000000070.partial"):
        (copy / "checkpoints" / name).mkdir()
    with pytest.raises(Interrupt):
        resume(copy, on_step=interrupt_at(51))
    assert checkpoints(copy) == ["000000000049", "000000000050"]


def test_stopping_writes_a_checkpoint_of_the_step_it_stopped_at(copy):
    def stop(runs):
        if runs.step == 57:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped) as stopped:
        resume(copy, on_step=stop)
    assert stopped.value.signal == signal.SIGTERM
    assert checkpoints(copy) == ["000000000050", "000000000057"]


def test_checkpoints_come_no_more_often_than_asked_for(tmp_path):
    config = resolve("two-moons", LABELS, "pi", **QUICK, checkpoint_seconds=600.0)
    with pytest.raises(Interrupt):
        run(config, tmp_path / "run", on_step=interrupt_at(50))
    assert checkpoints(tmp_path / "run") == []


def test_a_run_from_an_index_file_goes_on_with_its_own_copy(tmp_path, undisturbed, unpainted):
    """The same labels as drawn, by file; the file is another when the run goes on."""
    split = tmp_path / "labels.txt"
    split.write_bytes(undisturbed("pi+sntg")["split.txt"])
    config = resolve("two-moons", "all", "pi+sntg", **QUICK, split_file=str(split), checkpoint_seconds=0.0)
    with pytest.raises(Interrupt):
        run(config, tmp_path / "run", on_step=interrupt_at(30))
    want_checkpoints(tmp_path / "run", 600.0)
    split.write_text("0 1\n1 1\n")
    resume(tmp_path / "run")
    for name in ("model.safetensors", "metrics.jsonl", "validation.txt"):
        assert (tmp_path / "run" / name).read_bytes() == undisturbed("pi+sntg")[name]


@pytest.mark.parametrize("began", [1, 30], ids=["before a checkpoint", "after one"])
@pytest.mark.parametrize("line", ["", "{row} {other}\n"], ids=["a label less", "another label"])
def test_labels_that_were_changed_in_the_runs_own_copy_are_refused(tmp_path, undisturbed, began, line):
    (tmp_path / "labels.txt").write_bytes(undisturbed("pi+sntg")["split.txt"])
    split_file, every = str(tmp_path / "labels.txt"), 0.0 if began > 1 else 600.0
    config = resolve("two-moons", "all", "pi+sntg", **QUICK, split_file=split_file, checkpoint_seconds=every)
    with pytest.raises(Interrupt):
        run(config, tmp_path / "run", on_step=interrupt_at(began))
    *lines, last = (tmp_path / "run/split.txt").read_text().splitlines(keepends=True)
    row, label = map(int, last.split())
    (tmp_path / "run/split.txt").write_text("".join(lines) + line.format(row=row, other=1 - label))
    before = {name: (tmp_path / "run" / name).read_bytes() for name in files(tmp_path / "run")}
    with pytest.raises(UsageError, match=r"what the run was started with: put the split file '.*split\.txt' back"):
        resume(tmp_path / "run")
    assert {name: (tmp_path / "run" / name).read_bytes() for name in files(tmp_path / "run")} == before


def test_so_are_they_where_the_settings_do_not_tell_and_nothing_is_touched(tmp_path, undisturbed):
    (tmp_path / "labels.txt").write_bytes(undisturbed("pi+sntg")["split.txt"])
    split_file, folder = str(tmp_path / "labels.txt"), tmp_path / "run"
    config = resolve("two-moons", "all", "pi+sntg", **QUICK, split_file=split_file, checkpoint_seconds=0.0)
    with pytest.raises(Interrupt):
        run(config, folder, on_step=interrupt_at(30))
    (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | {"split_hash": ""})
    )
    (folder / "split.txt").write_text((folder / "split.txt").read_text().rpartition("\n")[0].rpartition("\n")[0])
    (folder / "checkpoints/000000000099.partial").mkdir()
    (folder / "checkpoints/000000000099.partial/000.safetensors").touch()
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    with pytest.raises(UsageError, match="the labels, or the points held out, are not what the run was started with"):
        resume(folder)
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


def test_a_run_of_an_earlier_version_goes_on_and_stops_and_goes_on(copy, undisturbed, unpainted):
    """It has no hash of its split, and its config.json stays as it is; its later checkpoints have one."""
    config = json.loads((copy / "config.json").read_text()) | {"checkpoint_seconds": 0.0}
    del config["split_hash"]
    (copy / "config.json").write_text(json.dumps(config))
    stored = read_latest(copy)
    for settings in stored.facts["settings"]:
        del settings["split_hash"]
    write_checkpoint(copy, stored.step, stored.tensors, stored.facts)
    for step in (52, 60):
        with pytest.raises(Interrupt):
            resume(copy, on_step=interrupt_at(step))
    resume(copy)
    assert ended_like(copy, undisturbed("pi+sntg"))


@pytest.mark.parametrize("file", [False, True], ids=["drawn", "from a file"])
def test_the_points_held_out_are_listed_again(tmp_path, undisturbed, unpainted, file):
    (tmp_path / "labels.txt").write_bytes(undisturbed("pi+sntg")["split.txt"])
    labels = {"labels": "all", "split_file": str(tmp_path / "labels.txt")} if file else {"labels": LABELS}
    config = resolve("two-moons", method="pi+sntg", **QUICK, **labels, checkpoint_seconds=0.0)
    with pytest.raises(Interrupt):
        run(config, tmp_path / "run", on_step=interrupt_at(3))
    (tmp_path / "run/validation.txt").write_text("")
    resume(tmp_path / "run")
    rows = [line for line in undisturbed("pi+sntg")["validation.txt"].decode().splitlines() if line[0] != "#"]
    assert (tmp_path / "run/validation.txt").read_text().splitlines()[2:] == rows


def test_labels_that_were_drawn_are_listed_again(copy, undisturbed, unpainted):
    (copy / "split.txt").write_text("")
    resume(copy)
    assert ended_like(copy, undisturbed("pi+sntg"))


def test_a_setting_that_was_changed_is_named_before_what_comes_of_it(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"seed": 7}))
    with pytest.raises(UsageError, match=r"seed is 7 in the run's config\.json and was 0 when its checkpoint"):
        resume(copy)


def test_a_file_in_place_of_the_checkpoints_is_told_before_anything_is_trained(copy):
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints").touch()
    with pytest.raises(UsageError, match="checkpoints' is a file"):
        resume(copy, on_step=lambda runs: pytest.fail("nothing is to be trained"))


def test_other_data_than_the_run_began_with_are_refused_and_nothing_is_touched(copy):
    config = json.loads((copy / "config.json").read_text())
    assert len(config["data_hash"]) == 64
    (copy / "config.json").write_text(json.dumps(config | {"data_hash": "0" * 64}))
    before = {name: (copy / name).read_bytes() for name in files(copy)}
    with pytest.raises(UsageError, match="two-moons is not what the run was started with"):
        resume(copy)
    assert {name: (copy / name).read_bytes() for name in files(copy)} == before


def test_so_are_they_where_only_the_checkpoint_tells(copy, monkeypatch):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"data_hash": "", "split_hash": ""}))
    before = {name: (copy / name).read_bytes() for name in files(copy)}
    draw = INPUTS.load_dataset
    monkeypatch.setattr(INPUTS, "load_dataset", lambda name, seed, data: draw(name, seed + 1, data))
    monkeypatch.setattr(RUN, "Stack", None)  # nor is anything compiled first
    with pytest.raises(UsageError, match=r"^the data are not .*: put the data, or the settings in the run's config"):
        resume(copy)
    assert {name: (copy / name).read_bytes() for name in files(copy)} == before


def test_what_a_process_killed_in_the_midst_of_a_file_has_left_goes(copy, unpainted):
    (copy / "figures").mkdir()
    for name in ("model.safetensors.4711.partial", "figures/curves.png.4711.partial", "thesis.mp4.partial"):
        (copy / name).write_text("half")
    resume(copy)
    assert [p.name for p in copy.rglob("*.partial")] == ["thesis.mp4.partial"]


def test_a_run_asked_to_stop_while_it_writes_its_last_checkpoint_does(copy, monkeypatch, unpainted):
    write = RUN._checkpoint

    def asked(runs, home):
        write(runs, home)
        if runs.finished:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(RUN, "_checkpoint", asked)
        with pytest.raises(Stopped):
            resume(copy)
    assert not RunFolder(copy).finished
    resume(copy)
    assert RunFolder(copy).finished


def test_two_at_work_on_one_run_are_refused(copy):
    before = files(copy)
    with RunFolder(copy).locked(), pytest.raises(UsageError, match="another process is at work on the run"):
        resume(copy)
    assert files(copy) == before
    with pytest.raises(Interrupt):
        resume(copy, on_step=interrupt_at(52))


def test_a_run_that_another_process_finishes_just_before_it_is_locked_is_left_as_it_is(copy, monkeypatch):
    """Without a second look it would be begun all over: a finished run has no checkpoints."""

    @contextmanager
    def finish_first(folder):
        shutil.rmtree(copy / "checkpoints")
        (copy / "figures").mkdir()
        for name in ("model.safetensors", "figures/curves.png"):
            (copy / name).touch()
        yield

    lines = (copy / "metrics.jsonl").read_text()
    monkeypatch.setattr(RunFolder, "locked", finish_first)
    with pytest.raises(UsageError, match="is finished"):
        resume(copy)
    assert (copy / "metrics.jsonl").read_text() == lines


# --- damage ----------------------------------------------------------------------------------------------------------


def hurt(path, how):
    whole = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] if how == "cut" else whole[:middle] + b"\xff\xfe" + whole[middle + 2 :])


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("name", ["manifest.json", "000.safetensors"])
def test_with_a_damaged_newest_checkpoint_the_one_before_leads_to_the_same_end(copy, undisturbed, unpainted, name, how):
    newest = copy / "checkpoints/000000000050"
    assert sorted(os.listdir(newest)) == ["000.safetensors", "manifest.json"]
    hurt(newest / name, how)
    told = []
    resume(copy, on_damage=told.append)
    assert len(told) == 1
    assert str(newest) in told[0]
    assert ended_like(copy, undisturbed("pi+sntg"))


def test_a_damaged_checkpoint_of_a_later_step_does_not_outlive_those_written_since(copy):
    (copy / "checkpoints/000000000050").rename(copy / "checkpoints/000000000070")
    hurt(copy / "checkpoints/000000000070/manifest.json", "gone")
    want_checkpoints(copy, 0.0)
    with pytest.raises(Interrupt):
        resume(copy, on_step=interrupt_at(53))
    assert checkpoints(copy) == ["000000000051", "000000000052"]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs `sntg ARGUMENTS` in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sntg", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return call


def test_a_damaged_checkpoint_is_named_on_stderr_and_the_run_ends_as_it_should(copy, undisturbed, unpainted, cli):
    hurt(copy / "checkpoints/000000000050/manifest.json", "flipped")
    code, out, err = cli("resume", copy)
    assert code == 0
    first, how, *rest = err.splitlines()
    assert how == "engine eager, float32, on cpu"
    assert first == (
        f"sntg: the checkpoint {str(copy / 'checkpoints/000000000050')!r} is damaged "
        "(manifest.json is not what was written) and is not used"
    )
    assert [line.split("  ")[0] for line in rest] == [f"epoch {epoch}/4" for epoch in (3, 4)]
    assert out.endswith(f"run folder: {copy}\n")
    assert ended_like(copy, undisturbed("pi+sntg"))


def test_where_every_checkpoint_is_damaged_a_sentence_says_what_to_do_and_it_helps(copy, undisturbed, unpainted, cli):
    for name in checkpoints(copy):
        hurt(copy / "checkpoints" / name / "000.safetensors", "cut")
    code, out, err = cli("resume", copy)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        f"sntg: no checkpoint of the run {str(copy)!r} is whole: "
        f"remove {str(copy / 'checkpoints')!r} to start the run over"
    )
    shutil.rmtree(copy / "checkpoints")
    assert cli("resume", copy)[0] == 0
    assert ended_like(copy, undisturbed("pi+sntg"))


@pytest.mark.parametrize(("key", "value"), [("method", "vat+sntg"), ("lr", 0.1), ("batch", 40)])
def test_settings_changed_after_the_checkpoint_are_refused(copy, cli, key, value):
    config = json.loads((copy / "config.json").read_text())
    extra = {"labelled_batch": 6} if value == "vat+sntg" else {}
    (copy / "config.json").write_text(json.dumps(config | {key: value} | extra))
    code, out, err = cli("resume", copy)
    assert (code, out) == (2, "")
    assert err.startswith(f"sntg: {key} is {value} in the run's config.json and was {config[key]} when")


def test_a_config_that_is_no_config_is_refused(copy, cli):
    (copy / "config.json").write_text("[" * 100_000)
    code, out, err = cli("resume", copy)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "config.json" in err


def test_a_run_killed_before_it_had_settings_leaves_its_folder_free(tmp_path, unpainted):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("split.txt", "validation.txt", ".lock"):
        (folder / name).write_text("")
    run(resolve("two-moons", LABELS, "pi", **QUICK | {"epochs": 1}), folder)
    assert "model.safetensors" in files(folder)


def test_a_finished_run_is_refused_and_what_was_left_of_its_checkpoints_is_removed(tmp_path, unpainted, cli):
    run(resolve("two-moons", LABELS, "pi", **QUICK | {"epochs": 1}), tmp_path / "run")
    before = files(tmp_path / "run")
    shutil.copytree(tmp_path / "run/figures", tmp_path / "run/checkpoints/000000000020")
    code, out, err = cli("resume", tmp_path / "run")
    assert (code, out) == (2, "")
    assert err == f"sntg: the run {str(tmp_path / 'run')!r} is finished: there is nothing to resume\n"
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize("make", ["missing", "empty", "file"])
def test_what_is_no_run_folder_is_refused_and_left_alone(tmp_path, cli, make):
    folder = tmp_path / "x"
    if make == "empty":
        folder.mkdir()
    elif make == "file":
        folder.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = cli("resume", folder)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(folder) in err
    assert "config.json" in err
    assert sorted(tmp_path.rglob("*")) == before


# --- killed ----------------------------------------------------------------------------------------------------------


def newest_step(folder):
    """The step of the newest whole checkpoint, 0 if there is none."""
    return max((int(name) for name in checkpoints(folder) if name.isdigit()), default=0)


def writing(folder):
    return any(name.endswith(".partial") for name in checkpoints(folder))


def train_arguments(folder, method, seconds):
    return ["train", *ARGUMENTS, "--method", method, "--set", f"checkpoint_seconds={seconds}", "--out", folder]


@dataclass(frozen=True)
class Landed:
    """Where a kill fell: the step of the newest checkpoint then, and whether another was being written."""

    step: int
    writing: bool

    @property
    def mid_epoch(self):
        return self.step % EPOCH != 0


def kill_training(folder, method, after, seconds, moment=0.0, in_writing=False):
    """Kills a training process when it has a checkpoint of step `after` or later, `moment` seconds after or while it
    writes one."""
    process = Sntg(folder.with_name(f"{folder.name}-train"), *train_arguments(folder, method, seconds))
    ready = (folder / "config.json").exists if not after else lambda: newest_step(folder) >= after
    assert process.wait_for(ready), process.err
    time.sleep(moment)
    if in_writing:
        process.wait_for(lambda: writing(folder))
    assert process.kill() == -signal.SIGKILL, process.err
    return Landed(newest_step(folder), writing(folder))


def resume_process(folder):
    process = Sntg(folder.with_name(f"{folder.name}-resume"), "resume", folder)
    assert process.wait() == 0, process.err
    return process


@pytest.mark.parametrize(
    ("method", "after", "seconds"),
    [("pi+sntg", 0, 60), ("tempens+sntg", 25, 0.02), ("mt+sntg", 45, 0)],
    ids=["before its first checkpoint", "in mid-epoch after one", "while it writes one"],
)
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, undisturbed, method, after, seconds):
    folder = tmp_path / "run"
    landed = kill_training(folder, method, after, seconds, in_writing=seconds == 0)
    assert (landed.step > 0) == (after > 0)
    resume_process(folder)
    assert outcome(folder) == undisturbed(method)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pi+sntg", "tempens+sntg", "mt+sntg", "vat+ent+sntg"])
def test_killed_at_twenty_moments_a_run_goes_on_to_the_same_bits(tmp_path, undisturbed, method):
    """Fourteen at random after a random step, six while a checkpoint is being written.

    Every other of the fourteen has a checkpoint after each step. Those of the rest are all of an epoch's end where an
    epoch is over sooner than a checkpoint is due.
    """
    chance = random.Random(f"moments of {method}")
    landed = []
    for number in range(20):
        folder = tmp_path / str(number)
        after, in_writing = chance.randint(1, 55), number >= 14
        seconds = 0 if in_writing or number % 2 else 0.03
        landed.append(kill_training(folder, method, after, seconds, chance.uniform(0, 0.04), in_writing))
        print(f"{method}, kill {number}: {landed[-1]}, mid-epoch: {landed[-1].mid_epoch}")
        resume_process(folder)
        assert outcome(folder) == undisturbed(method), landed[-1]
    assert len({kill.step for kill in landed}) >= 10
    assert sum(kill.mid_epoch and kill.step > 0 for kill in landed) >= 10
    assert sum(kill.writing for kill in landed) >= 3


@pytest.mark.slow
def test_python_m_sntg_itself_can_be_killed_and_gone_on_with(tmp_path, undisturbed):
    """The others start from a process that has the package imported already."""
    environment = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sntg", *map(str, train_arguments("run", "pi+sntg", 0.01))]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 100
        while not newest_step(tmp_path / "run") and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert newest_step(tmp_path / "run") > 0
    resume_process(tmp_path / "run")
    assert outcome(tmp_path / "run") == undisturbed("pi+sntg")


# --- asked to stop ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_asked_to_stop_writes_a_checkpoint_says_how_to_go_on_and_does(tmp_path, undisturbed, number, code):
    folder = tmp_path / "my run"
    process = Sntg(tmp_path / "log", *train_arguments(folder, "pi+sntg", 600))
    assert process.wait_for(lambda: (folder / "metrics.jsonl").exists())
    process.send(number)
    assert process.wait() == code
    assert process.out == ""
    assert process.err.splitlines()[-1] == f"sntg: stopped; `sntg resume '{folder}'` goes on"
    assert len(checkpoints(folder)) == 1
    assert EPOCH <= newest_step(folder) < STEPS
    resume_process(folder)
    assert outcome(folder) == undisturbed("pi+sntg")


@pytest.fixture
def busy(tmp_path):
    """A run whose first step takes minutes, in its first step."""
    folder = tmp_path / "run"
    arguments = train_arguments(folder, "vat", 0)
    process = Sntg(tmp_path / "log", *arguments, "--set", "power_iterations=200000")
    assert process.wait_for(lambda: process.hears(signal.SIGTERM))  # it trains: SIGINT has a handler from the start
    yield folder, process
    if process.running:
        process.kill()


def test_a_second_ctrl_c_stops_at_once(busy):
    folder, process = busy
    process.send(signal.SIGINT)
    time.sleep(0.3)
    assert process.running  # it waits for the end of the step
    while process.running:  # signals that come too close count as one
        process.send(signal.SIGINT)
        time.sleep(0.3)
    assert process.wait() == 130
    assert process.err == f"sntg: stopped; `sntg resume {folder}` goes on from its last checkpoint\n"
    assert checkpoints(folder) == []


def test_a_second_process_on_the_same_run_is_refused_while_the_first_is_at_work(busy, cli):
    folder, process = busy
    before = files(folder)
    code, out, err = cli("resume", folder)
    assert (code, out) == (2, "")
    assert err == f"sntg: another process is at work on the run {str(folder)!r}: let it finish first\n"
    code, out, err = cli(*train_arguments(folder, "vat", 0))
    assert (code, out) == (2, "")
    assert "not empty" in err
    assert process.running
    assert files(folder) == before
    process.kill()
    with RunFolder(folder).locked():  # a killed process holds nothing
        pass


# --- out of space ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own, of a size that can be set."""
    place = tmp_path / "disk"
    place.mkdir()

    def size(kib):
        options = f"size={kib}k" + (",remount" if place.is_mount() else "")
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        try:
            done = subprocess.run(command, capture_output=True)
        except OSError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip("a file system of one's own needs the rights of root")
        return place

    yield size
    if place.is_mount():
        subprocess.run(["umount", str(place)], check=True)


def assert_stopped_for_want_of_space(process, folder, words):
    assert process.wait() == 1
    assert process.out == ""
    last = process.err.splitlines()[-1]
    assert last.startswith(f"sntg: stopped by the system: [Errno {words}")
    assert last.endswith(f"; `sntg resume {folder}` goes on when there is room again")
    assert "Traceback" not in process.err
    assert not [name for name in files(folder) if "partial" in name]


@pytest.mark.parametrize(("kib", "where"), [(1000, "at a checkpoint"), (500, "at the features")])
def test_a_run_whose_disk_is_full_goes_on_to_the_same_bits_when_there_is_room(
    tmp_path, undisturbed, small_disk, kib, where
):
    """A checkpoint has some 350 KB: two fit, and the third no more; or one, with the weights, but not the features."""
    folder = small_disk(kib) / "run"
    seconds = 0 if where == "at a checkpoint" else 600
    process = Sntg(tmp_path / "log", *train_arguments(folder, "pi+sntg", seconds))
    assert_stopped_for_want_of_space(process, folder, f"{errno.ENOSPC}] No space left on device")
    if where == "at a checkpoint":
        assert checkpoints(folder) == ["000000000001", "000000000002"]
        assert "model.safetensors" not in files(folder)
        again = Sntg(tmp_path / "again", "resume", folder)  # and the disk is as full as before
        assert_stopped_for_want_of_space(again, folder, f"{errno.ENOSPC}] No space left on device")
        assert checkpoints(folder) == ["000000000001", "000000000002"]
    else:
        assert checkpoints(folder) == [f"{STEPS:012d}"]
        assert "model.safetensors" in files(folder)
        assert "features.safetensors" not in files(folder)
    small_disk(20000)
    resume_process(folder)
    assert outcome(folder) == undisturbed("pi+sntg")


def test_a_run_that_may_not_write_large_files_stops_and_goes_on_when_it_may(tmp_path, undisturbed):
    folder = tmp_path / "run"
    process = Sntg(tmp_path / "log", *train_arguments(folder, "pi+sntg", 0.1), file_limit=200_000)
    assert_stopped_for_want_of_space(process, folder, f"{errno.EFBIG}] File too large")
    assert checkpoints(folder) == []
    resume_process(folder)
    assert outcome(folder) == undisturbed("pi+sntg")
