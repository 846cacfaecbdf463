"""`sntg train`: what it prints, what it leaves behind, and the code it ends with."""

import errno
import json
import sys
import warnings
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from command_line import BEGUN, FINISHED, HOW, QUICK, assert_refused, files, train

import sntg
from sntg.cli import NO_MEMORY, progress
from sntg.training import engines, loop


def test_settings_reach_the_run_and_the_folder_loads(cli, tmp_path):
    settings = [
        *QUICK,
        "--set",
        "lr=0.002",
        "--set",
        "label_factor=false",
        "--set",
        "pairs=random",
        "--set",
        "n_pairs=7",
    ]
    code, out, _ = cli(*train(tmp_path / "RUN", *settings, "--seed", 3, method="PI+SNTG"))
    assert code == 0
    values = json.loads((tmp_path / "RUN/config.json").read_text())
    wanted = {"lr": 0.002, "label_factor": False, "pairs": "random", "n_pairs": 7, "seed": 3, "method": "pi+sntg"}
    assert {key: values[key] for key in wanted} == wanted
    model, data = sntg.load(tmp_path / "RUN"), sntg.load_dataset("two-moons", 3)
    wrong = (model(data.test_x).logits.argmax(-1) != data.test_y).float().mean()
    assert f"pi+sntg on two-moons, 12 labels, seed 3: {100 * wrong:.2f} % error" in out


def test_the_method_is_pi_with_sntg_unless_said_otherwise(cli, tmp_path):
    code, out, _ = cli("train", "two-moons", "--labels", 12, "--out", tmp_path / "RUN", *QUICK)
    assert code == 0
    assert out.startswith("pi+sntg on two-moons")


def test_all_labels_may_be_kept(cli, tmp_path):
    code, out, _ = cli(*train(tmp_path / "RUN", *QUICK, labels="all", method="supervised"))
    assert code == 0
    assert out.startswith("supervised on two-moons, 6000 labels, seed 0: ")


def test_points_held_out_take_the_test_sets_place(cli, tmp_path):
    code, out, _ = cli(*train(tmp_path / "RUN", *QUICK, "--validation", 700))
    assert code == 0
    assert " % error on 700 held-out training points (averaged weights " in out
    assert len((tmp_path / "RUN/validation.txt").read_text().splitlines()) == 702


def test_tensorboard_is_written_on_request(cli, tmp_path):
    code, _, _ = cli(*train(tmp_path / "RUN", *QUICK, "--tensorboard"))
    assert code == 0
    assert files(tmp_path / "RUN") == sorted([*FINISHED, "tensorboard"])


