"""Benches small enough for a test: tiny batches and nets, data in CIFAR-10's shapes but few, one step a round."""

import json
import sys
from dataclasses import replace

import pytest

from sntg.bench import cases
from sntg.bench.starting import Start
from sntg.cli import main

SMALL = {"batch": 4, "bn_batches": 0, "model": "small"}


def small_config(case, device):
    config = cases.config_of(case, device)
    labelled = {"labelled_batch": 3} if config.labelled_batch else {}
    return replace(config, **labelled, **(SMALL if case.dataset != "two-moons" else {"batch": 20}))


def small_inputs(config):
    few = config.dataset == cases.IMAGES
    return cases.random_images(20, "cpu", points=40, test_points=10) if few else cases.inputs_of(config)


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    """Results go to the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(monkeypatch):
    """Runs of the bench are tiny."""
    measure = sys.modules["sntg.bench.measure"]
    monkeypatch.setattr(measure, "config_of", small_config)
    monkeypatch.setattr(measure, "inputs_of", small_inputs)
    monkeypatch.setattr(measure, "start_anew", lambda case, device: Start(30.0, 0.5))
    monkeypatch.setattr(measure, "kept_bytecode", lambda folder, device: {})
    monkeypatch.setattr(measure, "matrix_rate", lambda precision, device: 2.0)
    monkeypatch.setattr(measure, "UNMEASURED", 1)
    monkeypatch.setattr(measure, "release", lambda device: None)  # it looks through all of memory


@pytest.fixture
def call(monkeypatch):
    """`sntg bench` with these words; the exit code."""

    def calling(*words):
        monkeypatch.setattr(sys, "argv", ["sntg", "bench", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    return calling


@pytest.fixture
def read():
    """What the one file of results in a folder holds; its plot is there, too."""

    def reading(folder):
        (path,) = folder.glob("*.json")
        assert path.with_suffix(".png").exists()
        return json.loads(path.read_text())

    return reading
