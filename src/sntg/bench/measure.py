"""Measures cases: builds their runs, lets them take turns, and makes a row of each."""

import gc
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from sntg.bench.cases import IMAGES, SNTG, Case, Group, automatic, config_of, epoch_steps, inputs_of, run_steps
from sntg.bench.counting import count
from sntg.bench.starting import Start, begin, compiler_cache, environment, kept_bytecode, start_anew
from sntg.bench.timing import EVALUATIONS, UNMEASURED, block_length, matrix_rate, seconds, take_turns
from sntg.compiler import name_cache
from sntg.training import Inputs, Stack
from sntg.training.randomness import own_randomness

GIB = 2**30


@dataclass(frozen=True)
class Row:
    """The figures of one case, under the engine that really ran; None where there is none.

    random: whether the inputs are noise in the dataset's shapes. asked: the engine that was asked for. auto: whether
    this is what `auto` means here. rounds_ms: a figure a round; their median is ms_per_step. operations: of a step's
    convolutions and matrix products. share: of the device's rate for a large matrix product in that precision.
    warm_up_s: what it took to start, the first step and evaluation included, in a new process with nothing compiled
    before; second_warm_up_s: in another one, with the compiler's cache filled, for what `auto` means. run_steps: of a
    whole run by the recipe. evaluation_s: of both sets of weights, on evaluation_points.
    """

    dataset: str
    method: str
    asked: str
    engine: str
    precision: str
    auto: bool
    model: str = ""
    random: bool = False
    ms_per_step: float | None = None
    rounds_ms: list[float] = field(default_factory=list)
    steps: int = 0
    images_per_s: float | None = None
    operations: int | None = None
    tflops: float | None = None
    share: float | None = None
    peak_gib: float | None = None
    warm_up_s: float | None = None
    second_warm_up_s: float | None = None
    epoch_steps: int = 0
    epoch_s: float | None = None
    run_steps: int = 0
    evaluation_s: float | None = None
    evaluation_points: int = 0
    failed: str = ""  # why there are no figures


@dataclass(frozen=True)
class Built:
    """A case's run, ready to step."""

    case: Case
    stack: Stack
    starts: list[Start]  # in new processes: the first and, if it was asked for, the second
    started_s: float  # in this one
    step_s: float  # roughly: how long a step takes
    peak_gib: float | None


