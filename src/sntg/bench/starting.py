"""How long a run takes to start: to be built, compiled and recorded, to take a step and to make an evaluation.

A process that has compiled something starts faster ever after, so starts are timed in processes of their own. They find
bytecode of PyTorch's compiler, as where pip has installed it: whether an installation has any is not a method's doing.
On a CPU such a process also tells how much memory a run takes, since nothing else has been in it.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import torch

from sntg.bench.cases import Case, config_of, inputs_of
from sntg.bench.timing import seconds
from sntg.errors import Notice
from sntg.training import Config, Inputs, Stack
from sntg.training.randomness import own_randomness


def begin(config: Config, inputs: Inputs) -> Stack:
    """A run that has begun.

    >>> config = config_of(Case("two-moons", "pi", "eager", "float32"), "cpu")
    >>> begin(config, inputs_of(config)).step
    1
    """
    stack = Stack([config], [inputs])
    stack.advance()
    stack.errors()
    return stack


class Start(NamedTuple):
    """What a start in a new process took; None where it failed, and for the memory where the system does not tell."""

    seconds: float | None = None
    peak_gib: float | None = None  # the process's most, Python and PyTorch included


def start_anew(case: Case, device: str) -> Start:
    """Starts a case in a new process; where that fails it is told by a warning."""
    command = [sys.executable, "-m", "sntg.bench.starting", json.dumps(asdict(case)), device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        warnings.warn(f"{case} does not start in a process of its own: {reason}", Notice, stacklevel=2)
        return Start()
    return Start(*json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside, new processes have these variables too.

    >>> with environment({"TRITON_CACHE_DIR": "elsewhere"}):
    ...     os.environ["TRITON_CACHE_DIR"]
    'elsewhere'
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def compiler_cache(folder: Path) -> AbstractContextManager[None]:
    """Inside, PyTorch's compiler and Triton keep what they compile in the folder, and find nothing else."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": folder / "inductor", "TRITON_CACHE_DIR": folder / "triton"}
    return environment({name: str(path) for name, path in folders.items()})


def kept_bytecode(folder: Path, device: str) -> dict[str, str]:
    """The variables with which a new process finds the bytecode of PyTorch's compiler.

    None, where Python has it or keeps it when it first loads the compiler; one file tells for all. Where it may not, as
    in many containers, it would compile some 1,400 files every time: there the folder is filled, and named.
    """
    _load_compiler(device)
    if Path(cache_from_source(torch._dynamo.__file__)).exists():
        return {}
    variables = {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    with environment(variables):
        _load_compiler(device)
    return variables


def _load_compiler(device: str) -> None:
    """Compiles a small function in a new process; where that fails a start will say why."""
    small = f"torch.compile(lambda x: x.exp().sum())(torch.ones(8, device={device!r}, requires_grad=True)).backward()"
    subprocess.run([sys.executable, "-c", f"import torch; {small}"], capture_output=True)


def peak_memory() -> float | None:
    """The most memory in GiB that this process has had in use; None where the system is none that tells.

    (`getrusage` would do elsewhere, but on Linux it counts what the parent had when it started this process.)

    >>> peak = peak_memory()
    >>> peak is None or 0.1 < peak < 1000
    True
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    return int(found[1]) / 2**20 if found else None


def main() -> None:
    """Prints what the start of a case takes here."""
    case, device = Case(**json.loads(sys.argv[1])), sys.argv[2]
    config = config_of(case, device)
    inputs = inputs_of(config)
    with own_randomness(config):
        took = seconds(lambda: begin(config, inputs), torch.device(device))
    print(json.dumps(Start(took, peak_memory())))


if __name__ == "__main__":
    main()
