"""Several seeds of one run: in one pass or one after the other, interrupted or not, each in a folder of its own."""

import errno
import json
import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_runs import leave_out_figures

from sntg.errors import DivergenceError, UsageError
from sntg.training import (
    RunFolder,
    Stopped,
    final_errors,
    load,
    load_inputs,
    read_seeds,
    resolve,
    resume,
    resume_series,
    run,
    run_series,
)
from sntg.training.checkpoints import write_checkpoint
from sntg.training.run import ONE_PASS
from sntg.training.run_folder import SERIES

SEEDS = (3, 1, 4)


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    leave_out_figures(monkeypatch)


def moons(seed, **settings):
    return resolve("two-moons", 12, "pi+sntg", seed, **{"epochs": 3, "batch": 1500, **settings})


def digits(seed, labels=50, method="pi", **settings):
    return resolve("digits", labels, method, seed, epochs=2, epoch_steps=2, **settings)


class Interrupted(Exception):
    pass


def interrupt_after(steps):
    """A callback that stops the whole series after some steps, wherever they were taken."""
    left = [steps]

    def on_step(stack):
        left[0] -= 1
        if not left[0]:
            raise Interrupted

    return on_step


def contents(folder):
    """What a finished run has found out."""
    weights = {name: tensor.clone() for name, tensor in load(folder).state_dict().items()}
    return (folder / "metrics.jsonl").read_text(), weights


def same(a, b):
    return a[0] == b[0] and all(torch.equal(a[1][name], b[1][name]) for name in a[1])


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-3", [0, 1, 2, 3]), ("7", [7]), ("5,2-3", [5, 2, 3]), (" 1 , 0 ", [1, 0]), ("4-4", [4])]
)
def test_seeds_are_read_in_the_order_they_are_written(text, seeds):
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-", "-3", "1,,2", "0-3,2", "1.5", "0-2000", "0--2", "0-999,1000"])
def test_what_are_no_seeds_is_refused_and_repeated(text):
    with pytest.raises(UsageError, match=f"--seeds {text!r}"):
        read_seeds(text)


@pytest.mark.parametrize("text", ["9" * 5000, "0-" + "9" * 5000])
def test_of_what_is_much_too_long_the_beginning_is_repeated(text):
    with pytest.raises(UsageError, match=re.escape(f"--seeds '{text[:40]}...' is not of the form")):
        read_seeds(text)


@pytest.mark.parametrize("make", [moons, digits])
def test_every_seed_has_a_finished_run_folder_with_its_own_split_and_weights(tmp_path, make):
    trained = run_series([make(seed) for seed in SEEDS], tmp_path)
    assert [t.config.seed for t in trained] == list(SEEDS)
    folders = [tmp_path / f"seed-{seed}" for seed in SEEDS]
    assert all(RunFolder(folder).finished for folder in folders)
    assert [json.loads((f / "config.json").read_text())["seed"] for f in folders] == list(SEEDS)
    assert len({(f / "split.txt").read_text().split("\n", 1)[1] for f in folders}) == len(SEEDS)
    assert not same(contents(folders[0]), contents(folders[1]))
    assert not list(tmp_path.glob("**/checkpoints"))


def test_seeds_that_come_one_after_the_other_are_the_runs_they_would_be_alone(tmp_path):
    assert "small" not in ONE_PASS
    run_series([digits(seed) for seed in (1, 2)], tmp_path / "series")
    run(digits(2), tmp_path / "alone")
    assert same(contents(tmp_path / "series/seed-2"), contents(tmp_path / "alone"))


def test_seeds_in_one_pass_share_their_data_and_initial_weights_with_the_run_alone(tmp_path):
    """What the seed decides; the random streams of training are the stack's."""
    configs = [moons(seed, lr=0.0, epochs=1) for seed in (1, 2)]
    run_series(configs, tmp_path / "series")
    run(configs[1], tmp_path / "alone")
    (_, together), (_, alone) = contents(tmp_path / "series/seed-2"), contents(tmp_path / "alone")
    assert torch.equal(together["hidden.0.V"], alone["hidden.0.V"])
    assert (tmp_path / "series/seed-2/split.txt").read_text() == (tmp_path / "alone/split.txt").read_text()