class Bench:
    """Measures on one device. `steps`: how many, if not for a second; `rates`: its TFLOP/s by precision, so far."""

    def __init__(self, device: str, steps: int | None = None, rates: Mapping[str, float] | None = None) -> None:
        # Now, whether or not the first case needs it: `release` could do nothing with what Ctrl-C has left half loaded.
        name_cache()
        importlib.import_module("torch._dynamo")
        self.name, self.device = device, torch.device(device)
        self.steps = steps
        self.rates = dict(rates or {})
        self._inputs: dict[str, Inputs] = {}
        self._operations: dict[tuple[str, str], int] = {}
        # What is compiled, in a folder for each shape of a step: what another left would make a start look short.
        self._caches = TemporaryDirectory(prefix="sntg-bench-", ignore_cleanup_errors=True)

    def close(self) -> None:
        """Removes what was compiled."""
        self._caches.cleanup()

    def measure(self, group: Group) -> list[Row]:
        """A row for each case. They are alive together, and take turns. What fails is told in its row."""
        try:
            with own_randomness(config_of(group[0], self.name)):
                return self._rows(group)
        except RuntimeError as e:  # too little memory, or a precision the device does not have: the others still count
            reason = str(e).strip().splitlines()
            return [replace(self._empty(case), failed=reason[0] if reason else type(e).__name__) for case in group]
        finally:
            release(self.device)

    def _rows(self, group: Group) -> list[Row]:
        operations = [self._count(case) for case in group]
        release(self.device)
        built = [self._build(case) for case in group]
        lengths = [block_length(b.step_s, self.steps) for b in built]
        rounds = take_turns([b.stack.advance for b in built], lengths, self.device)
        return [self._row(*figures) for figures in zip(built, rounds, lengths, operations, strict=True)]

    def _build(self, case: Case) -> Built:
        """Builds a run and takes some steps. What was allocated before, the data among it, does not count as its own.

        A recorded graph's memory counts as free once it is recorded, so the peak is that of building it and stepping.
        """
        config, inputs = config_of(case, self.name), self._data(case)
        stacks: list[Stack] = []
        on_cuda = self.device.type == "cuda"
        before = torch.cuda.memory_allocated(self.device) if on_cuda else 0
        if on_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        # The engines of one method and precision share what is compiled.
        cache = Path(self._caches.name, case.dataset, case.method, case.precision)
        with compiler_cache(cache):
            starts = self._starts(case, cache)
            took = seconds(lambda: stacks.append(begin(config, inputs)), self.device)
        step = seconds(stacks[0].advance, self.device, UNMEASURED) / UNMEASURED
        if on_cuda:
            peak: float | None = (torch.cuda.max_memory_allocated(self.device) - before) / GIB
        else:
            peak = starts[0].peak_gib if starts else None
        return Built(case, stacks[0], starts, took, step, peak)

    def _starts(self, case: Case, cache: Path) -> list[Start]:
        """Starts a case in new processes. The first fills the compiler's cache, for the second and for this process."""
        if case.engine == "eager":  # nothing is compiled: a process of its own only tells what memory a CPU's run takes
            return [] if self.device.type == "cuda" else [start_anew(case, self.name)]
        if cache.exists():
            return []
        cache.mkdir(parents=True)
        with environment(self._bytecode):
            return [start_anew(case, self.name) for _ in range(2 if self._empty(case).auto else 1)]

    @cached_property
    def _bytecode(self) -> dict[str, str]:
        folder = Path(self._caches.name)
        with compiler_cache(folder / "loading"):  # not the case's own, which is to be empty
            return kept_bytecode(folder / "bytecode", self.name)

    def _row(self, built: Built, rounds: list[float], length: int, operations: int) -> Row:
        stack, config = built.stack, built.stack.configs[0]
        step, steps = median(rounds), epoch_steps(config.dataset, config.method)
        tflops = operations / step / 1e12
        starts = [start.seconds for start in built.starts]
        if config.engine == "eager":  # nothing is compiled, so here it starts as it does in a new process
            starts = [built.started_s]
        return replace(
            self._empty(built.case),
            engine=config.engine,
            model=config.model,
            random=config.dataset == IMAGES,
            ms_per_step=1e3 * step,
            rounds_ms=[1e3 * s for s in rounds],
            steps=length * len(rounds),
            images_per_s=(config.batch + config.labelled_batch) / step,
            operations=operations,
            tflops=tflops,
            share=tflops / self._rate(config.precision),
            peak_gib=built.peak_gib,
            warm_up_s=starts[0] if starts else None,
            second_warm_up_s=starts[1] if len(starts) > 1 else None,
            epoch_steps=steps,
            epoch_s=steps * step,
            run_steps=run_steps(config.dataset, config.method),
            evaluation_s=median(seconds(stack.errors, self.device) for _ in range(EVALUATIONS)),
            evaluation_points=len(stack.inputs[0].data.test_y),
        )

    def _empty(self, case: Case) -> Row:
        auto = case == automatic(case.dataset, case.method, str(self.device))
        return Row(case.dataset, case.method, case.engine, case.engine, case.precision, auto)

    def _data(self, case: Case) -> Inputs:
        if case.dataset not in self._inputs:
            self._inputs[case.dataset] = inputs_of(config_of(case, self.name))
        return self._inputs[case.dataset]

    def _rate(self, precision: str) -> float:
        if precision not in self.rates:
            self.rates[precision] = matrix_rate(precision, self.device)
        return self.rates[precision]

    def _count(self, case: Case) -> int:
        """The operations of a step as the method is written, whatever engine and precision run it."""
        key = case.dataset, case.method
        if key not in self._operations:
            plain = config_of(replace(case, engine="eager", precision="float32"), self.name)
            # No weight is zero then, so no gradient is, and all that is computed has a part in the result.
            plain = replace(plain, ramp_up=0, graph_start=0, graph_ramp=0)
            self._operations[key] = count(Stack([plain], [self._data(case)]).advance)
        return self._operations[key]


def release(device: torch.device) -> None:
    """Lets go of runs nobody holds any more: the compiler and the runs themselves hold on to each other."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def overheads(rows: Sequence[Row]) -> list[dict[str, object]]:
    """How many times as long a step with the graph term takes, for the rows that took turns with the same step without.

    >>> row = Row("two-moons", "pi", "eager", "eager", "float32", auto=True, rounds_ms=[1.0, 2.0, 4.0])
    >>> overheads([row, replace(row, method="pi+sntg", rounds_ms=[1.5, 2.2, 4.4])])[0]["ratio"]
    1.1
    """
    found: list[dict[str, object]] = []
    for one in rows:
        for other in rows:
            same = all(getattr(one, key) == getattr(other, key) for key in ("dataset", "asked", "engine", "precision"))
            if same and other.method == one.method + SNTG and one.rounds_ms:
                ratios = [b / a for a, b in zip(one.rounds_ms, other.rounds_ms, strict=True)]
                shared = {key: getattr(one, key) for key in ("dataset", "method", "asked", "engine", "precision")}
                found.append(shared | {"ratio": median(ratios), "rounds": ratios})
    return found
