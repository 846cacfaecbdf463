"""Seeds that take turns: each ends in the bytes it would end in alone, whatever becomes of the others."""

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from engine_runs import leave_out_figures

from sntg.errors import DivergenceError
from sntg.training import RunFolder, Stopped, resolve, resume_series, run, run_series, seeds_done
from sntg.training.lanes import Lane
from sntg.training.series import AT_ONCE, runs_at_once

BYTES = ("model.safetensors", "metrics.jsonl", "features.safetensors", "split.txt", "config.json")
STEPS = 4  # of each of these runs


def digits(seed, **settings):
    return resolve("digits", 50, "pi", seed, **{"epochs": 2, "epoch_steps": 2, **settings})


@pytest.fixture
def in_turns(monkeypatch):
    """Up to three seeds take turns, as they do on a GPU; the figures, which take longest, are left out."""
    monkeypatch.setattr("sntg.training.series.runs_at_once", lambda config: 3)
    leave_out_figures(monkeypatch)


@pytest.fixture
def alone(in_turns, tmp_path_factory):
    """What the run with some seed leaves when it is alone."""

    def result(seed, **settings):
        folder = tmp_path_factory.mktemp("alone") / "run"
        run(digits(seed, **settings), folder)
        return outcome(folder)

    return result


def outcome(folder):
    return {name: (folder / name).read_bytes() for name in BYTES}


def follow(told):
    """A callback that tells who took which step."""
    return lambda stack: told.append((stack.configs[0].seed, stack.step))


def send_at(moment, number):
    """A callback that sends a signal when a run has taken a step."""

    def on_step(stack):
        if (stack.configs[0].seed, stack.step) == moment:
            os.kill(os.getpid(), number)

    return on_step


def assert_unlocked(folder):
    with RunFolder(folder).locked():
        pass


def test_convolutional_nets_take_turns_on_a_gpu_alone():
    nets = [("small", "cuda"), ("conv13", "cuda:1"), ("small", "cpu"), ("mlp", "cuda"), ("mlp", "cpu")]
    numbers = [runs_at_once(SimpleNamespace(model=model, device=device)) for model, device in nets]
    assert numbers == [AT_ONCE, AT_ONCE, 1, 1, 1]


def test_seeds_in_turns_end_in_the_bytes_of_each_alone(tmp_path, in_turns, alone):
    """They draw: batches, shifts, noise and dropout."""
    told, records = [], []
    torch.manual_seed(3)
    before = torch.get_rng_state()
    seeds = (5, 2, 7, 0)
    trained = run_series([digits(seed) for seed in seeds], tmp_path, records.append, follow(told))
    assert len({id(run.data) for run in trained}) == 1  # ten seeds of 50,000 images need the memory of one
    assert torch.equal(torch.get_rng_state(), before)
    assert [t.config.seed for t in trained] == list(seeds)
    rounds = [(seed, step) for step in range(1, STEPS + 1) for seed in seeds[:3]]
    assert told == rounds + [(seeds[3], step) for step in range(1, STEPS + 1)]
    assert [[r["epoch"] for r in together] for together in records] == [[1, 1, 1], [2, 2, 2], [1], [2]]
    for seed in seeds:
        assert outcome(tmp_path / f"seed-{seed}") == alone(seed)
    assert not list(tmp_path.glob("**/checkpoints"))


def test_without_room_seeds_come_one_after_the_other_to_the_same_bytes(tmp_path, in_turns, alone, monkeypatch):
    told = []
    monkeypatch.setattr(Lane, "has_room", lambda lane, runs: False)
    run_series([digits(seed) for seed in (1, 2)], tmp_path, on_step=follow(told))
    assert [seed for seed, _ in told] == [1] * STEPS + [2] * STEPS
    assert outcome(tmp_path / "seed-2") == alone(2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_all_that_train_write_a_checkpoint_and_go_on_to_the_same_bytes(tmp_path, in_turns, alone, number):
    handler = signal.getsignal(number)
    configs = [digits(seed) for seed in range(4)]
    with pytest.raises(Stopped) as stopped:
        run_series(configs, tmp_path, on_step=send_at((1, 3), number))
    assert stopped.value.signal == number
    assert signal.getsignal(number) is handler
    written = [[p.name for p in (tmp_path / f"seed-{seed}/checkpoints").iterdir()] for seed in range(3)]
    assert written == [["000000000004"], ["000000000003"], ["000000000003"]]  # each at the end of its own next step
    assert not (tmp_path / "seed-3").exists()
    told = []
    trained = resume_series(tmp_path, on_step=follow(told))
    assert [t.config.seed for t in trained] == [0, 1, 2, 3]
    assert told == [(1, 4), (2, 4), *((3, step) for step in range(1, STEPS + 1))]  # the first had only to finish
    for seed in range(4):
        assert outcome(tmp_path / f"seed-{seed}") == alone(seed)


def test_a_signal_that_comes_while_a_seed_is_finished_lets_it_and_begins_no_other(tmp_path, in_turns, monkeypatch):
    monkeypatch.setattr("sntg.training.series.runs_at_once", lambda config: 1)
    save = RunFolder.save_features

    def send(folder, *results):
        save(folder, *results)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "save_features", send)
    with pytest.raises(Stopped):
        run_series([digits(0), digits(1)], tmp_path)
    assert seeds_done(tmp_path) == 1
    assert RunFolder(tmp_path / "seed-0").finished
    assert not (tmp_path / "seed-1").exists()


def test_a_seed_that_diverges_leaves_its_lane_and_the_others_as_they_are(tmp_path, in_turns, alone, monkeypatch):
    """The kernels a run asks for are the whole process's: they stay what they are until the last one is done."""
    cudnn = torch.backends.cudnn
    for name, value in {"deterministic": False, "benchmark": True, "allow_tf32": True}.items():
        monkeypatch.setattr(cudnn, name, value)
    settings, told = set(), []

    def on_step(stack):
        settings.add((cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32))
        follow(told)(stack)

    configs = [digits(seed, epochs=3) for seed in range(4)]
    configs[0] = replace(configs[0], lr=1e30)
    with pytest.raises(DivergenceError, match=r"^seed 0: .* at step 3$"):
        run_series(configs, tmp_path, on_step=on_step)
    assert told.index((1, 4)) < told.index((3, 1)) < told.index((1, 5))  # it took the place of the first
    assert settings == {(True, False, False)}
    assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (False, True, True)
    assert_unlocked(tmp_path / "seed-0")
    for seed in (1, 2, 3):
        assert outcome(tmp_path / f"seed-{seed}") == alone(seed, epochs=3)


def test_an_error_in_one_ends_all_and_leaves_folders_that_can_be_gone_on_with(tmp_path, in_turns, alone):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    configs = [digits(seed, checkpoint_seconds=0.0) for seed in range(3)]
    told = []

    def fail(stack):
        follow(told)(stack)
        assert len(told) < 5, "the fifth step"

    with pytest.raises(AssertionError, match="the fifth step") as raised:  # it refers to all that was open
        run_series(configs, tmp_path, on_step=fail)
    assert torch.equal(torch.get_rng_state(), before)
    for folder in (tmp_path, *(tmp_path / f"seed-{seed}" for seed in range(3))):
        assert_unlocked(folder)
    resume_series(tmp_path)
    for seed in range(3):
        assert outcome(tmp_path / f"seed-{seed}") == alone(seed, checkpoint_seconds=0.0)
    assert raised.value is not None  # so nothing was closed by chance
