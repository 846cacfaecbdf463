"""Checkpoints: they come back as they went, appear whole or not at all, and what was done to one since is noticed."""

import errno
import json
import os
import shutil
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sntg.errors import UsageError
from sntg.models import build
from sntg.training import checkpoints
from sntg.training.checkpoints import (
    MAX_FILE,
    PIECE,
    drop_after,
    read_latest,
    remove_checkpoints,
    write_checkpoint,
)
from sntg.training.loop import Stack
from sntg.training.recipes import resolve

KINDS = {
    "real": torch.tensor([[1.5, -0.0, float("inf")], [1e-45, 3.0, -7.25]]),
    "double": torch.tensor([0.1], dtype=torch.float64),
    "whole": torch.tensor([2**53 + 1, -1]),
    "bytes": torch.arange(256, dtype=torch.uint8),
    "truth": torch.tensor([True, False, True]),
    "number": torch.tensor(7),
    "nothing": torch.zeros(0, 3),
    "a/b.c#d": torch.zeros(2, 1, 2),
}
FACTS = {"history": [{"epoch": 1, "error": 0.1 + 0.2, "teacher_error": None, "loss": {"sntg": 1e-17}}]}


def names(run):
    folder = run / "checkpoints"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else None


def newest(run):
    return run / "checkpoints" / names(run)[-1]


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


@pytest.fixture
def two(tmp_path):
    """A run folder with two checkpoints."""
    for step in (5, 9):
        write_checkpoint(tmp_path, step, {"w": torch.full((40,), float(step))}, FACTS)
    return tmp_path


def read(run):
    """What is read, and what was told of damage."""
    told = []
    return read_latest(run, told.append), told


# --- there and back --------------------------------------------------------------------------------------------------


def test_tensors_of_every_kind_and_the_facts_come_back_to_the_bit(tmp_path):
    write_checkpoint(tmp_path, 12, KINDS, FACTS)
    back, told = read(tmp_path)
    assert told == []
    assert list(back.tensors) == list(KINDS)
    assert all(same(back.tensors[name], tensor) for name, tensor in KINDS.items())
    assert (back.step, back.facts) == (12, FACTS)


def test_a_tensor_that_is_not_contiguous_comes_back_in_its_shape(tmp_path):
    turned = torch.arange(6.0).reshape(2, 3).T
    write_checkpoint(tmp_path, 1, {"w": turned, "part": torch.arange(9.0)[3:5]}, {})
    assert torch.equal(read_latest(tmp_path).tensors["w"], turned)
    assert torch.equal(read_latest(tmp_path).tensors["part"], torch.tensor([3.0, 4.0]))


def test_what_is_read_does_not_change_with_what_was_written(tmp_path):
    live = torch.zeros(3)
    write_checkpoint(tmp_path, 1, {"w": live}, {})
    live += 1
    assert torch.equal(read_latest(tmp_path).tensors["w"], torch.zeros(3))


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert read(tmp_path) == (None, [])


def test_nothing_is_pickled(two):
    for path in newest(two).iterdir():
        assert path.suffix in (".json", ".safetensors")
        json.loads(path.read_text() if path.suffix == ".json" else path.read_bytes()[8:].split(b"}}")[0] + b"}}")


# --- small files -----------------------------------------------------------------------------------------------------


