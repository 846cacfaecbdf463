"""What a person types that cannot be: exit code 2, one sentence, and nothing left behind."""

import json
from pathlib import Path

import pytest
from command_line import assert_refused, files, train


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "pi+sngt"}, ["method 'pi+sngt'", "'pi+sntg'"]),
        ({"method": "pi+sntg+sntg"}, ["'pi+sntg+sntg'", "twice"]),
        ({"dataset": "two-mons"}, ["dataset 'two-mons'", "'two-moons'"]),
        ({"labels": 6002}, ["6002 labels", "6000"]),
        ({"labels": 13}, ["13 labels", "2 classes"]),
        ({"labels": 1}, ["1 labels", "without a label"]),
        ({"labels": 0}, ["0 labels", "without a label"]),
        ({"dataset": "digits", "labels": 25}, ["25 labels", "10 classes"]),
        ({"dataset": "digits", "labels": 1190}, ["class", "fewer than the 119 labels"]),
    ],
)
def test_bad_arguments(cli, tmp_path, arguments, words):
    assert_refused(cli(*train(tmp_path / "RUN", **arguments)), *words)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["epoch=2"], ["key 'epoch'", "'epochs'"]),
        (["seed=1"], ["seed", "--set"]),
        (["epochs"], ["'epochs'", "key=value"]),
        (["epochs=two"], ["epochs = 'two'", "whole number"]),
        (["epochs=0"], ["epochs = 0"]),
        (["lr=high"], ["lr = 'high'", "number"]),
        (["lr=nan"], ["lr = nan"]),
        (["lr=inf"], ["lr = inf"]),
        (["noise=inf"], ["noise = inf"]),
        (["temperature=nan"], ["temperature = nan"]),
        (["label_factor=maybe"], ["label_factor = 'maybe'"]),
        (["margin=-1"], ["margin = -1.0"]),
        (["margin=0"], ["margin = 0"]),
        (["batch=1"], ["batch = 1"]),
        (["batch=7000"], ["batch = 7000", "6000"]),
        (["batch=10", "pairs=random", "n_pairs=91"], ["n_pairs = 91", "90"]),
        (["pairs=hlaf"], ["pairs 'hlaf'", "'half'"]),
        (["graph=fixed"], ["fixed_from"]),
        (["graph=fixed", "fixed_from=nowhere"], ["nowhere'", "config.json"]),
        (["graph=knn", "neighbours=6000"], ["6000"]),
        (["model=small"], ["SmallNet", "model=mlp"]),
        (["translate=2"], ["translate = 2"]),
        (["epoch_steps=2000000000"], ["epoch_steps = 2000000000", "1000000"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else None,
)
def test_bad_settings(cli, tmp_path, monkeypatch, settings, words):
    monkeypatch.setattr("sntg.training.loop.Stack.advance", lambda *a: pytest.fail("work was begun"))
    options = [part for setting in settings for part in ("--set", setting)]
    assert_refused(cli(*train(tmp_path / "RUN", *options, method="pi+sntg")), *words)
    assert files(tmp_path) == []


def test_a_recipe_says_what_is_set_and_what_was_scaled_with_it(cli):
    _, out, _ = cli("recipe", "cifar10", "pi+sntg", "--labels", 4000, "--set", "epochs=30", "--set", "k=0.1", "--json")
    rows = {row["setting"]: (row["value"], row["source"]) for row in json.loads(out)}
    assert rows["epochs"] == ("30", "you")
    assert rows["k"] == ("0.1", "you")
    assert rows["ramp_up"] == ("8", "scaled with epochs")
    assert rows["lr"] == ("0.003", "paper")
    assert rows["pairs"] == ("half", "SNTG code")


@pytest.mark.parametrize("device", ["tpu", "cuda", "mps"])
def test_bad_devices(cli, tmp_path, monkeypatch, device):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert_refused(cli(*train(tmp_path / "RUN", "--device", device)), f"device = '{device}'")
    assert files(tmp_path) == []


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_bad_seeds(cli, tmp_path, seed):
    assert_refused(cli(*train(tmp_path / "RUN", "--seed", seed)), f"seed = {seed}")
    assert_refused(cli("demo", "--out", tmp_path / "demo", "--seed", seed), f"seed = {seed}")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "two-moons"], ["--labels", "how many labels"]),
        (["train", "two-moons", "--labels", "12.5"], ["--labels '12.5'"]),
        (["train", "two-moons", "--labels", "\u00b2"], ["neither a whole number"]),
        (["train", "two-moons", "--labels=--5"], ["--labels '--5'"]),
        (["train", "two-moons", "--labels", "9" * 400], ["neither a whole number"]),
        (["train", "two-moons", "--labels", "12", "--set", "epochs=1" + "0" * 400], ["epochs = 1000"]),
        (["train", "two-moons", "--labels", "12", "--set", "batch=0", "--set", "labelled_batch=9000"], ["epoch_steps"]),
        (["train", "two-moons", "--labels", "12", "--validation", "-1"], ["validation = -1"]),
        (["train", "two-moons", "--labels", "12", "--validation", "6000"], ["validation = 6000", "6000 points"]),
        (["train", "two-moons", "--labels", "12", "--validation", "5990"], ["10"]),
        (["train", "two-moons", "--split", "nowhere.txt"], ["'nowhere.txt'"]),
        (["train", "two-moons", "--split", "nowhere.txt", "--set", "label_noise=10"], ["'nowhere.txt'"]),
        (["recipe", "two-mons", "pi", "--labels", "12"], ["'two-moons'"]),
        (["recipe", "two-moons", "pie", "--labels", "12"], ["'pi'"]),
        (["recipe", "two-moons", "pi", "--labels", "12", "--set", "kk=1"], ["key 'kk'"]),
        (["split", "two-moons", "--labels", "13", "--out", "s.txt"], ["13 labels"]),
        (["split", "two-moons", "--labels", "12", "--seed", "-1", "--out", "s.txt"], ["seed = -1"]),
        (["split", "two-moons", "--labels", "12", "--seed", "9" * 14, "--out", "s.txt"], ["seed = 9999"]),
        (["split", "two-moons", "--labels", "12", "--out", "s.txt", "--kind", "balancd"], ["'balanced'"]),
        (["split", "two-moons", "--labels", "12", "--out", "s.txt", "--noise", "101"], ["101"]),
        (["split", "two-moons", "--labels", "12", "--out", "nowhere/s.txt"], ["'nowhere/s.txt'"]),
        (["models", "--input", "3x32"], ["'3x32'", "3x32x32"]),
        (["models", "--input", "3x0x32"], ["'3x0x32'"]),
        (["models", "--input", "1x8x8"], ["8x8", "16x16"]),
        (["models", "--classes", "1"], ["--classes 1"]),
        (["models", "--classes", "100000000000"], ["--classes 100000000000"]),
        (["models", "--input", "99999999x32x32"], ["--input 99999999x32x32"]),
        (["models", "--normalisation", "bach"], ["'batch'"]),
        (["resume", "nowhere"], ["'nowhere'", "config.json"]),
        (["resume", "n" * 300], ["cannot be read", "File name too long"]),
    ],
    ids=lambda value: " ".join(value) if "train" in value or len(value) > 1 else None,
)
def test_bad_usage_of_the_other_options_and_commands(cli, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sntg.training.loop.Stack.advance", lambda *a: pytest.fail("work was begun"))
    assert_refused(cli(*arguments), *words)
    assert files(tmp_path) == []


def test_an_output_folder_that_is_not_empty(cli, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert_refused(cli(*train(tmp_path)), str(tmp_path), "not empty")
    assert files(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("command", ["train", "demo"])
@pytest.mark.parametrize("below", [".", "RUN", "deep/RUN"])
def test_an_output_folder_that_is_or_lies_below_a_file(cli, tmp_path, command, below):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / below
    assert_refused(cli(*train(out)) if command == "train" else cli("demo", "--out", out), str(out), "cannot be made")
    assert files(tmp_path) == ["file"]


def test_an_output_folder_that_is_not_writable(cli, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    assert_refused(cli(*train(tmp_path / "RUN")), "cannot be written: Read-only file system")
    assert files(tmp_path) == []


def test_a_demo_folder_that_is_not_writable(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "touch", lambda *a, **k: (_ for _ in ()).throw(PermissionError(13, "denied")))
    monkeypatch.setattr("sntg.demo.train_all", lambda *a: pytest.fail("work was begun"))
    assert_refused(cli("demo", "--out", tmp_path), str(tmp_path), "cannot be written")


@pytest.mark.parametrize(
    "arguments", [["trane"], ["train"], ["train", "two-moons", "--labels", "many", "--out", "x"], ["methods", "--jsn"]]
)
def test_what_is_no_command_line(cli, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err
    assert files(tmp_path) == []