@pytest.mark.parametrize(
    ("make", "steps"), [(moons, 1), (moons, 6), (moons, 12), (digits, 3), (digits, 4), (digits, 7)]
)
def test_an_interrupted_series_goes_on_to_the_same_bits(tmp_path, make, steps):
    configs = [make(seed) for seed in (0, 1)]
    configs = [c.__class__(**{**c.as_dict(), "checkpoint_seconds": 0.0}) for c in configs]
    run_series(configs, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run_series(configs, tmp_path / "cut", on_step=interrupt_after(steps))
    resume_series(tmp_path / "cut")
    for seed in (0, 1):
        assert same(contents(tmp_path / f"cut/seed-{seed}"), contents(tmp_path / f"whole/seed-{seed}"))


def test_a_series_stopped_while_its_folders_were_made_begins_anew(tmp_path, monkeypatch):
    started = RunFolder.start
    monkeypatch.setattr(RunFolder, "start", lambda f, c, s: started(f, c, s) if c.seed == 0 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_series([moons(0), moons(1)], tmp_path)
    monkeypatch.undo()
    assert len(resume_series(tmp_path)) == 2


@pytest.mark.parametrize("steps", [5, 12])
def test_a_series_that_has_lost_a_folder_keeps_what_is_left(tmp_path, steps):
    """Seeds that go through in one pass cannot do without one of them; nothing is deleted to begin anew."""
    cut = tmp_path / "series"
    with suppress(Interrupted):
        configs = [replace(moons(seed), checkpoint_seconds=0.0) for seed in (0, 1)]
        run_series(configs, cut, on_step=interrupt_after(steps))
    shutil.rmtree(cut / "seed-1")
    before = {path: path.stat().st_mtime_ns for path in cut.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(UsageError, match=r"seed-1' has no config\.json, though .* put it back, or begin a new series"):
        resume_series(cut)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(("kept", "now"), [([0], "0"), ([0, 1, 1], "0, 1, 2")])
def test_a_pass_does_not_go_on_with_fewer_or_more_seeds_than_it_has(tmp_path, kept, now):
    configs = [replace(moons(seed), checkpoint_seconds=0.0) for seed in (0, 1)]
    with pytest.raises(Interrupted):
        run_series(configs, tmp_path, on_step=interrupt_after(5))
    listed = json.loads((tmp_path / SERIES).read_text())
    changed = [{**listed[i], "seed": seed} for seed, i in enumerate(kept)]
    (tmp_path / SERIES).write_text(json.dumps(changed))
    if len(kept) > 2:
        shutil.copytree(tmp_path / "seed-1", tmp_path / "seed-2")
        (tmp_path / "seed-2/config.json").write_text(json.dumps(changed[2]))
    with pytest.raises(
        UsageError, match=f"lists the seeds {now}, and its checkpoint is of the seeds 0, 1: put it back"
    ):
        resume_series(tmp_path)


def test_a_seed_that_comes_after_others_and_has_lost_its_folder_is_trained_again(tmp_path):
    run_series([digits(0), digits(1)], tmp_path)
    expected = contents(tmp_path / "seed-1")
    shutil.rmtree(tmp_path / "seed-1")
    resume_series(tmp_path)
    assert same(contents(tmp_path / "seed-1"), expected)


def test_what_is_wrong_with_one_seed_is_told_with_its_number(tmp_path):
    with pytest.raises(Interrupted):
        run_series(
            [digits(3, checkpoint_seconds=0.0), digits(5, checkpoint_seconds=0.0)], tmp_path, on_step=interrupt_after(7)
        )
    path = tmp_path / "seed-5/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lr": 0.5}))
    with pytest.raises(UsageError, match=r"^seed 5: lr is 0\.5 in the run's config\.json"):
        resume_series(tmp_path)


def test_a_seed_that_comes_after_others_and_has_lost_its_settings_is_not_overwritten(tmp_path):
    run_series([digits(0), digits(1)], tmp_path)
    (tmp_path / "seed-1/config.json").unlink()
    (tmp_path / "seed-1/figures/curves.png").unlink()
    write_checkpoint(tmp_path / "seed-1", 12, {}, {})
    with pytest.raises(UsageError, match=r"seed-1' has no config\.json.*: put it back, or remove the folder"):
        resume_series(tmp_path)
    assert (tmp_path / "seed-1/model.safetensors").exists()


@pytest.mark.parametrize(("make", "home"), [(moons, "."), (digits, "seed-1")])
def test_checkpoints_that_a_kill_at_the_very_end_left_are_removed(tmp_path, make, home):
    run_series([make(0), make(1)], tmp_path)
    write_checkpoint(tmp_path / home, 12, {}, {})
    with pytest.raises(UsageError, match="is finished"):
        resume_series(tmp_path)
    assert not (tmp_path / home / "checkpoints").exists()