def test_no_file_of_the_thirteen_layer_nets_checkpoint_is_above_15_mib(tmp_path):
    """All that temporal ensembling carries on CIFAR-10, as zeros; the shapes are those of a real stack."""
    net = build("conv13", (3, 32, 32), 10, 0.15, 0.5).state_dict()
    weights = sum(t.numel() for t in net.values())
    state = {f"model/{name}": torch.zeros(t.shape, dtype=t.dtype) for name, t in net.items()}
    state |= {f"method/average.{name}": torch.zeros(t.shape, dtype=t.dtype) for name, t in net.items()}
    state |= {"optimiser/m": torch.zeros(weights), "optimiser/v": torch.rand(weights)}
    state |= {f"method/{name}": torch.zeros(1, 50000, 10) for name in "Zz"}
    write_checkpoint(tmp_path, 1, state, FACTS)
    sizes = [p.stat().st_size for p in newest(tmp_path).iterdir()]
    assert weights > 3_000_000
    assert max(sizes) <= MAX_FILE == 15 * 1024 * 1024
    assert sum(sizes) > 4 * 4 * weights
    back = read_latest(tmp_path).tensors
    assert back.keys() == state.keys()
    assert torch.equal(back["optimiser/v"], state["optimiser/v"])


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_tensor_of_about_a_piece_comes_back_whole(tmp_path, extra):
    wide = torch.arange(2 * PIECE // 8 + extra, dtype=torch.float64)
    write_checkpoint(tmp_path, 1, {"small": torch.ones(3), "wide": wide}, {})
    assert torch.equal(read_latest(tmp_path).tensors["wide"], wide)
    assert all(p.stat().st_size <= MAX_FILE for p in newest(tmp_path).iterdir())


def test_more_than_ten_pieces_come_back_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "PIECE", 16)
    wide = torch.arange(200.0)
    write_checkpoint(tmp_path, 1, {"wide": wide, "b": -wide[:3]}, {})
    assert len(list(newest(tmp_path).glob("*.safetensors"))) > 10
    assert torch.equal(read_latest(tmp_path).tensors["wide"], wide)


# --- which are kept --------------------------------------------------------------------------------------------------


def test_the_newest_is_read_and_it_and_the_one_before_are_kept(tmp_path):
    for step in (2, 9, 10, 1000):
        write_checkpoint(tmp_path, step, {"w": torch.tensor(step)}, {})
        assert read_latest(tmp_path).step == int(read_latest(tmp_path).tensors["w"]) == step
    assert names(tmp_path) == ["000000000010", "000000001000"]


def test_a_step_written_again_is_replaced(two):
    write_checkpoint(two, 9, {"w": torch.tensor(-1.0)}, {})
    assert names(two) == ["000000000005", "000000000009"]
    assert float(read_latest(two).tensors["w"]) == -1.0


def test_later_checkpoints_and_unfinished_ones_are_dropped_before_a_run_goes_on(two):
    (two / "checkpoints/000000000012.partial").mkdir()
    (two / "checkpoints/000000000012.partial/000.safetensors").write_bytes(b"half")
    drop_after(two, 5)
    assert names(two) == ["000000000005"]
    drop_after(two, 5)
    assert names(two) == ["000000000005"]


def test_what_somebody_has_put_beside_them_is_left_alone(two):
    """A file named as a checkpoint is none; nor is a name of digits that are no numerals."""
    beside = two / "checkpoints"
    for name in ("000000000999", "000000000999.partial", "notes.partial"):
        (beside / name).write_text("mine")
    (beside / "²").mkdir()
    told = []
    assert read_latest(two, told.append).step == 9
    assert told == []
    drop_after(two, 5)
    assert {p.name for p in beside.iterdir()} == {
        "000000000005",
        "000000000999",
        "000000000999.partial",
        "notes.partial",
        "²",
    }
    write_checkpoint(two, 999, {"w": torch.tensor(3.0)}, {})
    assert float(read_latest(two).tensors["w"]) == 3.0


