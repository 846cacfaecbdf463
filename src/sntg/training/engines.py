"""How a training step is executed: as it is written, compiled, or recorded once as a CUDA graph and replayed.

A step comes in parts that never ask the host anything: every number that changes from step to step (learning rate,
weights, the place in the data) is a tensor on the device. So whoever executes the parts, they compute the same.

    eager     PyTorch runs operation after operation: the reference, on any device
    compiled  torch.compile fuses the operations; forward pass, backward pass and update are a few calls each
    graph     the whole compiled step is one launch: no time is lost between its kernels
"""

import gc
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sntg.compiler import make_cache, name_cache
from sntg.errors import Notice
from sntg.training.leftovers import compiling
from sntg.training.stopping import stop_if_asked

Run = Callable[[], None]
CPU = torch.device("cpu")
WARM_UP = 3  # steps before the recording: they compile, choose algorithms and allocate, which a recording must not
MOST_STACKS = 256  # of one process; their steps have the same code, so each counts as a recompilation of the first


# Whether other runs train on the device: then a lack of memory is no reason to be slow, but to wait for one to end.
beside_others: ContextVar[bool] = ContextVar("beside_others", default=False)


class SlowerEngine(Notice):
    """An engine does not work here, and the next slower one runs instead."""


@dataclass(frozen=True)
class Step:
    """One step of training. `forward` draws a batch and gives the loss, and what `update` needs to know besides.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> step = Step(lambda: None, lambda: (2 * weight.sum(), None), lambda: None, lambda notes: None)
    >>> step()
    >>> weight.grad
    tensor([2.])
    """

    prepare: Callable[[], None]  # the host's part: it sees to it that there are rows to draw
    forward: Callable[[], tuple[Tensor, Any]]
    gather: Callable[[], None]  # takes in the parameters' gradients
    update: Callable[[Any], None]
    device: torch.device = CPU

    def __call__(self) -> None:
        self.prepare()
        self.compute()

    def compute(self) -> None:
        """The device's part."""
        loss, notes = self.forward()
        loss.backward()  # type: ignore[no-untyped-call]
        self.gather()
        self.update(notes)


def eager(step: Step) -> Run:
    return step


def compiled(step: Step) -> Run:
    step = _compile(step)
    with compiling() if step.device.type == "cpu" else nullcontext():
        step()  # what cannot be compiled fails here, not in the midst of a run
    return step


def graph(step: Step) -> Run:
    if step.device.type != "cuda":
        raise RuntimeError(f"only what a GPU does can be recorded, and device = {step.device}")
    step = _compile(step)
    here = torch.cuda.current_stream()
    side = _own_stream()
    side.wait_stream(here)
    try:
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
    finally:  # whatever comes next begins with what these steps have left
        here.wait_stream(side)
    step.prepare()
    recording = _record(step.compute, side)

    def run() -> None:
        step.prepare()
        recording.replay()

    return run


def _own_stream() -> torch.cuda.Stream:
    """A stream that no other run records on at the time: the current one, unless that is everybody's.

    cuBLAS has a workspace for every stream, and a recording keeps to the one it was made with. Two that share it must
    not be replayed at the same time, and when one is deleted some versions of torch take it from the other.
    """
    here = torch.cuda.current_stream()
    return torch.cuda.Stream() if here == torch.cuda.default_stream() else here  # type: ignore[no-untyped-call]


def _record(compute: Run, side: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """The kernels of one call. One that fails is not ended as it should be: stream and generator are put back here."""
    gc.collect()  # what earlier runs have left is not to be freed in the midst of it
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    recording = torch.cuda.CUDAGraph()
    # Others' threads may go on meanwhile, such as one that copies the next batch over.
    capture = torch.cuda.graph(recording, stream=side, capture_error_mode="thread_local")
    failed: Exception | None = None
    try:
        with torch.cuda.stream(torch.cuda.current_stream()), capture:
            try:
                compute()
            except Exception as e:
                failed = e
                raise
    except Exception as e:
        generator.graphsafe_set_state(before)  # the old one would wait for the recording's end
        raise (failed or e) from None  # what went wrong, not that the end then went wrong too
    return recording


def _compile(step: Step) -> Step:
    if torch._dynamo.config.disable or os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        # torch.compile would do nothing, and not say so.
        raise RuntimeError("PyTorch's compiler is switched off (TORCH_COMPILE_DISABLE=1 or TORCHDYNAMO_DISABLE=1)")
    # By default the compiler times several ways to add up numbers and keeps the fastest of that day: a resumed run
    # would add up in another order, and end in other bits. What adds up nothing it would time too, for seconds.
    options: dict[str, Any] = {"deterministic": True, "triton.autotune_pointwise": False}
    if step.device.type == "cpu":  # the compiler's own random numbers take longer there, and are not eager's
        options["fallback_random"] = True
    return replace(
        step,
        forward=torch.compile(step.forward, fullgraph=True, dynamic=False, options=options),
        update=torch.compile(step.update, fullgraph=True, dynamic=False, options=options),
    )


ENGINES: dict[str, Callable[[Step], Run]] = {"eager": eager, "compiled": compiled, "graph": graph}
SLOWER = {"graph": "compiled", "compiled": "eager"}  # what is tried when one fails


def start_engine(name: str, step: Step, undo: Callable[[], None]) -> tuple[str, Run]:
    """The engine called `name`, ready to run, or the next slower one that works, with a warning that says why.

    Getting ready takes steps; `undo` puts the training back to where it was. Lack of memory is raised `beside_others`.
    Where it fails after a request to stop, that may be why: Ctrl-C reaches the compilers it has started, too.

    >>> loss = torch.ones(1, requires_grad=True).sum()
    >>> step = Step(lambda: None, lambda: (loss, None), lambda: None, lambda notes: None)
    >>> start_engine("eager", step, undo=lambda: None)[0]
    'eager'
    """
    name_cache()
    try:
        with _compiler_settings() if name != "eager" else nullcontext():  # eager must do where no compiler even loads
            run = ENGINES[name](step)
    except Exception as e:
        if name not in SLOWER or (isinstance(e, torch.OutOfMemoryError) and beside_others.get()):
            raise
        reason = _reason(e)
    else:
        undo()
        return name, run
    # Out here, where the exception no longer holds on to what the engine has allocated.
    stop_if_asked()
    message = f"the {name} engine does not work here, so {SLOWER[name]} runs instead: {reason}"
    warnings.warn(message, SlowerEngine, stacklevel=2)
    undo()
    return start_engine(SLOWER[name], step, undo)


@contextmanager
def _compiler_settings() -> Iterator[None]:
    make_cache()
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=MOST_STACKS):
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # they are used where the precision says so
        yield


def _reason(e: Exception) -> str:
    """What went wrong, in a line: PyTorch's message has it in the last line that names an error, or in its first.

    >>> _reason(RuntimeError("CppCompileError: C++ compile error\\nOutput:\\nx.cpp:1: fatal error: no y.h"))
    'CppCompileError: C++ compile error (x.cpp:1: fatal error: no y.h)'
    """
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    lines = [line for line in lines if not re.fullmatch(r"backend=.* raised:", line)] or lines  # in which, not why
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Warning)\b.*:", line)]
    output = lines[lines.index("Output:") + 1 :] if "Output:" in lines else []  # the C++ compiler's
    said = next((line for line in lines if re.search(r"\berror: ", line)), (output or [""])[0])
    reason = (named or lines or [""])[-1 if named else 0] or type(e).__name__
    return f"{reason} ({said})" if said and said not in reason else reason
