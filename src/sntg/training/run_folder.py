"""The folder of one run.

    config.json          every setting, with the hashes of the data and of the split
    split.txt            which training points kept a label, and which label training saw
    validation.txt       which were held out, if any
    metrics.jsonl        a line an epoch
    checkpoints/         while the run is not done: what `sntg resume` goes on from
    model.safetensors    the network whose error is reported
    features.safetensors the test points' features (float16) and classes
    figures/, tensorboard/

A file appears under its name only when it is whole: it is written beside and renamed. Metrics grow line by line.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from sntg.data import Split, entry, write_rows, write_split
from sntg.errors import DivergenceError, UsageError
from sntg.files import PARTIAL, write_bytes, write_text
from sntg.models import Classifier, build
from sntg.training.checkpoints import has_checkpoints
from sntg.training.config import Config, MissingGPU, config_from

CONFIG, METRICS, WEIGHTS, FEATURES = "config.json", "metrics.jsonl", "model.safetensors", "features.safetensors"
SPLIT, VALIDATION, LOCK, FIGURES = "split.txt", "validation.txt", ".lock", "figures"
SERIES = "series.json"  # in the folder above those of a series' runs
BEFORE_CONFIG = (SPLIT, VALIDATION, LOCK)  # what a run killed before it had settings leaves: the folder is free


ANYWHERE = {"device": "cpu", "engine": "auto", "precision": "auto", "storage": "auto"}  # to read a run


def hold(path: Path, what: str) -> FileLock:
    """Takes a lock, which the system takes back from a process that is killed; refuses what another process has."""
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(f"another process is at work on {what}: let it finish first") from None
    return lock


class RunFolder:
    """The folder of a run, new or to be gone on with. Nothing is written until `start`."""

    def __init__(self, path: Path | str) -> None:
        self.path = as_folder(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes off the folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = hold(self.path / LOCK, f"the run {str(self.path)!r}")
        except OSError as e:
            raise UsageError(f"the output folder {str(self.path)!r} cannot be written: {e.strerror}") from None
        try:
            yield
        finally:
            lock.release()

    def start(self, config: Config, split: Split) -> None:
        """Writes the settings and the split of a new run."""
        check_free(self.path)
        try:
            self.remove_partial()
            self.write_split(config, split)
            self.write_held_out(config, split)
            write_text(self.path / CONFIG, json.dumps(config.as_dict(), indent=2) + "\n")
        except (OSError, UsageError) as e:
            for name in (SPLIT, VALIDATION):  # the folder stays free for another attempt
                (self.path / name).unlink(missing_ok=True)
            if isinstance(e, UsageError):
                raise
            raise UsageError(f"the output folder {str(self.path)!r} cannot be written: {e.strerror}") from None

    def write_split(self, config: Config, split: Split) -> None:
        """Writes which points keep a label."""
        chosen = f"listed in {config.split_file!r}" if config.split_file else config.split
        write_split(self.path / SPLIT, split, f"{_about(config)}, {chosen}")

    def write_held_out(self, config: Config, split: Split) -> None:
        """Writes which points are held out, if any are."""
        if len(split.validation):
            write_rows(self.path / VALIDATION, split.validation, f"{_about(config)}: training points held out")

    def discard(self) -> None:
        """Removes the folder of a run that never began, if nothing else is in it."""
        (self.path / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def remove_partial(self) -> None:
        """Removes what a process killed in the midst of a file has left; for who holds the lock."""
        for folder in (self.path, self.path / FIGURES):
            for path in folder.glob(f"*{PARTIAL}"):
                if _is_partial(path, ".+"):
                    path.unlink(missing_ok=True)

    def add_metrics(self, record: Mapping[str, Any]) -> None:
        """Adds one line to the metrics."""
        with (self.path / METRICS).open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(record) + "\n")

    def set_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Puts the metrics back to where a checkpoint was written."""
        write_text(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in records))

    def last_error(self) -> float:
        """The error the run reports, from its last line of metrics."""
        try:
            return float(json.loads((self.path / METRICS).read_text(encoding="utf-8").splitlines()[-1])["error"])
        except (OSError, ValueError, LookupError, TypeError):
            raise UsageError(f"{str(self.path / METRICS)!r} does not end in the metrics of a finished run") from None

    def save_model(self, model: nn.Module) -> None:
        """Writes the weights, if they are numbers: the last step's losses do not show what that step did to them."""
        for name, tensor in model.state_dict().items():
            if not torch.isfinite(tensor).all():
                raise DivergenceError(f"the weights {name} are not finite after the last step")
        save_tensors(model.state_dict(), self.path / WEIGHTS)

    def save_features(self, features: Tensor, classes: Tensor) -> None:
        """Writes the test points' features, in half precision, and their true classes."""
        save_tensors({"features": features.half(), "classes": classes}, self.path / FEATURES)

    @property
    def begun(self) -> bool:
        """Whether training has written into it."""
        return (self.path / METRICS).exists() or (self.path / WEIGHTS).exists()

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: it draws its figures last, and only then removes its checkpoints.

        So figures that somebody has removed are no reason to train again. Runs of one pass have its checkpoints.
        """
        if (self.path / FIGURES / "curves.png").exists():
            return (self.path / WEIGHTS).exists()
        saved = all((self.path / name).exists() for name in (WEIGHTS, FEATURES))
        return saved and not any(map(has_checkpoints, (self.path, self.path.resolve().parent)))


def _about(config: Config) -> str:
    return f"{config.dataset}, {config.labels} labels, seed {config.seed}"


def as_folder(path: object) -> Path:
    """The path of a run folder; refuses what cannot be one.

    >>> as_folder("runs/first").name
    'first'
    """
    try:
        if isinstance(path, str | os.PathLike) and b"\0" not in os.fsencode(path):
            return Path(path)
    except UnicodeEncodeError:  # half a character
        pass
    raise UsageError(f"a run folder is wanted, as a path, not {path!r}")


def check_free(path: Path) -> None:
    """Refuses an output folder that holds something already or that cannot be written to."""
    try:
        if path.is_dir() and any(p.name not in BEFORE_CONFIG and not _is_partial(p) for p in path.iterdir()):
            raise UsageError(f"the output folder {str(path)!r} is not empty: choose a new one")
    except OSError as e:
        raise UsageError(f"the output folder {str(path)!r} cannot be read: {e.strerror}") from None
    check_writable(path)


FIRST = "|".join(map(re.escape, (*BEFORE_CONFIG, CONFIG, SERIES)))


def _is_partial(path: Path, name: str = FIRST) -> bool:
    """Whether a process killed over a file has left this of it, by default over one of a run's first."""
    return re.fullmatch(rf"({name})\.\d+{re.escape(PARTIAL)}", path.name) is not None and path.is_file()


