"""The folder of one run: config.json, metrics.jsonl, model.safetensors, figures/.

A file appears under its name only when it is whole: it is written beside and renamed. Metrics grow line by line.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from sntg.data import load_dataset
from sntg.errors import DivergenceError, UsageError
from sntg.models import Classifier, build
from sntg.training.config import Config, config_from

CONFIG, METRICS, WEIGHTS = "config.json", "metrics.jsonl", "model.safetensors"


class RunFolder:
    """A folder for a new run. Nothing is written until `start`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        check_free(self.path)

    def start(self, config: Config) -> None:
        """Makes the folder and writes the settings."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.path / CONFIG, json.dumps(config.as_dict(), indent=2) + "\n")
        except OSError as e:
            raise UsageError(f"the output folder {str(self.path)!r} cannot be written: {e.strerror}") from None

    def add_metrics(self, record: dict[str, Any]) -> None:
        """Adds one line to the metrics."""
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def save_model(self, model: nn.Module) -> None:
        """Writes the weights, if they are numbers: the last step's losses do not show what that step did to them."""
        for name, tensor in model.state_dict().items():
            if not torch.isfinite(tensor).all():
                raise DivergenceError(f"the weights {name} are not finite after the last step")
        save_weights(model, self.path / WEIGHTS)


def check_free(path: Path) -> None:
    """Refuses an output folder that holds something already or that cannot be written to."""
    try:
        if path.is_dir() and any(path.iterdir()):
            raise UsageError(f"the output folder {str(path)!r} is not empty: choose a new one")
    except OSError as e:
        raise UsageError(f"the output folder {str(path)!r} cannot be read: {e.strerror}") from None
    check_writable(path)


def check_writable(path: Path) -> None:
    """Refuses an output folder that cannot be made or written to; leaves nothing behind."""
    try:
        existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
        if not existing.is_dir():
            raise UsageError(f"the output folder {str(path)!r} cannot be made: {str(existing)!r} is a file")
        with tempfile.TemporaryDirectory(dir=existing):
            pass
    except OSError as e:
        raise UsageError(f"the output folder {str(path)!r} cannot be written: {e.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Writes beside, then renames."""
    beside = path.with_name(path.name + ".partial")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def save_weights(model: nn.Module, path: Path) -> None:
    """Writes a model's tensors, beside first, then renamed."""
    beside = path.with_name(path.name + ".partial")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, beside)
    os.replace(beside, path)


def load(run: Path | str) -> Classifier:
    """The trained network of a run folder, ready for use: `model(x)` gives logits and features.

    x is shaped and normalised as `sntg.load_dataset(name)` gives it.

    >>> import sntg, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = sntg.run(sntg.resolve("two-moons", 12, "pi", epochs=1), folder)
    ...     model = load(folder)
    >>> model(sntg.load_dataset("two-moons").test_x).logits.shape
    torch.Size([6000, 2])
    """
    folder = Path(run)
    config = read_config(folder)
    data = load_dataset(config.dataset, config.seed)
    model = build(config.model, data.event, data.classes, config.noise, config.dropout, config.bn_momentum)
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except FileNotFoundError:
        raise UsageError(f"the run {str(run)!r} has no {WEIGHTS}: it did not finish") from None
    except (SafetensorError, RuntimeError, OSError) as e:
        raise UsageError(f"the weights {str(folder / WEIGHTS)!r} cannot be read: {' '.join(str(e).split())}") from None
    return model.eval()


def read_config(folder: Path) -> Config:
    """A run folder's settings; the device it ran on does not matter for reading it."""
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return config_from(values | {"device": "cpu"})
    except FileNotFoundError:
        raise UsageError(f"{str(folder)!r} is not a run folder: it has no {CONFIG}") from None
    except (OSError, ValueError, TypeError, AttributeError) as e:
        raise UsageError(f"{str(folder / CONFIG)!r} cannot be read: {e}") from None
