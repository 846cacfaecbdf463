"""What the terminal shows of a run or a series: a bar with the time left, or plain lines where there is none."""

import re
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from command_line import HOW, QUICK, train
from rich.console import Console
from rich.progress import Progress

from sntg import terminal
from sntg.cli import progress
from sntg.errors import DivergenceError
from sntg.training import resolve


def test_without_a_terminal_progress_is_one_plain_line_at_a_time(cli, tmp_path):
    """The longest there are: four terms and an error."""
    code, _, err = cli(*train(tmp_path / "RUN", *QUICK, "--set", "batch=3000", method="pi+ent+sntg"))
    assert code == 0
    how, *lines = err.splitlines()
    assert how == HOW
    assert len(lines) == 2
    for epoch, line in enumerate(lines, start=1):
        assert line.startswith(f"epoch {epoch}/2  error ")
        assert all(f"  {term} " in line for term in ("supervised", "consistency", "entropy", "sntg"))
    assert "\x1b" not in err


def test_how_it_trains_is_said_before_the_first_epoch_even_if_that_is_one_step(cli, tmp_path):
    code, _, err = cli(*train(tmp_path / "RUN", *QUICK, "--set", "epoch_steps=1"))
    assert code == 0
    assert [line.split()[0] for line in err.splitlines()] == ["engine", "epoch", "epoch"]


def test_a_long_run_prints_some_twenty_lines_and_the_last_epoch(tmp_path, monkeypatch, capsys):
    def pretend(config, out, on_epoch, on_step):
        for epoch in range(1, config.epochs + 1):
            on_epoch({"epoch": epoch, "loss": {"supervised": 0.5}, "error": None})
        last = {"ema_error": 2.0, "student_error": 1.5}
        return SimpleNamespace(config=config, error=1.5, history=[last], data=SimpleNamespace(test_y=range(7)))

    monkeypatch.setattr(progress, "run", pretend)
    progress.train_with_progress([resolve("two-moons", 12, "pi", epochs=47)], tmp_path)
    out, err = capsys.readouterr()
    assert [line.split()[1] for line in err.splitlines()] == [f"{epoch}/47" for epoch in [*range(2, 47, 2), 47]]
    assert "1.50 % error on 7 test points (averaged weights 2.00, raw 1.50)\n" in out


def test_on_a_terminal_there_is_a_bar_with_the_time_left(tmp_path, monkeypatch, capsys):
    screen = StringIO()
    monkeypatch.setattr(progress, "Console", lambda **options: Console(file=screen, force_terminal=True, width=150))
    config = resolve("two-moons", 12, "pi", epochs=2, batch=3000)
    progress.train_with_progress([config], tmp_path / "RUN")
    assert "100%" in screen.getvalue()
    assert "supervised" in screen.getvalue()
    assert "0:00:00" in screen.getvalue()
    assert "epoch 1/2" not in screen.getvalue()
    assert "run folder" in capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_cuts_the_losses_short_and_nothing_else(width):
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=width)
    losses = {"supervised": 0.5, "consistency": 0.25, "entropy": 1.0, "sntg": 1.5}
    with terminal.progress_bar(console) as bar:
        bar.add_task(progress.describe([{"loss": losses, "error": 2.5}]), total=10, completed=3)
    last = re.sub(r"\x1b\[[?0-9]*[a-zA-Z]", "", screen.getvalue()).split("\r")[-1].rstrip("\n")
    assert " 30% 0:00:00 -:--:-- error 2.50 % " in last
    assert len(last) <= width


def test_on_a_terminal_the_losses_are_shown_within_an_epoch_too(tmp_path, monkeypatch):
    """One epoch: what is shown before its end can only be the losses so far. Each is painted at once: a fast run may
    be over before the bar paints itself anew."""
    screen, update = StringIO(), Progress.update
    monkeypatch.setattr(Progress, "update", lambda bar, *task, **to: update(bar, *task, refresh=True, **to))
    monkeypatch.setattr(progress, "Console", lambda **options: Console(file=screen, force_terminal=True, width=150))
    monkeypatch.setattr(progress, "GLANCE", 0.0)
    monkeypatch.setattr(progress, "describe", lambda records: "done")
    progress.train_with_progress([resolve("two-moons", 12, "pi", epochs=1, batch=100)], tmp_path / "RUN")
    assert "supervised 0.0" in screen.getvalue()
    assert "consistency 0.0" in screen.getvalue()


def test_of_a_pass_with_a_seed_that_diverged_the_losses_of_another_are_shown(monkeypatch):
    monkeypatch.setattr(progress, "GLANCE", 0.0)
    console, configs = (
        Console(file=StringIO(), force_terminal=True),
        [resolve("two-moons", 12, "pi", s) for s in (0, 1)],
    )
    log = SimpleNamespace(steps=2, means=lambda: [{"supervised": float("nan")}, {"supervised": 0.5}])
    how = {"steps": 9, "epoch_steps": 3, "log": log, "device": torch.device("cpu")}
    with terminal.progress_bar(console) as bar:
        display = progress.Display(configs, console, bar)
        display.on_step(SimpleNamespace(configs=configs, living=[1], step=3, **how))
        assert bar.tasks[0].description == "supervised 0.5000"
        display.on_epoch([{"epoch": 1, "loss": {"supervised": 0.5}, "error": 3.0}])
        assert bar.tasks[0].description == "seed 1  error 3.00 %  supervised 0.5000"


