"""One run with several seeds. Each has a folder of its own, and is statistically the run it would be alone.

    SERIES/series.json, seed-0/, seed-1/, ...

Small networks leave a processor idle, so their seeds train side by side in one pass (`Stack`). A convolutional network
of the paper's size fills a GPU by itself: its seeds come one after the other, and the later ones find everything
compiled. docs/performance.md has the figures.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sntg.errors import DivergenceError, UsageError
from sntg.files import write_text
from sntg.training.config import Config, config_from
from sntg.training.loop import Trained, check_stack
from sntg.training.run import OnEpochs, OnStep, begin, config_to_resume, go_on, resume, run
from sntg.training.run_folder import CONFIG, WEIGHTS, RunFolder, check_free

SERIES = "series.json"
SIDE_BY_SIDE = ("mlp",)  # models whose seeds gain from one pass
MOST_SEEDS = 1000


def read_seeds(text: str) -> list[int]:
    """The seeds that `0-3`, `7` or `0-3,7` mean, in that order.

    >>> read_seeds("0-3,7")
    [0, 1, 2, 3, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise UsageError(f"--seeds {text!r} is not of the form 0-3 or 0,2,5")
        low, high = int(first), int(last or first)
        if not low <= high or high - low >= MOST_SEEDS:
            raise UsageError(f"--seeds {text!r}: {part.strip()} must count up, and over at most {MOST_SEEDS} seeds")
        seeds += range(low, high + 1)
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"--seeds {text!r} names a seed twice")
    return seeds


def run_series(
    configs: Sequence[Config],
    out: Path | str,
    on_epoch: OnEpochs = lambda records: None,
    on_step: OnStep = lambda runs: None,
) -> list[Trained]:
    """Trains runs that differ in their seed alone, each into out/seed-N. `on_epoch` gets the records of who trains now.

    >>> import tempfile
    >>> from sntg.training import resolve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = run_series([resolve("two-moons", 12, "pi", seed, epochs=1) for seed in (0, 1)], folder)
    ...     sorted(p.name for p in Path(folder).iterdir() if p.is_dir())
    ['seed-0', 'seed-1']
    """
    check_stack(configs)
    home = RunFolder(out)
    check_free(home.path)
    with home.locked():
        write_text(home.path / SERIES, json.dumps([config.as_dict() for config in configs], indent=1) + "\n")
        try:
            return _train(configs, home.path, "", on_epoch, on_step)
        except UsageError:
            if not any(_folder(home.path, config).path.exists() for config in configs):
                (home.path / SERIES).unlink()  # nothing has begun: the folder stays free for another attempt
            raise


def resume_series(
    out: Path | str,
    data: str = "",
    on_epoch: OnEpochs = lambda records: None,
    on_step: OnStep = lambda runs: None,
    on_damage: Callable[[str], None] = lambda message: None,
) -> list[Trained]:
    """Goes on with an interrupted series; seeds that are done are left alone."""
    home = RunFolder(out)
    read_series(home.path)  # before a lock is put into what is no series
    with home.locked():
        configs = [replace(c, data=data or c.data) for c in read_series(home.path)]
        if all(_folder(home.path, c).finished for c in configs):
            raise UsageError(f"the series {str(home.path)!r} is finished: there is nothing to resume")
        return _train(configs, home.path, data, on_epoch, on_step, on_damage)


def _train(
    configs: Sequence[Config],
    home: Path,
    data: str,
    on_epoch: OnEpochs,
    on_step: OnStep,
    on_damage: Callable[[str], None] = lambda message: None,
) -> list[Trained]:
    """Begins what has not begun, goes on with what has, and leaves alone what is done."""
    if configs[0].model in SIDE_BY_SIDE:
        return _together(configs, home, data, on_epoch, on_step, on_damage)
    trained, failures = [], []
    for config in configs:
        folder = _folder(home, config)
        try:
            if not (folder.path / CONFIG).exists():
                trained.append(run(config, folder.path, lambda record: on_epoch([record]), on_step))
            elif not folder.finished:
                trained.append(resume(folder.path, data, lambda record: on_epoch([record]), on_step, on_damage))
        except DivergenceError as e:  # the other seeds may do better
            failures.append(f"seed {config.seed}: {e}")
    if failures:
        raise DivergenceError("; ".join(failures))
    return trained


def _together(
    configs: Sequence[Config],
    home: Path,
    data: str,
    on_epoch: OnEpochs,
    on_step: OnStep,
    on_damage: Callable[[str], None],
) -> list[Trained]:
    """The whole series as one stack, with its checkpoints in `home`."""
    folders = [_folder(home, config) for config in configs]
    begun = [folder.path / CONFIG for folder in folders]
    if not all(config.exists() for config in begun):
        for config in begun:  # it was stopped while the folders were made
            config.unlink(missing_ok=True)
        return begin(configs, folders, home, on_epoch, on_step)
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(folder.locked())
        configs = [config_to_resume(folder, data) for folder in folders]
        return go_on(configs, folders, home, on_epoch, on_step, on_damage)


def read_series(path: Path) -> list[Config]:
    """The runs of a series."""
    try:
        listed = json.loads((path / SERIES).read_text(encoding="utf-8"))
        if not (isinstance(listed, list) and listed):
            raise UsageError("it lists no runs")
        return [config_from(values) for values in listed]
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as e:
        raise UsageError(f"{str(path / SERIES)!r} cannot be read: {e}") from None


def final_errors(path: Path) -> list[float]:
    """The error of each seed that is done, whenever that was."""
    folders = [_folder(path, config) for config in read_series(path)]
    return [folder.last_error() for folder in folders if (folder.path / WEIGHTS).exists()]


def _folder(home: Path, config: Config) -> RunFolder:
    return RunFolder(home / f"seed-{config.seed}")
