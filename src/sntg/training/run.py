"""One run from settings to a finished run folder, and an interrupted one from its last checkpoint."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sntg.errors import DivergenceError, UsageError
from sntg.figures import Decisions, Embedding, draw_curves, draw_decisions, draw_embeddings
from sntg.training.arithmetic import check_surroundings
from sntg.training.checkpoints import drop_after, read_latest, remove_checkpoints, write_checkpoint
from sntg.training.config import Config, check_config
from sntg.training.evaluation import predict
from sntg.training.inputs import Inputs, load_inputs
from sntg.training.loop import Record, Stack, Trained
from sntg.training.randomness import other_draws, own_randomness
from sntg.training.run_folder import CONFIG, FIGURES, SERIES, SPLIT, RunFolder, check_free, read_config
from sntg.training.stopping import Stopped, stop_requests
from sntg.training.tensorboard import Board, check_tensorboard

# What may change when a run goes on: folders that have been moved, and how it is executed. (An engine may not work any
# more where it goes on, and a slower one takes over.)
FREE = ("data", "split_file", "fixed_from", "storage", "engine", "checkpoint_seconds", "tensorboard")
CONTENT = ("data_hash", "split_hash")  # what comes of the others
ONE_PASS = ("mlp",)  # models whose seeds gain from one pass: those of a series are one stack
OnEpoch = Callable[[Record], None]
OnEpochs = Callable[[list[Record]], None]  # of every living run of a stack
OnStep = Callable[[Stack], None]  # it looks, but draws no random numbers and keeps nothing: a run ends by letting go
Load = Callable[[Config], Inputs]  # `load_inputs`, or someone's who knows what others have loaded
Steps = Generator[None, None, list[Trained]]  # the training of a stack: it rests after every step, and returns its runs


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
    check_config(config)
    folder = RunFolder(out)
    check_free(folder.path)
    (trained,) = _to_the_end(begin([config], [folder], folder.path, lambda records: on_epoch(records[0]), on_step))
    return trained


def begin(
    configs: Sequence[Config],
    folders: Sequence[RunFolder],
    home: Path,
    on_epoch: OnEpochs,
    on_step: OnStep,
    load: Load = load_inputs,
) -> Steps:
    """Trains a stack of runs, each into a folder of its own, with the stack's checkpoints in `home`."""
    check_surroundings(configs[0].device)
    with own_randomness(configs[0]):
        if configs[0].tensorboard:
            check_tensorboard()
        runs = Stack(configs, [load(c) for c in configs])  # what cannot be trained leaves no folder behind
        with closing(runs), ExitStack() as locks:
            for folder, config, inputs in zip(folders, runs.configs, runs.inputs, strict=True):
                locks.enter_context(folder.locked())
                folder.start(config, inputs.split)
            return (yield from _carry_on(runs, folders, home, on_epoch, on_step))


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

    >>> import signal, tempfile
    >>> from contextlib import suppress
    >>> from sntg.training import resolve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with suppress(Stopped):  # Ctrl-C after the first epoch
    ...         run(resolve("two-moons", 12, "pi", epochs=2), folder, lambda _: signal.raise_signal(signal.SIGINT))
    ...     [record["epoch"] for record in resume(folder).history]
    [1, 2]
    """
    folder = RunFolder(out)
    config_to_resume(folder, data)  # before a lock is put into what is no run
    with folder.locked():
        config = config_to_resume(folder, data)  # who held the lock may have finished it
        steps = go_on([config], [folder], folder.path, lambda records: on_epoch(records[0]), on_step, on_damage)
        (trained,) = _to_the_end(steps)
    return trained


def go_on(
    configs: Sequence[Config],
    folders: Sequence[RunFolder],
    home: Path,
    on_epoch: OnEpochs,
    on_step: OnStep,
    on_damage: Callable[[str], None],
    load: Load = load_inputs,
) -> Steps:
    """Goes on with a stack of runs from its last whole checkpoint."""
    check_surroundings(configs[0].device)
    with own_randomness(configs[0]):
        checkpoint = read_latest(home, on_damage)
        if checkpoint:  # before what they lead to is found to be another
            _check_same(configs, checkpoint.facts["settings"])
        inputs = [load(config) for config in configs]
        _check_content(configs, inputs, [config.as_dict() for config in configs])
        if checkpoint:
            _check_content(configs, inputs, checkpoint.facts["settings"])
        with closing(Stack(configs, inputs)) as runs:
            drop_after(home, checkpoint.step if checkpoint else 0)
            if checkpoint:
                diverged = dict(checkpoint.facts.get("diverged", []))  # earlier versions' have none
                runs.load_state(checkpoint.tensors, checkpoint.facts["histories"], diverged)
            for folder, config, loaded, history in zip(folders, configs, inputs, runs.histories, strict=True):
                folder.remove_partial()
                if not config.split_file:  # else it is what has just been read
                    folder.write_split(config, loaded.split)
                folder.write_held_out(config, loaded.split)
                folder.set_metrics(history)
            return (yield from _carry_on(runs, folders, home, on_epoch, on_step))


def advance(steps: Steps) -> list[Trained] | None:
    """Takes one step. When there is none left to take, it finishes the folders and returns the runs."""
    try:
        next(steps)
    except StopIteration as end:
        trained: list[Trained] = end.value
        return trained
    return None


def _to_the_end(steps: Steps) -> list[Trained]:
    while (trained := advance(steps)) is None:
        pass
    return trained


def config_to_resume(folder: RunFolder, data: str = "", in_one_pass: bool = False) -> Config:
    """The settings an interrupted run goes on with.

    One that is done is refused, and so is one whose series trains in one pass: the checkpoints are the pass's, and so
    are the random numbers. in_one_pass: it is the pass that goes on; perhaps it was stopped while it finished its runs.

    >>> config_to_resume(RunFolder("nowhere"))
    Traceback (most recent call last):
    sntg.errors.UsageError: 'nowhere' is not a run folder: it has no config.json
    """
    stored = read_config(folder.path, keep_device=True)
    if folder.finished and not in_one_pass:
        remove_checkpoints(folder.path)  # a process killed at the very end may have left them
        raise UsageError(f"the run {str(folder.path)!r} is finished: there is nothing to resume")
    real = folder.path.resolve()
    of_series = real.name == f"seed-{stored.seed}" and (real.parent / SERIES).exists()
    if of_series and stored.model in ONE_PASS and not in_one_pass:
        raise UsageError(f"the series of {str(folder.path)!r} trains in one pass: resume {str(real.parent)!r}")
    changes: dict[str, Any] = {"data": data} if data else {}
    if stored.split_file:  # the run's own copy: the file may have changed since
        changes["split_file"] = str(folder.path / SPLIT)
    return replace(stored, **changes)


def _carry_on(runs: Stack, folders: Sequence[RunFolder], home: Path, on_epoch: OnEpochs, on_step: OnStep) -> Steps:
    """Trains to the end, with checkpoints on the way, and finishes the folders."""
    with ExitStack() as held:
        noted = folders if runs.shared.tensorboard else []
        boards = [held.enter_context(closing(Board(folder.path, runs.step or None))) for folder in noted]
        return (yield from _noting_down(runs, folders, boards, home, on_epoch, on_step))


def _noting_down(
    runs: Stack,
    folders: Sequence[RunFolder],
    boards: Sequence[Board],
    home: Path,
    on_epoch: OnEpochs,
    on_step: OnStep,
) -> Steps:
    """`_carry_on`, with the boards that it holds open, if TensorBoard is wanted."""
    with stop_requests() as check_stop:
        written = time.monotonic()
        while not runs.finished:
            records = runs.advance()
            if records:
                for r, record in zip(runs.living, records, strict=True):
                    folders[r].add_metrics(record)
                    if boards:
                        boards[r].add(record)
            on_step(runs)
            if records:
                with other_draws(runs.device):
                    on_epoch(records)
            try:
                check_stop()
            except Stopped:
                _checkpoint(runs, home)
                raise
            if runs.finished or time.monotonic() - written >= runs.shared.checkpoint_seconds:
                _checkpoint(runs, home)
                written = time.monotonic()
            yield
    # A run alone lets signals be themselves again: the last checkpoint is written, and what follows can be done anew.
    trained = runs.trained()
    for r, done in zip(runs.living, trained, strict=True):
        check_stop()  # it may have come while the last checkpoint was written, and there may be a thousand runs
        try:
            _finish(done, folders[r], boards[r] if boards else None)
        except DivergenceError as e:  # the others may do better
            runs.diverged[r] = str(e)
    if runs.diverged:
        raise DivergenceError(runs.divergence)  # the last checkpoint stays: who resumes it is told the same
    remove_checkpoints(home)
    return trained


def _check_content(configs: Sequence[Config], inputs: Sequence[Inputs], written: Sequence[dict[str, Any]]) -> None:
    """Refuses to go on with other data or labels than were written down, when the run began or at its checkpoint."""
    for config, loaded, settings in zip(configs, inputs, written, strict=True):
        own = f"the settings in the run's {CONFIG}"
        listed = f"the split file {config.split_file!r}" if config.split_file else own
        for key, now, what, cure in (
            ("data_hash", loaded.data.content_hash, "the data are", f"the data, or {own},"),
            ("split_hash", loaded.split.content_hash, "the labels, or the points held out, are", listed),
        ):
            if settings.get(key, "") not in ("", now):  # earlier versions' have no hash of the split
                raise UsageError(f"{what} not what the run was started with: put {cure} back as before")


def _check_same(configs: Sequence[Config], written: Sequence[dict[str, Any]]) -> None:
    """Refuses to go on with other runs or settings than the checkpoint was written with: a file has been changed."""
    if len(configs) != len(written):
        now = ", ".join(str(config.seed) for config in configs)
        before = ", ".join(str(settings["seed"]) for settings in written)
        raise UsageError(f"{SERIES} lists the seeds {now}, and its checkpoint is of the seeds {before}: put it back")
    for config, settings in zip(configs, written, strict=True):
        for key, value in config.as_dict().items():
            then = settings.get(key, value)
            then = tuple(then) if isinstance(then, list) else then
            if value != then and key not in (*FREE, *CONTENT):
                raise UsageError(
                    f"{key} is {value} in the run's {CONFIG} and was {then} when its checkpoint was written"
                )


def _checkpoint(runs: Stack, home: Path) -> None:
    settings = [config.as_dict() for config in runs.configs]
    facts = {"histories": runs.histories, "diverged": list(runs.diverged.items()), "settings": settings}
    write_checkpoint(home, runs.step, runs.state(), facts)


def _finish(trained: Trained, folder: RunFolder, board: Board | None) -> None:
    """Writes what a finished run has."""
    folder.save_model(trained.model)
    folder.save_features(trained.features, trained.data.test_y)
    if board:
        board.embed(trained.features, trained.data.test_y)
    draw_figures(trained, folder.path / FIGURES)


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
