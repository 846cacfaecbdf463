"""TensorBoard, on request: every number of the metrics as a scalar, and the test features in the projector."""

import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from sntg.errors import UsageError

FOLDER = "tensorboard"


def check_tensorboard() -> None:
    """Refuses a run that wants TensorBoard where it is not installed."""
    if find_spec("tensorboard") is None:
        raise UsageError("tensorboard is not installed: pip install 'sntg[tensorboard]'")


class Board:
    """Writes a run's numbers where TensorBoard finds them. `step`: where a resumed run goes on; later ones are void."""

    def __init__(self, run: Path, step: int | None = None) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter  # not everyone has it

        self.folder = run / FOLDER
        make: Any = SummaryWriter  # its methods are not typed
        self.writer = make(str(self.folder), purge_step=None if step is None else step + 1)

    def add(self, record: dict[str, Any]) -> None:
        """The numbers of an epoch's record, nested ones by their path: loss/sntg."""
        for name, value in _numbers(record):
            self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()

    def embed(self, features: Tensor, classes: Tensor) -> None:
        """The test points' features, with their true classes."""
        shutil.rmtree(self.folder / "00000", ignore_errors=True)  # where they go: it warns of what a killed run left
        self.writer.add_embedding(features.float(), metadata=classes.tolist(), tag="features")

    def close(self) -> None:
        """Ends its thread and closes its file. A disk with no room for more does not change what became of the run."""
        with suppress(OSError):
            self.writer.close()


def _numbers(record: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in record.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{name}/")
        elif value is not None and name not in ("epoch", "step"):
            found.append((prefix + name, value))
    return found