def check_writable(path: Path) -> None:
    """Refuses an output folder that cannot be made or written to; leaves nothing behind."""
    try:
        existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.is_symlink() or p.exists())
        if not existing.is_dir():
            what = "a file" if existing.exists() else "a link that leads nowhere"
            raise UsageError(f"the output folder {str(path)!r} cannot be made: {str(existing)!r} is {what}")
        inside = path.absolute() / ("n" * 200)  # more than anything that is kept in it adds to its length
        for place in (inside, *(existing / name for name in path.absolute().relative_to(existing).parts)):
            with suppress(FileNotFoundError):
                place.lstat()  # says whether a path or a name is too long before folders have been made for it
        probe = existing / f"{LOCK}.{os.getpid()}{PARTIAL}"  # killed here, a process leaves what is in nobody's way
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as e:
        raise UsageError(f"the output folder {str(path)!r} cannot be written: {e.strerror}") from None


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes tensors by name."""
    write_bytes(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def load(run: Path | str) -> Classifier:
    """The trained network of a run folder, ready for use: `model(x)` gives logits and features.

    x is shaped and whitened as `sntg.load_inputs(config).data` has it.

    >>> import sntg, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = sntg.run(sntg.resolve("two-moons", 12, "pi", epochs=1), folder)
    ...     model = load(folder)
    >>> model(sntg.load_dataset("two-moons").test_x).logits.shape
    torch.Size([6000, 2])
    """
    folder = as_folder(run)
    config = read_config(folder)
    with torch.random.fork_rng([]):  # its new weights are drawn, though nobody sees them
        model = build_model(config)
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except FileNotFoundError:
        raise UsageError(f"the run {str(run)!r} has no {WEIGHTS}: it did not finish") from None
    except (SafetensorError, RuntimeError, OSError) as e:
        raise UsageError(f"the weights {str(folder / WEIGHTS)!r} cannot be read: {' '.join(str(e).split())}") from None
    return model.eval()


def build_model(c: Config) -> Classifier:
    """The network of a run, with new weights."""
    data = entry(c.dataset)
    return build(c.model, data.event, data.classes, c.noise, c.dropout, c.bn_momentum, c.normalisation)


def read_config(folder: Path, keep_device: bool = False) -> Config:
    """A run folder's settings; the device it ran on, and how, matter only for going on with it."""
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return config_from(values if keep_device else values | ANYWHERE)
    except FileNotFoundError:
        raise UsageError(f"{str(folder)!r} is not a run folder: it has no {CONFIG}") from None
    except MissingGPU:
        raise elsewhere(folder) from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as e:
        raise UsageError(f"{str(folder / CONFIG)!r} cannot be read: {e}") from None


def elsewhere(folder: Path) -> UsageError:
    """What to say of a run, or a series, that is to go on without its GPU."""
    return UsageError(
        f"{str(folder)!r} began on a GPU that this machine does not have: go on with it where there is one"
    )