def test_a_link_to_a_checkpoint_is_read_and_what_it_leads_to_is_not_removed(two, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved"
    (two / "checkpoints/000000000009").rename(elsewhere)
    (two / "checkpoints/000000000009").symlink_to(elsewhere)
    assert read_latest(two).step == 9
    drop_after(two, 5)
    assert names(two) == ["000000000005"]
    assert (elsewhere / "manifest.json").exists()


def test_nothing_to_drop_is_no_mistake(tmp_path):
    drop_after(tmp_path, 0)
    assert names(tmp_path) is None


def test_a_finished_run_keeps_none(two):
    remove_checkpoints(two)
    assert names(two) is None
    remove_checkpoints(two)


# --- damage ----------------------------------------------------------------------------------------------------------


def damage(path, how):
    whole = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "longer":
        path.write_bytes(whole + b"\0")
    else:
        path.write_bytes(whole[:-30] + bytes([whole[-30] ^ 4]) + whole[-29:])


@pytest.mark.parametrize("how", ["gone", "empty", "cut", "longer", "flipped"])
@pytest.mark.parametrize("name", ["manifest.json", "000.safetensors"])
def test_a_damaged_checkpoint_is_named_and_the_previous_is_used(two, name, how):
    damage(newest(two) / name, how)
    checkpoint, (told,) = read(two)
    assert (checkpoint.step, checkpoint.tensors["w"][0]) == (5, 5.0)
    assert told.startswith(f"the checkpoint {str(newest(two))!r} is damaged (")
    assert name in told


@pytest.mark.parametrize(
    "text",
    ["[]", "null", "3", '"sha256"', "{}", '{"sha256": null}', '{"sha256": []}', "[[[", "[" * 100_000, '{"format": 1}'],
    ids=lambda text: text[:20],
)
def test_a_manifest_that_is_something_else_is_damage(two, text):
    (newest(two) / "manifest.json").write_text(text)
    checkpoint, told = read(two)
    assert (checkpoint.step, len(told)) == (5, 1)


def test_a_checkpoint_of_a_later_version_is_not_used_and_the_version_is_told(two, monkeypatch):
    monkeypatch.setattr(checkpoints, "FORMAT", 3)
    write_checkpoint(two, 11, {"w": torch.ones(1)}, {})
    monkeypatch.undo()
    checkpoint, (told,) = read(two)
    assert checkpoint.step == 9
    assert "format 3" in told


def test_where_all_are_damaged_a_sentence_says_what_to_remove(two):
    for folder in (two / "checkpoints").iterdir():
        damage(folder / "manifest.json", "cut")
    told = []
    with pytest.raises(UsageError) as caught:
        read_latest(two, told.append)
    assert len(told) == 2
    assert str(caught.value) == (
        f"no checkpoint of the run {str(two)!r} is whole: remove {str(two / 'checkpoints')!r} to start the run over"
    )


@given(st.data())
def test_any_bit_that_flips_is_noticed_or_changes_nothing(tmp_path_factory, data):
    """In a manifest 1e-17 may become 1E-17, which is the same number."""
    run = tmp_path_factory.getbasetemp() / "flips"
    if not run.exists():
        write_checkpoint(run, 3, KINDS, FACTS)
    path = data.draw(st.sampled_from(sorted(newest(run).iterdir())))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(changed)
        try:
            back = checkpoints._read(newest(run))
        except checkpoints.Damaged:
            return
        assert path.name == "manifest.json"
        assert (back.step, back.facts) == (3, FACTS)
        assert all(same(back.tensors[name], tensor) for name, tensor in KINDS.items())
    finally:
        path.write_bytes(whole)


# --- whole or not at all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_at_any_file_leaves_the_old_ones_and_nothing_else(two, monkeypatch, failing, error):
    """A disk that fills up, or a second Ctrl-C, at either tensor file, the manifest, and after the renaming."""
    monkeypatch.setattr(checkpoints, "PIECE", 64)
    calls = count()
    flush = os.fsync

    def fail(handle):
        if next(calls) == failing:
            raise error
        flush(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write_checkpoint(two, 11, {"w": torch.zeros(40)}, FACTS)
    monkeypatch.undo()
    assert names(two) == ["000000000005", "000000000009", "000000000011"][: 2 if failing < 3 else 3]
    assert read(two)[0].step == int(names(two)[-1])
    assert read(two)[1] == []


def test_what_a_killed_process_left_of_a_checkpoint_is_not_read_and_can_be_written_over(two):
    left = shutil.copytree(newest(two), two / "checkpoints/000000000012.partial")
    (left / "manifest.json").unlink()
    assert read(two)[0].step == 9
    write_checkpoint(two, 12, {"w": torch.ones(1)}, {})
    assert names(two) == ["000000000009", "000000000012"]


def test_the_state_of_a_stack_goes_through_a_checkpoint_unchanged(tmp_path):
    runs = Stack([resolve("two-moons", 12, "tempens+ent+sntg", epochs=2, batch=3000)])
    runs.advance()
    write_checkpoint(tmp_path, runs.step, runs.state(), {"history": runs.histories[0]})
    back = read_latest(tmp_path).tensors
    assert back.keys() == runs.state().keys()
    assert all(same(back[name], tensor.contiguous()) for name, tensor in runs.state().items())
