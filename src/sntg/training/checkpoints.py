"""Checkpoints of a run: written beside and renamed, checksummed, in small files, the previous one kept.

    checkpoints/000000012000/manifest.json, 000.safetensors, 001.safetensors, ...

A checkpoint is a set of named tensors and some plain facts. Tensors are cut into pieces so that no file of them is
larger than MAX_FILE: a run can move between machines piece by piece. The manifest has each file's sha256, and its own.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sntg.errors import UsageError
from sntg.files import PARTIAL

FOLDER, MANIFEST = "checkpoints", "manifest.json"
MAX_FILE = 15 * 2**20
PIECE = MAX_FILE // 2 - 2**19  # bytes of one piece of a tensor: two fit into a file beside their names
FORMAT = 2


class Damaged(Exception):
    """A checkpoint is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back."""

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write_checkpoint(run: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Adds a checkpoint to a run folder and removes all but it and the one before.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     write_checkpoint(Path(run), 3, {"w": torch.ones(2)}, {"epoch": 1})
    ...     read_latest(Path(run)).tensors["w"]
    tensor([1., 1.])
    """
    folder = run / FOLDER
    final = folder / f"{step:012d}"
    beside = final.with_name(final.name + PARTIAL)
    try:
        _remove(beside)
        beside.mkdir(parents=True)
        _fill(beside, step, tensors, facts)
        _remove(final)
        os.replace(beside, final)
        _flush(folder)
    except BaseException:  # a full disk, or a second Ctrl-C
        shutil.rmtree(beside, ignore_errors=True)
        raise
    for old in _written(run)[:-2]:
        _remove(old)


def read_latest(run: Path, on_damage: Callable[[str], None] = lambda message: None) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None if there is none at all; damaged ones are told to `on_damage`.

    Where every checkpoint there is is damaged, a UsageError says so: starting over is for the caller to decide.
    """
    if (run / FOLDER).exists() and not (run / FOLDER).is_dir():
        raise UsageError(f"{str(run / FOLDER)!r} is a file, and checkpoints go into a folder of that name: remove it")
    found = _written(run)
    for folder in reversed(found):
        try:
            return _read(folder)
        except (Damaged, OSError) as e:
            on_damage(f"the checkpoint {str(folder)!r} is damaged ({e}) and is not used")
    if found:
        raise UsageError(
            f"no checkpoint of the run {str(run)!r} is whole: remove {str(run / FOLDER)!r} to start the run over"
        )
    return None


def drop_after(run: Path, step: int) -> None:
    """Removes what must not be taken for newer than what is written next.

    That is every checkpoint after a step, damaged ones, and what a process killed in the midst of one left.
    """
    for folder in _written(run):
        if int(folder.name) > step:
            _remove(folder)
    for unfinished in _folders(run, rf"\d{{12}}{re.escape(PARTIAL)}"):
        _remove(unfinished)


def has_checkpoints(run: Path) -> bool:
    """Whether a run has any, whole or not."""
    return bool(_written(run))


def remove_checkpoints(run: Path) -> None:
    """Removes them all: the run is done."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)


def _written(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(_folders(run, r"\d{12}"))


def _folders(run: Path, name: str) -> list[Path]:
    """The folders in that of the checkpoints that have such a name; files and other names are not its own."""
    folder = run / FOLDER
    found = folder.iterdir() if folder.is_dir() else ()
    return [p for p in found if re.fullmatch(name, p.name, re.ASCII) and p.is_dir()]


def _remove(path: Path) -> None:
    """Removes a folder, a file or a link, if there is one; not what a link leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fill(folder: Path, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    files = {}
    for number, pieces in enumerate(_files(tensors)):
        name = f"{number:03d}.safetensors"
        files[name] = _write(folder / name, save(pieces))
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    manifest = {"format": FORMAT, "step": step, "shapes": shapes, "files": files, "facts": dict(facts)}
    text = json.dumps(manifest | {"sha256": _digest(manifest)}, indent=1)
    _write(folder / MANIFEST, text.encode())


def _files(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The tensors as flat pieces, named `tensor#number`, in groups that each make a file."""
    group: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        flat = tensor.detach().contiguous().flatten()
        for number, piece in enumerate(torch.split(flat, PIECE // flat.element_size())):
            if size + piece.nbytes > 2 * PIECE:
                yield group
                group, size = {}, 0
            group[f"{name}#{number}"] = piece.cpu().clone()  # a piece of its own, not a view of the whole
            size += piece.nbytes
    yield group


def _write(path: Path, data: bytes) -> str:
    """Writes a file through to the disk; returns its sha256."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _flush(folder: Path) -> None:
    """Makes a rename last through a power cut, where the system can do that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _read(folder: Path) -> Checkpoint:
    manifest = _read_manifest(folder / MANIFEST)
    pieces: dict[str, Tensor] = {}
    for name, expected in manifest["files"].items():
        data = (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != expected:
            raise Damaged(f"{name} is not what was written")
        try:
            pieces |= load(data)
        except SafetensorError as e:
            raise Damaged(f"{name}: {e}") from None
    return Checkpoint(manifest["step"], _joined(pieces, manifest["shapes"]), manifest["facts"])


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        expected = manifest.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Damaged(f"{path.name} is not what was written") from None
    if _digest(manifest) != expected:
        raise Damaged(f"{path.name} is not what was written")
    if manifest["format"] != FORMAT:
        raise Damaged(f"it has the format {manifest['format']}, and this version reads {FORMAT}")
    return manifest


def _joined(pieces: dict[str, Tensor], shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    """The tensors from their pieces, in the order they were written."""
    parts: dict[str, list[Tensor]] = {name: [] for name in shapes}
    for piece in sorted(pieces, key=lambda name: int(name.rpartition("#")[2])):
        parts[piece.rpartition("#")[0]].append(pieces[piece])
    return {name: torch.cat(parts[name]).reshape(shape) for name, shape in shapes.items()}