def test_seeds_that_are_done_are_left_alone(tmp_path):
    with pytest.raises(Interrupted):
        run_series([digits(0), digits(1)], tmp_path, on_step=interrupt_after(5))  # the second one's first step
    before = (tmp_path / "seed-0/model.safetensors").stat().st_mtime_ns
    (trained,) = resume_series(tmp_path)
    assert trained.config.seed == 1
    assert (tmp_path / "seed-0/model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("steps", [1, 6])
def test_a_seed_in_one_pass_with_others_does_not_go_on_alone(tmp_path, steps):
    """It would begin anew, with other random numbers, and the series would then overwrite it."""
    with pytest.raises(Interrupted):
        run_series([moons(0), moons(1)], tmp_path, on_step=interrupt_after(steps))
    (tmp_path / "link").symlink_to(tmp_path / "seed-1")
    for name in ("seed-1", "seed-0/../seed-1", "link"):
        with pytest.raises(UsageError, match=rf"in one pass: resume '{re.escape(str(tmp_path.resolve()))}'"):
            resume(tmp_path / name)
    assert len(resume_series(tmp_path)) == 2
    with pytest.raises(UsageError, match="is finished"):
        resume(tmp_path / "seed-1")


def test_a_run_of_its_own_beside_those_of_a_series_goes_on(tmp_path):
    run_series([moons(0)], tmp_path)
    with pytest.raises(Interrupted):
        run(moons(1), tmp_path / "extra", on_step=interrupt_after(1))
    assert resume(tmp_path / "extra").config.seed == 1


def test_a_seed_that_comes_after_others_may_go_on_alone(tmp_path):
    with pytest.raises(Interrupted):
        run_series([digits(0), digits(1)], tmp_path, on_step=interrupt_after(2))
    resume(tmp_path / "seed-0")
    (trained,) = resume_series(tmp_path)
    assert trained.config.seed == 1


@pytest.mark.parametrize("make", [moons, digits])
def test_a_series_may_be_of_one_seed(tmp_path, make):
    with pytest.raises(Interrupted):
        run_series([make(5)], tmp_path / "series", on_step=interrupt_after(2))
    (trained,) = resume_series(tmp_path / "series")
    assert trained.config.seed == 5
    run(make(5), tmp_path / "alone")
    assert same(contents(tmp_path / "series/seed-5"), contents(tmp_path / "alone"))


def test_the_errors_of_a_series_are_those_of_all_seeds_that_are_done_whenever_that_was(tmp_path):
    with pytest.raises(Interrupted):
        run_series([digits(0), digits(1)], tmp_path, on_step=interrupt_after(5))
    assert list(final_errors(tmp_path)) == [0]
    (trained,) = resume_series(tmp_path)
    errors = final_errors(tmp_path)
    assert errors.keys() == {0, 1}
    assert errors[1] == trained.error
    for text in ("", "{}\n", "[" * 9 + "\n"):
        (tmp_path / "seed-0/metrics.jsonl").write_text(text)
        with pytest.raises(UsageError, match="does not end in the metrics of a finished run"):
            final_errors(tmp_path)


def test_a_seed_that_diverges_does_not_keep_the_others_from_training(tmp_path):
    """Its own learning rate is what a stack may have of its own."""
    configs = [replace(digits(0), lr=1e30), digits(1), replace(digits(2), lr=1e30)]
    for attempt in (lambda: run_series(configs, tmp_path), lambda: resume_series(tmp_path)):
        with pytest.raises(DivergenceError, match=r"seed 0: .*; seed 2: "):
            attempt()
        assert RunFolder(tmp_path / "seed-1").finished


def break_seed_1(stack, at):
    """Its weights, the second in the stack, and their average are no numbers after a step."""
    if stack.step == at:
        for net in (stack.model, stack.objective.base.average):
            for weights in net.parameters():
                weights.data[1] = float("nan")


def test_nor_where_all_go_through_in_one_pass(tmp_path):
    """It diverges in the second of three epochs of four steps. The others train to the bits they have beside one that
    does not, also if the series is stopped on the way."""
    stop = interrupt_after(10)

    def break_and_stop(stack):
        break_seed_1(stack, at=5)
        stop(stack)

    run_series([moons(s) for s in SEEDS], tmp_path / "fine")
    words = r"^seed 1: the \w+ loss became nan at step 6$"
    with pytest.raises(DivergenceError, match=words):
        run_series([moons(s) for s in SEEDS], tmp_path / "whole", on_step=lambda stack: break_seed_1(stack, at=5))
    with pytest.raises(Interrupted):
        run_series([moons(s, checkpoint_seconds=0.0) for s in SEEDS], tmp_path / "parts", on_step=break_and_stop)
    with pytest.raises(DivergenceError, match=words):
        resume_series(tmp_path / "parts")
    for folder in (tmp_path / "whole", tmp_path / "parts"):
        assert not RunFolder(folder / "seed-1").finished
        assert [json.loads(line)["epoch"] for line in (folder / "seed-1/metrics.jsonl").open()] == [1]
        for seed in (3, 4):
            assert same(contents(folder / f"seed-{seed}"), contents(tmp_path / f"fine/seed-{seed}"))


def test_who_resumes_a_pass_with_a_seed_that_diverged_is_told_so_again_without_a_step(tmp_path):
    configs = [moons(0), replace(moons(1), lr=1e30, ramp_up=0)]
    with pytest.raises(DivergenceError, match=r"^seed 1: ") as first:
        run_series(configs, tmp_path)
    with pytest.raises(DivergenceError) as second:
        resume_series(tmp_path, on_step=interrupt_after(1))
    assert str(second.value) == str(first.value)


def test_where_all_diverge_each_is_named_and_no_more_steps_are_taken(tmp_path):
    steps = []
    configs = [moons(s, lr=1e30, ramp_up=0, epochs=50) for s in (0, 1)]
    with pytest.raises(DivergenceError, match=r"^seed 0: the .* at step \d+; seed 1: the .* at step \d+$"):
        run_series(configs, tmp_path, on_step=lambda stack: steps.append(stack.step))
    assert len(steps) < 100


def test_weights_that_are_no_numbers_after_the_last_step_are_one_seeds_own_affair(tmp_path):
    """No loss has seen them."""
    with pytest.raises(DivergenceError, match=r"^seed 1: the weights \S+ are not finite after the last step$"):
        run_series([moons(0), moons(1)], tmp_path, on_step=lambda stack: break_seed_1(stack, at=stack.steps))
    assert RunFolder(tmp_path / "seed-0").finished
    assert not (tmp_path / "seed-1/model.safetensors").exists()


@pytest.mark.parametrize("make", [moons, digits])
def test_a_seed_twice_is_refused_before_anything_is_written(tmp_path, make):
    for configs in ([make(0), make(1), make(0)], [make(2), replace(make(2), lr=0.5)]):
        with pytest.raises(UsageError, match="name one twice: the runs' folders are named by their seeds"):
            run_series(configs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_finished_series_and_what_is_none_are_refused(tmp_path):
    run_series([moons(0, epochs=1), moons(1, epochs=1)], tmp_path / "done")
    with pytest.raises(UsageError, match="nothing to resume"):
        resume_series(tmp_path / "done")
    with pytest.raises(UsageError, match="is not empty"):
        run_series([moons(0), moons(1)], tmp_path / "done")
    (tmp_path / "other").mkdir()
    twice = json.dumps([moons(0).as_dict()] * 2)
    for text in ("{}", "[" * 100_000, "[]", "[1]", '[{"no": "such setting"}]', twice):
        (tmp_path / "other" / SERIES).write_text(text)
        with pytest.raises(UsageError, match="cannot be read"):
            resume_series(tmp_path / "other")
    assert sorted(p.name for p in (tmp_path / "other").iterdir()) == [SERIES]


def test_runs_that_differ_in_more_than_what_a_stack_allows_are_refused(tmp_path):
    with pytest.raises(UsageError, match="must share epochs"):
        run_series([moons(0), moons(1, epochs=9)], tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_trained_leaves_the_folder_free(tmp_path):
    there_are_none = [resolve("mnist", 100, "pi", seed, data=str(tmp_path / "none")) for seed in (0, 1)]
    for _ in range(2):
        with pytest.raises(UsageError, match="none"):
            run_series(there_are_none, tmp_path / "RUN")


def full_for(monkeypatch, named):
    """Leaves no room for what has such a name."""
    write = sys.modules["sntg.files"].write_bytes

    def full(path, content):
        if named in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    monkeypatch.setattr("sntg.files.write_bytes", full)


def test_a_disk_that_is_full_from_the_start_leaves_the_folder_free(tmp_path, monkeypatch):
    configs = [digits(seed) for seed in (0, 1)]
    with monkeypatch.context() as patch:
        full_for(patch, "split.txt")
        with pytest.raises(UsageError, match=r"No space left on device$"):
            run_series(configs, tmp_path / "series")
    assert [path.name for path in (tmp_path / "series").iterdir()] == [".lock"]
    assert len(run_series(configs, tmp_path / "series")) == 2


def test_where_a_later_seed_cannot_begin_the_others_are_not_lost(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        full_for(patch, "seed-1/split.txt")
        with pytest.raises(
            UsageError, match=r"No space left on device; `sntg resume .*series` goes on when that is put"
        ):
            run_series([digits(seed) for seed in (0, 1)], tmp_path / "series")
    assert len(resume_series(tmp_path / "series")) == 1
    assert len(final_errors(tmp_path / "series")) == 2


def test_seeds_that_cannot_share_a_fixed_graph_are_refused_before_any_is_trained(tmp_path):
    run(digits(0), tmp_path / "earlier")
    fixed = {"method": "pi+sntg", "graph": "fixed", "fixed_from": str(tmp_path / "earlier")}
    with pytest.raises(UsageError, match="fixed_from is a run with seed = 0, and this run has seed = 1"):
        run_series([digits(seed, **fixed) for seed in (0, 1)], tmp_path / "series")
    assert not (tmp_path / "series").exists()


def test_seeds_that_begin_later_have_the_labels_of_those_before_whatever_became_of_the_file(tmp_path):
    listed = tmp_path / "rows.txt"
    for rows, change in ((range(20), listed.unlink), (range(30), lambda: listed.write_text("1\n2\n"))):
        listed.write_text("\n".join(map(str, rows)))
        home = tmp_path / f"series-{len(rows)}"
        with pytest.raises(Interrupted):
            run_series([digits(s, "all", split_file=str(listed)) for s in (0, 1)], home, on_step=interrupt_after(2))
        change()
        resume_series(home)
        labelled = [(home / f"seed-{s}" / "split.txt").read_text().splitlines()[2:] for s in (0, 1)]
        assert labelled[0] == labelled[1]
        assert len(labelled[0]) == len(rows)


@pytest.mark.parametrize("change", [Path.unlink, lambda copy: copy.write_text("1\n2\n")], ids=["gone", "another"])
def test_seeds_that_begin_later_do_not_begin_with_other_labels(tmp_path, change):
    listed, home = tmp_path / "rows.txt", tmp_path / "series"
    listed.write_text("\n".join(map(str, range(20))))
    with pytest.raises(Interrupted):
        run_series([digits(s, "all", split_file=str(listed)) for s in (0, 1)], home, on_step=interrupt_after(2))
    kept = (home / "split.txt").read_text()
    change(home / "split.txt")
    with pytest.raises(UsageError, match=r"series/split\.txt' (is not what seed 0 was started with|cannot be read)"):
        resume_series(home)
    assert not (home / "seed-1/config.json").exists()
    (home / "split.txt").write_text(kept)
    assert len(resume_series(home)) == 2  # the other has not gone on alone meanwhile


def without_hash(folder):
    """The run of an earlier version, which wrote down no hash of its split."""
    settings = json.loads((folder / "config.json").read_text())
    assert settings.pop("split_hash")
    (folder / "config.json").write_text(json.dumps(settings))


def test_the_labels_of_seeds_that_begin_later_are_compared_with_those_of_any_that_tells(tmp_path):
    listed, home = tmp_path / "rows.txt", tmp_path / "series"
    listed.write_text("\n".join(map(str, range(20))))
    with pytest.raises(Interrupted):
        run_series([digits(s, "all", split_file=str(listed)) for s in (0, 1, 2)], home, on_step=interrupt_after(6))
    without_hash(home / "seed-0")
    (home / "split.txt").write_text("1\n2\n")
    with pytest.raises(UsageError, match=r"series/split\.txt' is not what seed 1 was started with"):
        resume_series(home)
    assert not (home / "seed-2/config.json").exists()


def test_where_none_tells_and_the_copy_is_gone_the_split_file_itself_is_read(tmp_path):
    listed, home = tmp_path / "rows.txt", tmp_path / "series"
    listed.write_text("\n".join(map(str, range(20))))
    with pytest.raises(Interrupted):
        run_series([digits(s, "all", split_file=str(listed)) for s in (0, 1)], home, on_step=interrupt_after(2))
    without_hash(home / "seed-0")
    (home / "split.txt").unlink()
    assert len(resume_series(home)) == 2
    assert (home / "split.txt").read_text() == listed.read_text()


def test_seeds_that_begin_later_look_for_the_data_where_they_are_now(tmp_path, monkeypatch):
    listed, home, looked = tmp_path / "rows.txt", tmp_path / "series", set()
    listed.write_text("\n".join(map(str, range(20))))
    with pytest.raises(Interrupted):
        run_series([digits(s, "all", split_file=str(listed)) for s in (0, 1)], home, on_step=interrupt_after(2))

    def look(config, **known):
        looked.add(config.data)
        return load_inputs(config, **known)

    monkeypatch.setattr("sntg.training.series.load_inputs", look)
    resume_series(home, data=str(tmp_path / "moved"))
    assert looked == {str(tmp_path / "moved")}


def test_seeds_that_share_a_split_file_are_the_runs_they_would_be_alone(tmp_path):
    """Each holds out points of its own, whatever those before it held out."""
    listed = tmp_path / "rows.txt"
    listed.write_text("\n".join(map(str, range(1198))))  # all there are
    shown = {"labels": "all", "split_file": str(listed), "validation": 300}
    run_series([digits(seed, **shown) for seed in (0, 1)], tmp_path / "series")
    run(digits(1, **shown), tmp_path / "alone")
    assert (tmp_path / "series/split.txt").read_text() == listed.read_text()
    for name in ("split.txt", "validation.txt", "metrics.jsonl"):
        assert (tmp_path / "series/seed-1" / name).read_text() == (tmp_path / "alone" / name).read_text()


def test_the_split_of_a_run_that_never_began_there_is_not_taken_for_the_series_own(tmp_path):
    (tmp_path / "rows.txt").write_text("0\n1\n2\n3\n")
    (tmp_path / "series").mkdir()
    (tmp_path / "series/split.txt").write_text("# of another\n7 0\n8 0\n")
    run_series([digits(0, "all", split_file=str(tmp_path / "rows.txt"))], tmp_path / "series")
    assert (tmp_path / "series/split.txt").read_text() == (tmp_path / "rows.txt").read_text()
    assert len((tmp_path / "series/seed-0/split.txt").read_text().splitlines()) == 2 + 4


def test_a_split_file_that_is_none_leaves_the_folder_free_and_is_named(tmp_path):
    listed = tmp_path / "rows.txt"
    listed.write_text("0\n99999\n")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"rows\.txt', line 2: the index '99999'"):
            run_series([digits(seed, "all", split_file=str(listed)) for seed in (0, 1)], tmp_path / "series")
        assert [path.name for path in (tmp_path / "series").iterdir()] == [".lock"]


def test_seeds_in_one_pass_that_are_asked_to_stop_while_they_are_finished_do(tmp_path, monkeypatch):
    """Finishing takes a second a seed: nobody waits for a thousand of them after a Ctrl-C."""
    configs, module = [moons(seed) for seed in SEEDS], sys.modules["sntg.training.run"]
    finish, finished = module._finish, []

    def asked(*done):
        finish(*done)
        finished.append(done)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_finish", asked)
        with pytest.raises(Stopped) as stopped:
            run_series(configs, tmp_path / "series")
    assert stopped.value.signal == signal.SIGTERM
    assert len(finished) == 1
    assert len(resume_series(tmp_path / "series")) == len(SEEDS)
    run_series(configs, tmp_path / "whole")
    for seed in SEEDS:
        assert same(contents(tmp_path / "series" / f"seed-{seed}"), contents(tmp_path / "whole" / f"seed-{seed}"))


def test_what_a_process_killed_over_the_list_of_seeds_has_left_goes(tmp_path):
    (tmp_path / "series.json.4711.partial").write_text("[")
    run_series([moons(0)], tmp_path)
    assert not list(tmp_path.glob("*.partial"))


def test_seeds_in_one_pass_stopped_while_they_are_finished_are_finished_by_the_next_attempt(tmp_path, monkeypatch):
    configs, module = [moons(seed) for seed in SEEDS], sys.modules["sntg.training.run"]
    finish, called = module._finish, []

    def stopped(*done):
        called.append(done)
        if len(called) == 2:
            raise Interrupted
        finish(*done)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_finish", stopped)
        with pytest.raises(Interrupted):
            run_series(configs, tmp_path / "series")
    assert len(resume_series(tmp_path / "series")) == len(SEEDS)
    run_series(configs, tmp_path / "whole")
    for seed in SEEDS:
        assert same(contents(tmp_path / "series" / f"seed-{seed}"), contents(tmp_path / "whole" / f"seed-{seed}"))
