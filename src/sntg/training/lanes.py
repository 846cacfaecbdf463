"""Runs that take turns on one device: a step of the first, a step of the second, and so on, all by one thread.

A run alone leaves a GPU idle between and within its kernels. Where each run launches its steps on a stream of its own,
the GPU works on those of several at once, though one thread launches them all.

Each run stays, to the bit, what it would be alone: it has a lane, and in its turn the lane's random numbers are the
ones that are drawn. On the host the generator's state is copied in and out. On a GPU it changes places by pointer: a
recorded step keeps the state it was recorded with, and each replay writes that state's seed and position into memory
that belongs to the state, for the kernels to read. Two recordings of one state would overwrite each other's.
"""

import gc
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from sntg.errors import DivergenceError, Notice
from sntg.training.engines import beside_others
from sntg.training.loop import Trained
from sntg.training.run import Steps, advance
from sntg.training.stopping import Stopped

Job = Callable[[], Steps]  # begins the training of a stack, or goes on with it


class Lane:
    """What a run calls its own while it takes turns with others: its random numbers, and on a GPU a stream.

    >>> one, other = Lane(torch.device("cpu")), Lane(torch.device("cpu"))
    >>> drawn = []
    >>> for lane in (one, other, other, one):
    ...     with lane.turn():
    ...         drawn.append(float(torch.rand(())))
    >>> drawn[0] == drawn[1] != drawn[2] == drawn[3]
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.on_host = torch.get_rng_state()
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            before = torch.cuda.current_stream(device)
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.stream.wait_stream(before)
            self.generator = torch.cuda.default_generators[self.stream.device_index]
            self.on_gpu = self.generator.clone_state()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside, it is this lane's run that draws random numbers and launches kernels."""
        others = torch.get_rng_state()
        torch.set_rng_state(self.on_host)
        try:
            with self._turn_on_gpu() if self.stream else nullcontext():
                yield
        finally:
            self.on_host = torch.get_rng_state()
            torch.set_rng_state(others)

    @contextmanager
    def _turn_on_gpu(self) -> Iterator[None]:
        others = self.generator.graphsafe_get_state()
        self.generator.graphsafe_set_state(self.on_gpu)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            self.on_gpu = self.generator.graphsafe_get_state()  # a recording that failed has put another in its place
            self.generator.graphsafe_set_state(others)

    def has_room(self, runs: int) -> bool:
        """Whether a run fits beside those that train. It needs what each of them has; as much again is left to them,
        who may not have evaluated yet."""
        if self.stream is None:
            return True
        free, _ = torch.cuda.mem_get_info(self.stream.device)
        return free // 2 >= torch.cuda.memory_reserved(self.stream.device) // runs

    def clear(self) -> None:
        """Gives back the memory of a run that has ended, before another begins."""
        gc.collect()  # one that failed as it began still refers to its step, and the step to it
        if self.stream is not None:
            torch.cuda.empty_cache()


def take_turns(
    jobs: Sequence[Job], lanes: Sequence[Lane], after_round: Callable[[], None] = lambda: None
) -> list[list[Trained] | str]:
    """Trains the jobs, as many at once as there are lanes; returns what became of each: its runs, or why it diverged.

    A job that has ended leaves its lane to the next. One that finds no memory beside the others begins again later, in
    one lane less. Those that are asked to stop do, and when all have, Stopped is raised; anything else that goes wrong
    in one of them ends them all.

    >>> def job(name):
    ...     for _ in range(2):
    ...         print(name, end=" ")
    ...         yield
    ...     return [name]
    >>> take_turns([lambda: job("a"), lambda: job("b")], [Lane(torch.device("cpu")) for _ in range(2)])
    a b a b [['a'], ['b']]
    """
    waiting, training = deque(range(len(jobs))), dict[Lane, tuple[int, Steps]]()
    outcomes: dict[int, list[Trained] | str] = {}
    stopped: Stopped | None = None
    try:
        while training or (waiting and not stopped):
            for lane in lanes:
                if lane not in training:
                    if stopped or not waiting or (training and not lane.has_room(len(training))):
                        continue
                    training[lane] = waiting[0], jobs[waiting.popleft()]()
                number, steps = training[lane]
                beside_others.set(len(training) > 1)
                try:
                    with lane.turn():
                        trained = advance(steps)
                    if trained is None:
                        continue
                    outcomes[number] = trained
                except DivergenceError as e:  # the others may do better
                    outcomes[number] = str(e)
                except Stopped as e:
                    stopped = e
                except torch.OutOfMemoryError:
                    if len(training) == 1:
                        raise
                    at_once = f"the GPU's memory is too small for {len(training)} runs at once"
                    warnings.warn(f"{at_once}: the last of them waits until another has ended", Notice, stacklevel=2)
                    waiting.appendleft(number)
                    lanes = [other for other in lanes if other is not lane]
                del training[lane]
                lane.clear()
            after_round()
    finally:
        beside_others.set(False)
        for lane, (_, steps) in training.items():
            with lane.turn():
                steps.close()
    if stopped:
        raise stopped
    return [outcomes[number] for number in range(len(jobs))]
