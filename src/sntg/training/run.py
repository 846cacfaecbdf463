"""One run from settings to a finished run folder, and an interrupted one from its last checkpoint."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sntg.errors import UsageError
from sntg.figures import Decisions, Embedding, draw_curves, draw_decisions, draw_embeddings
from sntg.training.checkpoints import drop_after, read_latest, remove_checkpoints, write_checkpoint
from sntg.training.config import Config
from sntg.training.evaluation import predict
from sntg.training.loop import Record, Stack, Trained, own_randomness
from sntg.training.run_folder import CONFIG, SPLIT, RunFolder, check_free, read_config
from sntg.training.stopping import Stopped, stop_requests
from sntg.training.tensorboard import Board, check_tensorboard

FREE = ("data", "split_file", "storage", "checkpoint_seconds", "tensorboard")  # what may change when a run goes on
OnEpoch = Callable[[Record], None]
OnStep = Callable[[Stack], None]


def run(
    config: Config,
    out: Path | str,
    on_epoch: OnEpoch = lambda record: None,
    on_step: OnStep = lambda runs: None,
) -> Trained:
    """Trains one run into a new folder: settings first, a line of metrics each epoch, weights and figures at the end.

    >>> import tempfile
    >>> from sntg.training import resolve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = run(resolve("two-moons", 12, "pi", epochs=1), folder)
    ...     sorted(p.name for p in Path(folder).iterdir() if p.suffix)
    ['config.json', 'features.safetensors', 'metrics.jsonl', 'model.safetensors', 'split.txt']
    """
    folder = RunFolder(out)
    check_free(folder.path)
    with own_randomness(config):
        if config.tensorboard:
            check_tensorboard()
        runs = Stack([config])
        with folder.locked():
            folder.start(runs.configs[0], runs.inputs[0].split)
            board = Board(folder.path) if config.tensorboard else None
            return _carry_on(runs, folder, board, on_epoch, on_step)


def resume(
    out: Path | str,
    data: str = "",
    on_epoch: OnEpoch = lambda record: None,
    on_step: OnStep = lambda runs: None,
    on_damage: Callable[[str], None] = lambda message: None,
) -> Trained:
    """Goes on with an interrupted run from its last whole checkpoint, to the same bits as if nothing had happened.

    data: the folder of the dataset's files, where it is another one than the run began with. A damaged checkpoint is
    told to `on_damage`, and the one before is used; a run without any starts over.
    """
    folder = RunFolder(out)
    config_to_resume(folder, data)  # before a lock is put into what is no run
    with folder.locked():
        config = config_to_resume(folder, data)  # who held the lock may have finished it
        with own_randomness(config):
            checkpoint = read_latest(folder.path, on_damage)
            runs = Stack([config])
            drop_after(folder.path, checkpoint.step if checkpoint else 0)
            if checkpoint:
                _check_same(config, checkpoint.facts["settings"])
                runs.load_state(checkpoint.tensors, [checkpoint.facts["history"]])
            folder.set_metrics(runs.histories[0])
            board = Board(folder.path, runs.step) if config.tensorboard else None
            return _carry_on(runs, folder, board, on_epoch, on_step)


def config_to_resume(folder: RunFolder, data: str = "") -> Config:
    """The settings an interrupted run goes on with; a run that is done is refused."""
    stored = read_config(folder.path, keep_device=True)
    if folder.finished:
        remove_checkpoints(folder.path)  # a process killed at the very end may have left them
        raise UsageError(f"the run {str(folder.path)!r} is finished: there is nothing to resume")
    changes: dict[str, Any] = {"data": data} if data else {}
    if stored.split_file:  # the run's own copy: the file may have changed since
        changes["split_file"] = str(folder.path / SPLIT)
    return replace(stored, **changes)


def _carry_on(runs: Stack, folder: RunFolder, board: Board | None, on_epoch: OnEpoch, on_step: OnStep) -> Trained:
    """Trains to the end, with checkpoints on the way, and finishes the folder."""
    with stop_requests() as check_stop:
        written = time.monotonic()
        while not runs.finished:
            records = runs.advance()
            if records:
                folder.add_metrics(records[0])
                if board:
                    board.add(records[0])
                on_epoch(records[0])
            on_step(runs)
            try:
                check_stop()
            except Stopped:
                _checkpoint(runs, folder)
                raise
            if runs.finished or time.monotonic() - written >= runs.shared.checkpoint_seconds:
                _checkpoint(runs, folder)
                written = time.monotonic()
    # The signals are themselves again: the last checkpoint is written, and what follows can be done anew.
    (trained,) = runs.trained()
    _finish(trained, folder, board)
    return trained


def _check_same(config: Config, settings: dict[str, Any]) -> None:
    """Refuses to go on with other settings than the checkpoint was written with: config.json has been changed."""
    for key, value in config.as_dict().items():
        then = settings.get(key, value)
        then = tuple(then) if isinstance(then, list) else then
        if value != then and key not in FREE:
            raise UsageError(f"{key} is {value} in the run's {CONFIG} and was {then} when its checkpoint was written")


def _checkpoint(runs: Stack, folder: RunFolder) -> None:
    facts = {"history": runs.histories[0], "settings": runs.configs[0].as_dict()}
    write_checkpoint(folder.path, runs.step, runs.state(), facts)


def _finish(trained: Trained, folder: RunFolder, board: Board | None) -> None:
    """Writes what a finished run has; the checkpoints have then done their duty."""
    folder.save_model(trained.model)
    folder.save_features(trained.features, trained.data.test_y)
    if board:
        board.embed(trained.features, trained.data.test_y)
    draw_figures(trained, folder.path / "figures")
    remove_checkpoints(folder.path)


def draw_figures(trained: Trained, folder: Path) -> None:
    """For points in the plane the decisions, for images the features; and the training curves."""
    folder.mkdir(exist_ok=True)
    if trained.data.event == (2,):
        draw_decisions([decisions(trained)], folder / "decisions.png")
    else:
        draw_embeddings([embedding(trained)], folder / "embedding.png")
    draw_curves(trained.history, trained.config.method, folder / "curves.png")


def decisions(trained: Trained) -> Decisions:
    """The panel of a run on points in the plane."""
    points = trained.data.train_x.numpy()

    def classify(x: np.ndarray) -> np.ndarray:
        return predict(trained.model, torch.from_numpy(x).float()).logits.argmax(-1).numpy()

    return Decisions(caption(trained), points, points[trained.labels.numpy() >= 0], classify)


def embedding(trained: Trained) -> Embedding:
    """The panel of a run's test features."""
    return Embedding(caption(trained), trained.features.numpy(), trained.data.test_y.numpy())


def caption(trained: Trained) -> str:
    """The method and its error."""
    return f"{trained.config.method}: {trained.error:.2f} % error"
