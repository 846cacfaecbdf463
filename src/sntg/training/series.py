"""One run with several seeds. Each has a folder of its own, and is statistically the run it would be alone.

    SERIES/series.json, seed-0/, seed-1/, ..., and split.txt, a copy of the split file where one was given

One run leaves a processor partly idle. The seeds of a small network go through in one pass (`Stack`). A convolutional
network on a GPU gains nothing from that; its seeds take turns, each on a stream of its own (`lanes`), and each is, to
the bit, the run it would be alone. On a CPU they come one after the other. docs/performance.md has the figures.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from sntg.errors import DivergenceError, UsageError
from sntg.files import write_bytes, write_text
from sntg.models import CONVOLUTIONAL
from sntg.training.checkpoints import has_checkpoints, remove_checkpoints
from sntg.training.config import Config, MissingGPU, config_from
from sntg.training.graphs import check_graph
from sntg.training.inputs import Inputs, load_inputs
from sntg.training.lanes import Lane, take_turns
from sntg.training.loop import Record, Trained, check_stack
from sntg.training.randomness import own_randomness
from sntg.training.run import ONE_PASS, Load, OnEpochs, OnStep, Steps, begin, config_to_resume, go_on
from sntg.training.run_folder import CONFIG, SERIES, SPLIT, WEIGHTS, RunFolder, check_free, elsewhere, read_config
from sntg.training.stopping import stop_if_asked, stop_requests

AT_ONCE = 3  # on an H200 1.12 times the steps of one for the 13-layer net, 1.64 for the small one; 2 give 1.11, 1.46
MOST_SEEDS = 1000
LONGEST = 40  # characters of two numbers that may be seeds


def read_seeds(text: str) -> list[int]:
    """The seeds that `0-3`, `7` or `0-3,7` mean, in that order.

    >>> read_seeds("0-3,7")
    [0, 1, 2, 3, 7]
    """
    seeds: list[int] = []
    shown = repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(part) > LONGEST:
            raise UsageError(f"--seeds {shown} is not of the form 0-3 or 0,2,5")
        low, high = int(first), int(last or first)
        if not low <= high or high - low >= MOST_SEEDS:
            raise UsageError(f"--seeds {shown}: {part.strip()} must count up, and over at most {MOST_SEEDS} seeds")
        seeds += range(low, high + 1)
        if len(seeds) > MOST_SEEDS:
            raise UsageError(f"--seeds {shown} names more than {MOST_SEEDS} seeds")
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"--seeds {shown} names a seed twice")
    return seeds


def run_series(
    configs: Sequence[Config],
    out: Path | str,
    on_epoch: OnEpochs = lambda records: None,
    on_step: OnStep = lambda runs: None,
) -> list[Trained]:
    """Trains runs of different seeds, each into out/seed-N. `on_epoch` gets the records of who trains now.

    One that diverges does not keep the others from their end; then a DivergenceError names it.

    >>> import tempfile
    >>> from sntg.training import resolve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = run_series([resolve("two-moons", 12, "pi", seed, epochs=1) for seed in (0, 1)], folder)
    ...     sorted(p.name for p in Path(folder).iterdir() if p.is_dir())
    ['seed-0', 'seed-1']
    """
    check_stack(configs)
    if len({config.seed for config in configs}) < len(configs):
        listed = ", ".join(str(config.seed) for config in configs)
        raise UsageError(f"the seeds {listed} name one twice: the runs' folders are named by their seeds")
    check_graph(configs)  # now, and not when the first seeds are trained
    home = RunFolder(out)
    check_free(home.path)
    with home.locked():
        home.remove_partial()
        (home.path / SPLIT).unlink(missing_ok=True)  # of a run that was killed before it had settings
        write_text(home.path / SERIES, json.dumps([config.as_dict() for config in configs], indent=1) + "\n")
        try:
            return _train(configs, home.path, "", on_epoch, on_step)
        except UsageError as e:
            folders = [_folder(home.path, config) for config in configs]
            if not any((folder.path / CONFIG).exists() for folder in folders):  # nothing has begun
                for folder in folders:
                    folder.discard()
                for name in (SERIES, SPLIT):
                    (home.path / name).unlink(missing_ok=True)  # the folder stays free for another attempt
                raise
            raise UsageError(f"{e}; `sntg resume {shlex.quote(str(out))}` goes on when that is put right") from None


def resume_series(
    out: Path | str,
    data: str = "",
    on_epoch: OnEpochs = lambda records: None,
    on_step: OnStep = lambda runs: None,
    on_damage: Callable[[str], None] = lambda message: None,
) -> list[Trained]:
    """Goes on with an interrupted series; seeds that are done are left alone.

    >>> import signal, tempfile
    >>> from contextlib import suppress
    >>> from sntg.training import Stopped, resolve
    >>> configs = [resolve("two-moons", 12, "pi", seed, epochs=1) for seed in (0, 1)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with suppress(Stopped):  # Ctrl-C after the first step
    ...         run_series(configs, folder, on_step=lambda _: signal.raise_signal(signal.SIGINT))
    ...     begun = seeds_done(Path(folder)), [config.seed for config in read_series(Path(folder))]
    ...     runs = resume_series(folder)
    ...     done = seeds_done(Path(folder)), list(final_errors(Path(folder)))
    >>> begun, done
    ((0, [0, 1]), (2, [0, 1]))
    """
    home = RunFolder(out)
    read_series(home.path)  # before a lock is put into what is no series
    with home.locked():
        configs = [replace(c, data=data or c.data) for c in read_series(home.path)]
        if all(_folder(home.path, c).finished for c in configs):
            for path in (home.path, *(_folder(home.path, c).path for c in configs)):
                remove_checkpoints(path)  # a process killed at the very end may have left them
            raise UsageError(f"the series {str(home.path)!r} is finished: there is nothing to resume")
        return _train(configs, home.path, data, on_epoch, on_step, on_damage)


def runs_at_once(config: Config) -> int:
    """How many runs of a series take turns.

    >>> from sntg.training import resolve
    >>> runs_at_once(resolve("digits", 50, "pi"))
    1
    """
    on_gpu = torch.device(config.device).type == "cuda"
    return AT_ONCE if on_gpu and config.model in CONVOLUTIONAL else 1


def _train(
    configs: Sequence[Config],
    home: Path,
    data: str,
    on_epoch: OnEpochs,
    on_step: OnStep,
    on_damage: Callable[[str], None] = lambda message: None,
) -> list[Trained]:
    """Begins what has not begun, goes on with what has, and leaves alone what is done."""
    stacks = [configs] if configs[0].model in ONE_PASS else [[c] for c in configs if not _folder(home, c).finished]
    news: list[Record] = []

    def tell() -> None:
        """The records of a round at once: runs that began together end their epochs together."""
        for epoch in dict.fromkeys(record["epoch"] for record in news):  # one that began later may be at another
            on_epoch([record for record in news if record["epoch"] == epoch])
        news.clear()

    # What is the process's and not a run's, kernels and signals, is seen to for all of them: they end in any order.
    with own_randomness(configs[0]), stop_requests():
        told = news.extend, on_step, on_damage
        load = partial(load_inputs, whitened={})  # images are the same for every seed: they are kept once
        _check_copy(configs, home, load)
        jobs = [partial(_steps, stack, home, data, load, *told) for stack in stacks]
        lanes = [Lane(torch.device(configs[0].device)) for _ in range(runs_at_once(configs[0]))]
        outcomes = take_turns(jobs, lanes, tell)
    failures = [
        f"seed {stack[0].seed}: {outcome}" if len(stack) == 1 else outcome  # a pass of several names them itself
        for stack, outcome in zip(stacks, outcomes, strict=True)
        if isinstance(outcome, str)
    ]
    if failures:
        raise DivergenceError("; ".join(failures))
    return [run for outcome in outcomes if isinstance(outcome, list) for run in outcome]


def _steps(
    configs: Sequence[Config],
    series: Path,
    data: str,
    load: Load,
    on_epoch: OnEpochs,
    on_step: OnStep,
    on_damage: Callable[[str], None],
) -> Steps:
    """The training of a stack of the series, from the start or from its last checkpoint."""
    stop_if_asked()  # before much time goes into data that nobody trains on
    folders = [_folder(series, config) for config in configs]
    in_one_pass = configs[0].model in ONE_PASS
    home = series if in_one_pass else folders[0].path
    without = [folder for folder in folders if not (folder.path / CONFIG).exists()]
    if without:  # it was stopped while the folders were made
        _check_untrained(folders, home, without[0])
        for folder in folders:
            (folder.path / CONFIG).unlink(missing_ok=True)
        load = partial(_with_same_split, load, series)
        return (yield from begin(configs, folders, home, on_epoch, on_step, load))
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(folder.locked())
        seed = "" if in_one_pass else f"seed {configs[0].seed}: "
        try:
            configs = [config_to_resume(folder, data, in_one_pass) for folder in folders]
            return (yield from go_on(configs, folders, home, on_epoch, on_step, on_damage, load))
        except UsageError as e:
            raise UsageError(f"{seed}{e}") from None


def _check_copy(configs: Sequence[Config], series: Path, load: Load) -> None:
    """Refuses a copy of the split file that no longer gives a seed its split, where others are to begin from it."""
    begun = [config for config in configs if (_folder(series, config).path / CONFIG).exists()]
    if not configs[0].split_file or len(begun) == len(configs):
        return
    copy = str(series / SPLIT)
    for config in begun:
        if then := read_config(_folder(series, config).path).split_hash:  # earlier versions' have none
            if load(replace(config, split_file=copy)).split.content_hash != then:
                raise UsageError(f"{copy!r} is not what seed {config.seed} was started with: put it back as before")
            return  # one tells for all: they had the same


def _with_same_split(load: Load, series: Path, config: Config) -> Inputs:
    """Keeps a copy of a split file when the first seed reads it, for those that begin later: the file may change."""
    copy = series / SPLIT
    if config.split_file and copy.exists():
        return load(replace(config, split_file=str(copy)))
    inputs = load(config)
    if config.split_file:
        write_bytes(copy, Path(config.split_file).read_bytes())
    return inputs


def _check_untrained(folders: Sequence[RunFolder], home: Path, without: RunFolder) -> None:
    """Refuses to begin anew where there is something to lose."""
    if has_checkpoints(home) or any(folder.begun for folder in folders):
        alone = home == without.path
        cure = "remove the folder: the seed begins anew" if alone else "begin a new series: one pass trains all seeds"
        raise UsageError(f"{str(without.path)!r} has no {CONFIG}, though training had begun: put it back, or {cure}")


def is_series(path: Path) -> bool:
    """Whether a folder is that of a series.

    >>> is_series(Path("nowhere"))
    False
    """
    try:
        return (path / SERIES).exists()
    except OSError as e:
        raise UsageError(f"{str(path)!r} cannot be read: {e.strerror}") from None


def read_series(path: Path) -> list[Config]:
    """The runs of a series; `resume_series` has an example."""
    try:
        listed = json.loads((path / SERIES).read_text(encoding="utf-8"))
        if not (isinstance(listed, list) and listed):
            raise UsageError("it lists no runs")
        configs = [config_from(values) for values in listed]
        if len({config.seed for config in configs}) < len(configs):
            raise UsageError("it lists a seed twice")
        return configs
    except MissingGPU:
        raise elsewhere(path) from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as e:
        raise UsageError(f"{str(path / SERIES)!r} cannot be read: {e}") from None


def seeds_done(path: Path) -> int:
    """How many seeds of a series are done; `resume_series` has an example."""
    return sum(_folder(path, config).finished for config in read_series(path))


def final_errors(path: Path) -> dict[int, float]:
    """The error of each seed that is done, whenever that was; `resume_series` has an example."""
    folders = {config.seed: _folder(path, config) for config in read_series(path)}
    return {seed: folder.last_error() for seed, folder in folders.items() if (folder.path / WEIGHTS).exists()}


def _folder(home: Path, config: Config) -> RunFolder:
    return RunFolder(home / f"seed-{config.seed}")