def test_without_a_folder_the_run_goes_where_its_name_says(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, out, _ = cli("train", "two-moons", "--labels", 12, "--method", "pi", "--seed", 2, *QUICK)
    assert out.endswith("run folder: runs/two-moons-12-pi-2\n")
    assert files(tmp_path / "runs") == ["two-moons-12-pi-2"]
    assert files(tmp_path / "runs/two-moons-12-pi-2") == FINISHED
    assert_refused(cli("train", "two-moons", "--labels", 12, "--method", "pi", "--seed", 2, *QUICK), "not empty")


def test_a_full_gpu_is_told_in_a_sentence(cli, tmp_path, monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB")

    monkeypatch.setattr(loop.Batches, "__init__", full)
    code, _, err = cli(*train(tmp_path / "RUN", *QUICK))
    assert code == 1
    assert err.splitlines()[-1].startswith("sntg: the GPU's memory is full: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "room"),
    [
        (
            RuntimeError(f"[enforce fail] {NO_MEMORY}: you tried to allocate {2**31} bytes."),
            ", there is no room for 2.0 GiB",
        ),
        (MemoryError(), ""),
    ],
)
def test_a_full_memory_is_told_in_a_sentence(cli, tmp_path, monkeypatch, error, room):
    def full(*arguments):
        raise error

    monkeypatch.setattr(loop.Batches, "__init__", full)
    code, _, err = cli(*train(tmp_path / "RUN", *QUICK))
    assert code == 1
    assert (
        err.splitlines()[-1] == f"sntg: the memory is full{room}: make room, or use smaller batches (--set batch=...)"
    )
    assert "Traceback" not in err


def test_what_pytorch_says_of_anything_else_is_not_swallowed(cli, tmp_path, monkeypatch):
    """A mistake of ours is to be seen as one."""

    def fail(*arguments):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(loop.Batches, "__init__", fail)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        cli(*train(tmp_path / "RUN", *QUICK))


def test_a_notice_that_python_was_told_to_make_an_error_of_is_a_sentence(cli, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, _, err = cli(*train(tmp_path / "RUN", *QUICK, "--precision", "bfloat16"))
    assert code == 1
    assert err.splitlines()[-1].startswith("sntg: precision = bfloat16 is that of convolutions")
    assert "Traceback" not in err


def test_an_engine_that_does_not_work_is_told_in_a_sentence(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main puts its own in
    monkeypatch.setitem(engines.ENGINES, "compiled", lambda step: 1 / 0)
    code, _, err = cli(*train(tmp_path / "RUN", *QUICK, "--engine", "compiled"))
    assert code == 0
    first, how, *_ = err.splitlines()
    assert first == "sntg: the compiled engine does not work here, so eager runs instead: division by zero"
    assert how == HOW
    assert json.loads((tmp_path / "RUN/config.json").read_text())["engine"] == "eager"


def test_what_every_seed_of_a_series_finds_is_told_once(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main puts its own in
    monkeypatch.setitem(engines.ENGINES, "compiled", lambda step: 1 / 0)
    small = ["--set", "epochs=1", "--set", "epoch_steps=1", "--engine", "compiled"]
    for folder in ("ONE", "OTHER"):  # and by the next command anew
        code, _, err = cli("train", "digits", "--labels", "20", *small, "--seeds", "0-1", "--out", tmp_path / folder)
        assert code == 0
        assert err.count("the compiled engine does not work here") == 1


def test_several_seeds_make_a_series_with_a_line_for_each_and_their_mean(cli, tmp_path):
    code, out, err = cli(*train(tmp_path / "RUN", *QUICK, "--seeds", "4,2"))
    assert code == 0
    *runs, together, folder = out.splitlines()
    assert [line.split(": ")[0] for line in runs] == [f"pi on two-moons, 12 labels, seed {seed}" for seed in (4, 2)]
    assert together.startswith("2 seeds: ")
    assert folder == f"run folder: {tmp_path / 'RUN'}"
    assert files(tmp_path / "RUN") == ["seed-2", "seed-4", "series.json"]
    assert "Traceback" not in err


def test_one_seed_of_several_that_could_be_is_a_series_too(cli, tmp_path):
    code, out, _ = cli(*train(tmp_path / "RUN", *QUICK, "--seeds", "4"))
    assert code == 0
    assert "seeds:" not in out
    assert files(tmp_path / "RUN") == ["seed-4", "series.json"]


def test_a_precision_that_the_network_has_no_use_for_is_told(cli, tmp_path):
    code, _, err = cli(*train(tmp_path / "RUN", *QUICK, "--precision", "bfloat16"))
    assert code == 0
    first, how, *_ = err.splitlines()
    assert first == "sntg: precision = bfloat16 is that of convolutions, and the mlp has none: it computes in float32"
    assert how == HOW


def test_a_seed_beside_several_is_refused(cli, tmp_path):
    result = cli(*train(tmp_path / "RUN", *QUICK, "--seeds", "0-1", "--seed", "0"))
    assert_refused(result, "--seed 0 and --seeds 0-1: give one of them")


@pytest.mark.parametrize(
    ("seeds", "name"), [("0, 2", "0,2"), ("0-9", "0-9"), (",".join(map(str, range(0, 400, 2))), "200-seeds")]
)
def test_a_folder_is_named_by_the_seeds_unless_they_are_many(cli, monkeypatch, seeds, name):
    told = []
    monkeypatch.setattr(
        sys.modules["sntg.cli.app"], "train_with_progress", lambda configs, out, series: told.append(out)
    )
    assert cli("train", "two-moons", "--labels", "12", "--seeds", seeds)[0] == 0
    assert told == [Path("runs") / f"two-moons-12-pi+sntg-{name}"]


@pytest.mark.parametrize("seeds", ["", "3-1", "a", "0,0"])
def test_seeds_that_are_none_are_refused(cli, tmp_path, seeds):
    assert_refused(cli(*train(tmp_path / "RUN", *QUICK, "--seeds", seeds)), f"--seeds '{seeds}'")


# --- runs that do not end well ---------------------------------------------------------------------------------------


def test_a_loss_that_turns_nan_ends_with_code_1_and_keeps_what_was_saved(cli, tmp_path):
    settings = ["--set", "lr=1e30", "--set", "epochs=9", "--set", "batch=6000", "--set", "ramp_up=0"]
    code, out, err = cli(*train(tmp_path / "RUN", *settings))
    assert code == 1
    assert out == ""
    assert err.splitlines()[-1].startswith("sntg: the supervised loss became nan at step ")
    assert "Traceback" not in err
    assert files(tmp_path / "RUN") == BEGUN
    kept = [json.loads(line)["epoch"] for line in (tmp_path / "RUN/metrics.jsonl").read_text().splitlines()]
    assert kept == list(range(1, err.count("epoch ") + 1))
    assert kept


@pytest.mark.parametrize("name", ["RUN", "a-rather-long-name-" * 8, "run[bold]"])
def test_ctrl_c_ends_with_code_130_and_keeps_and_names_the_folder(cli, tmp_path, monkeypatch, name):
    def stop(records):
        if records[0]["epoch"] == 2:
            raise KeyboardInterrupt
        return "going on"

    monkeypatch.setattr(progress, "describe", stop)
    code, out, err = cli(*train(tmp_path / name, "--set", "epochs=9", "--set", "batch=3000"))
    assert code == 130
    assert out == ""
    assert "Traceback" not in err
    quoted = f"'{tmp_path / name}'" if "[" in name else tmp_path / name
    assert err.splitlines()[-1] == f"sntg: stopped; `sntg resume {quoted}` goes on from its last checkpoint"
    assert files(tmp_path / name) == BEGUN
    assert len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) == 2


def test_ctrl_c_before_training_has_begun_has_nothing_to_go_on_with(cli, tmp_path, monkeypatch):
    def stop(*what):
        raise KeyboardInterrupt

    monkeypatch.setattr("sntg.training.inputs.load_dataset", stop)
    assert cli(*train(tmp_path / "RUN")) == (130, "", "sntg: stopped\n")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "when there is room again"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "when there is room again"),
        (OSError(errno.EIO, "Input/output error"), "when that is put right"),
    ],
)
def test_a_run_the_system_stops_says_why_and_how_to_go_on(cli, tmp_path, monkeypatch, error, cure):
    def fail(folder, record):
        raise error

    monkeypatch.setattr("sntg.training.run_folder.RunFolder.add_metrics", fail)
    code, out, err = cli(*train(tmp_path / "RUN", *QUICK))
    assert (code, out) == (1, "")
    why = f"sntg: stopped by the system: {error}; `sntg resume {tmp_path / 'RUN'}` goes on {cure}"
    assert err == f"{HOW}\n{why}\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (BrokenProcessPool(), "a worker process was"),
    ],
)
def test_what_the_system_does_to_a_run_ends_in_one_sentence_and_code_1(cli, monkeypatch, tmp_path, error, words):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(sys.modules["sntg.cli.app"], "train_with_progress", fail)
    code, _, err = cli("train", "two-moons", "--labels", "12", "--out", tmp_path / "run")
    assert code == 1
    assert words in err
    assert len(err.splitlines()) == 1
