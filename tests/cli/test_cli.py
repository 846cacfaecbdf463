"""The command line: what it prints, what it leaves behind, and the code it ends with."""

import errno
import json
import os
import subprocess
import sys
import warnings
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from command_line import BEGUN, HOW, QUICK, assert_refused, files, train

import sntg
from sntg import terminal
from sntg.cli import progress
from sntg.data import CATALOGUE
from sntg.methods import METHODS
from sntg.models import build
from sntg.training import engines, loop, resolve
from sntg.training.config import ARGUMENTS

FINISHED = sorted([*BEGUN, "features.safetensors", "figures", "model.safetensors"])
SET_OR_SCALED = ["batch", "epochs", "graph_ramp", "graph_start", "ramp_down", "ramp_up"]
COMMANDS = ["train", "resume", "recipe", "split", "demo", "bench", "methods", "datasets", "models", "data"]
SOURCE = str(Path(sntg.__file__).parents[1])


def python_m_sntg(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sntg", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, **options)


# --- the command itself ----------------------------------------------------------------------------------------------


def test_a_name_that_the_terminal_has_no_letters_for_is_printed_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = python_m_sntg("split", "two-moons", "--labels", 12, "--out", "é.txt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\\xe9.txt" in done.stdout
    assert files(tmp_path) == ["é.txt"]


def test_python_m_sntg_trains_into_a_folder(tmp_path):
    done = python_m_sntg(*train("RUN", *QUICK, "--seed", 4, "--device", "cpu"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == ["RUN"]
    assert files(tmp_path / "RUN") == FINISHED
    config = json.loads((tmp_path / "RUN/config.json").read_text())
    written = {"data_hash": sntg.load_dataset("two-moons", 4).content_hash, "overridden": SET_OR_SCALED}
    written |= {"engine": "eager", "precision": "float32"}
    assert config == resolve("two-moons", 12, "pi", seed=4, epochs=2, batch=1000).as_dict() | written
    last = json.loads((tmp_path / "RUN/metrics.jsonl").read_text().splitlines()[-1])
    assert done.stdout == (
        f"pi on two-moons, 12 labels, seed 4: {last['error']:.2f} % error on 6000 test points "
        f"(averaged weights {last['ema_error']:.2f}, raw {last['student_error']:.2f})\nrun folder: RUN\n"
    )
    assert [line.split("  ")[0] for line in done.stderr.splitlines()] == [HOW, "epoch 1/2", "epoch 2/2"]


def test_a_command_that_draws_nothing_does_not_wait_for_what_draws():
    """Nor for scikit-learn: both take longer to load than the rest of the package."""
    code = "import sys, sntg.cli; print({'matplotlib', 'sklearn'} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "set()\n"


def test_the_version(cli):
    assert cli("--version") == (0, f"sntg {sntg.__version__}\n", "")


def test_without_a_command_it_explains_itself(cli):
    _, out, err = cli()
    assert all(f" {command} " in out + err for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli, command):
    code, out, _ = cli(command, "--help")
    assert code == 0
    assert command in out


# --- lists -----------------------------------------------------------------------------------------------------------


def test_methods_as_json(cli):
    code, out, err = cli("methods", "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [row["method"] for row in rows] == [*METHODS, "sntg", "+ent", "+sntg"]
    assert all(row["what"] for row in rows)


def test_datasets_as_json(cli):
    code, out, err = cli("datasets", "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [row["dataset"] for row in rows] == list(CATALOGUE)
    assert {"two-moons", "four-spins", "digits", "svhn", "cifar10"} <= set(CATALOGUE)
    by_name = {row["dataset"]: row for row in rows}
    assert (by_name["digits"]["training"], by_name["digits"]["test"], by_name["digits"]["classes"]) == (1198, 599, 10)
    for name in ("two-moons", "four-spins", "digits"):
        row, data = by_name[name], sntg.load_dataset(name)
        assert (row["training"], row["test"], row["classes"]) == (len(data.train_x), len(data.test_x), data.classes)
        assert row["on disk"] == "built in"


def test_datasets_says_what_is_on_disk_in_the_folder_named(cli, tmp_path):
    rows = {row["dataset"]: row for row in json.loads(cli("datasets", "--json", "--data", tmp_path)[1])}
    assert rows["svhn"]["on disk"] == "no"
    assert str(tmp_path) in rows["svhn"]["where"]
    said = cli("datasets", "--data", tmp_path)[1]
    assert all(f"\n{name}: {row['where']}\n" in said for name, row in rows.items() if row["where"])
    assert "\ndigits: " not in said
    (columns,) = {tuple(row) for row in rows.values()}
    assert columns == ("dataset", "training", "test", "classes", "on disk", "size on disk", "where", "what")


def test_a_recipe_has_a_row_for_every_setting_with_its_source(cli):
    code, out, err = cli("recipe", "cifar10", "pi+sntg", "--labels", 4000, "--set", "k=0.25", "--json")
    rows = {row["setting"]: row for row in json.loads(out)}
    assert (code, err) == (0, "")
    config = resolve("cifar10", 4000, "pi+sntg", k=0.25)
    assert rows.keys() == set(config.as_dict()) - ARGUMENTS
    assert (rows["k"]["value"], rows["k"]["source"]) == ("0.25", "you")
    assert (rows["epochs"]["value"], rows["epochs"]["source"]) == ("300", "paper")
    assert {row["source"] for row in rows.values()} >= {"paper", "ours", "you"}
    assert all(
        row["value"] == (f"{v:g}" if isinstance(v := getattr(config, n), float) else str(v)) for n, row in rows.items()
    )


def test_a_recipe_depends_on_the_number_of_labels(cli):
    def w_max(labels):
        rows = json.loads(cli("recipe", "svhn", "tempens", "--labels", labels, "--json")[1])
        return next(row["value"] for row in rows if row["setting"] == "w_max")

    assert [w_max(labels) for labels in (250, 500)] == ["50", "30"]


def test_the_networks_are_shown_layer_by_layer(cli):
    code, out, err = cli("models", "--input", "3x32x32", "--json")
    tables = json.loads(out)
    assert (code, err) == (0, "")
    assert list(tables) == ["mlp", "small", "conv13"]
    for name, rows in tables.items():
        counted = sum(p.numel() for p in build(name, (3, 32, 32), 10, 0.15, 0.5).parameters())
        assert sum(row["parameters"] for row in rows[:-1]) == rows[-1]["parameters"] == counted
    _, table, _ = cli("models", "--input", "1x28x28", "--classes", 3)
    assert all(name in table for name in tables)


def test_a_split_is_written_to_be_trained_on(cli, tmp_path):
    path = tmp_path / "labels.txt"
    code, out, err = cli("split", "two-moons", "--labels", 20, "--seed", 5, "--kind", "unbalanced", "--out", path)
    assert (code, out, err) == (0, f"20 labelled rows of two-moons in {path}\n", "")
    assert path.read_text().startswith("# two-moons, 20 labels, seed 5, unbalanced, 0 % noise\n# index class\n")
    rows = [line.split() for line in path.read_text().splitlines()[2:]]
    truth = sntg.load_dataset("two-moons", 5).train_y
    assert len({row for row, _ in rows}) == 20
    assert all(int(truth[int(row)]) == int(label) for row, label in rows)
    done = cli(*train(tmp_path / "RUN", *QUICK, "--split", path, "--seed", 5, labels=None))
    assert done[0] == 0, done
    assert done[1].startswith("pi on two-moons, 20 labels, seed 5: ")
    assert (tmp_path / "RUN/split.txt").read_text().splitlines()[2:] == path.read_text().splitlines()[2:]


@pytest.mark.parametrize("command", ["methods", "datasets"])
def test_the_table_has_the_same_names_unbroken(cli, command):
    _, table, _ = cli(command)
    for row in json.loads(cli(command, "--json")[1]):
        assert f" {row[command.removesuffix('s')]} " in table


def test_numbers_stand_to_the_right_and_a_title_on_top(capsys):
    terminal.print_table([{"name": "a", "points": 5}, {"name": "b", "points": 1234}], title="Sizes")
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.strip() == "Sizes"
    assert any("    5 " in row for row in rows)


# --- a run -----------------------------------------------------------------------------------------------------------


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


def test_an_engine_that_does_not_work_is_told_in_a_sentence(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main puts its own in
    monkeypatch.setitem(engines.ENGINES, "compiled", lambda step: 1 / 0)
    code, _, err = cli(*train(tmp_path / "RUN", *QUICK, "--engine", "compiled"))
    assert code == 0
    first, how, *_ = err.splitlines()
    assert first == "sntg: the compiled engine does not work here, so eager runs instead: division by zero"
    assert how == HOW
    assert json.loads((tmp_path / "RUN/config.json").read_text())["engine"] == "eager"


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
    def stop(config):
        raise KeyboardInterrupt

    monkeypatch.setattr("sntg.training.loop.load_inputs", stop)
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


def test_the_demo_command_runs_the_demo(cli, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sys.modules["sntg.cli.app"], "run_demo", lambda out, seed: asked.append((out, seed)))
    assert cli("demo")[0] == 0
    assert cli("demo", "--out", tmp_path, "--seed", 5)[0] == 0
    assert asked == [(Path("sntg-demo"), 0), (tmp_path, 5)]


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