def test_when_a_seed_has_diverged_the_others_errors_are_told(cli, tmp_path, monkeypatch):
    def diverges(*arguments):
        raise DivergenceError("seed 1: the supervised loss became nan at step 3")

    monkeypatch.setattr(progress, "run_series", diverges)
    monkeypatch.setattr(progress, "is_series", lambda out: True)
    monkeypatch.setattr(progress, "final_errors", lambda out: {0: 1.5, 2: 2.0})
    code, out, err = cli(*train(tmp_path / "RUN", *QUICK, "--seeds", "0-2"))
    assert code == 1
    assert out == "seed 0: 1.50 % error\nseed 2: 2.00 % error\n"
    assert err.splitlines()[-1] == "sntg: seed 1: the supervised loss became nan at step 3"


def test_a_gpu_is_not_asked_within_an_epoch(monkeypatch):
    monkeypatch.setattr(progress, "GLANCE", 0.0)
    console, config = Console(file=StringIO(), force_terminal=True), resolve("two-moons", 12, "pi")
    log = SimpleNamespace(steps=3, means=lambda: pytest.fail("it was asked"))
    gpu = SimpleNamespace(configs=[config], steps=9, step=3, epoch_steps=4, log=log, device=torch.device("cuda"))
    with terminal.progress_bar(console) as bar:
        progress.Display([config], console, bar).on_step(gpu)
        assert bar.tasks[0].completed == 3


def test_the_bar_of_a_series_is_about_all_its_seeds_whoever_trains():
    console, configs = (
        Console(file=StringIO(), force_terminal=True),
        [resolve("two-moons", 12, "pi", s) for s in range(4)],
    )
    still = {"steps": 9, "epoch_steps": 3, "log": SimpleNamespace(steps=0), "device": torch.device("cpu")}
    stacks = [SimpleNamespace(configs=[config], living=[0], **still) for config in configs]
    with terminal.progress_bar(console) as bar:
        display = progress.Display(configs, console, bar, done=1)
        seen = []
        for number, step in [(1, 1), (2, 1), (1, 2), (2, 9), (3, 4)]:  # the first was done before
            stacks[number].step = step
            display.on_step(stacks[number])
            seen.append(bar.tasks[0].completed)
        assert seen == [10, 11, 12, 20, 24]
        assert bar.tasks[0].total == 36
        progress.Display(configs, console, bar).on_step(
            SimpleNamespace(configs=configs, living=range(len(configs)), step=3, **still)
        )  # in one pass
        assert (bar.tasks[1].completed, bar.tasks[1].total) == (3, 9)


def test_an_epoch_names_the_seeds_where_not_all_of_a_series_are_at_it():
    """Two train at once, one behind the other; then the third alone; then all in one pass."""
    screen, configs = StringIO(), [resolve("two-moons", 12, "pi", seed, epochs=2) for seed in range(3)]
    still = {"steps": 6, "epoch_steps": 3, "log": SimpleNamespace(steps=0), "device": torch.device("cpu")}
    console = Console(file=screen)
    with terminal.progress_bar(console) as bar:
        display = progress.Display(configs, console, bar)
        display.unspoken = False
        for seeds, epoch in (((0, 1), 1), ((0,), 2), ((1,), 2), ((2,), 1), ((0, 1, 2), 2)):
            stacks = [[configs[s]] for s in seeds] if len(seeds) < 3 else [configs]
            for stack in stacks:
                for step in (3 * epoch - 1, 3 * epoch):
                    display.on_step(SimpleNamespace(configs=stack, living=range(len(stack)), step=step, **still))
            display.on_epoch([{"epoch": epoch, "loss": {"supervised": 0.5}, "error": None} for _ in seeds])
    lines = [line.strip() for line in screen.getvalue().splitlines() if line.startswith("epoch")]
    assert lines == [
        "epoch 1/2  seeds 0, 1  supervised 0.5000",
        "epoch 2/2  seed 0  supervised 0.5000",
        "epoch 2/2  seed 1  supervised 0.5000",
        "epoch 1/2  seed 2  supervised 0.5000",
        "epoch 2/2  supervised 0.5000",
    ]


def test_a_series_gone_on_with_knows_the_seeds_that_are_done(cli, tmp_path, monkeypatch):
    displays = []

    class Watched(progress.Display):
        def __init__(self, configs, console, bar, done):
            super().__init__(configs, console, bar, done)
            displays.append((len(configs), done))

    monkeypatch.setattr(progress, "Display", Watched)
    monkeypatch.setattr(progress, "resume_series", lambda *arguments: [])
    monkeypatch.setattr(progress, "final_errors", lambda out: {0: 1.0, 2: 2.0})
    assert cli(*train(tmp_path / "RUN", *QUICK, "--seeds", "0-2"))[0] == 0
    (tmp_path / "RUN/seed-1/model.safetensors").unlink()
    assert cli("resume", tmp_path / "RUN")[0] == 0
    assert displays == [(3, 0), (3, 2)]


@pytest.mark.parametrize(
    ("error", "words"),
    [(None, "supervised 0.1235  sntg 2.0000"), (3.456, "error 3.46 %  supervised 0.1235  sntg 2.0000")],
)
def test_an_epoch_is_described_by_its_terms_and_its_error(error, words):
    assert progress.describe([{"loss": {"supervised": 0.12345, "sntg": 2.0}, "error": error}]) == words


def test_an_epoch_of_several_seeds_is_described_by_the_first_ones_terms_and_their_mean_error():
    records = [{"loss": {"supervised": loss}, "error": error} for loss, error in ((0.5, 1.0), (0.7, 4.0))]
    assert progress.describe(records) == "error 2.50 %  supervised 0.5000"
