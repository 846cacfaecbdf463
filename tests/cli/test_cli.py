"""The command line itself, and its commands that list things."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import FINISHED, HOW, QUICK, files, train

import sntg
from sntg import terminal
from sntg.data import CATALOGUE
from sntg.methods import METHODS
from sntg.models import build
from sntg.training import resolve
from sntg.training.config import ARGUMENTS

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
    asked_for = resolve("two-moons", 12, "pi", seed=4, epochs=2, batch=1000)
    written |= {"split_hash": sntg.load_inputs(asked_for).split.content_hash, "engine": "eager", "precision": "float32"}
    assert config == asked_for.as_dict() | written
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


def test_the_demo_command_runs_the_demo(cli, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sys.modules["sntg.cli.app"], "run_demo", lambda out, seed: asked.append((out, seed)))
    assert cli("demo")[0] == 0
    assert cli("demo", "--out", tmp_path, "--seed", 5)[0] == 0
    assert asked == [(Path("sntg-demo"), 0), (tmp_path, 5)]


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
