"""How long a run takes to start: to be built, compiled and recorded, to take a step and to make an evaluation.

A process that has compiled something starts faster ever after, so starts are timed in processes of their own.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from sntg.bench.cases import Case, config_of, inputs_of
from sntg.bench.timing import seconds
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


def start_anew(case: Case, device: str) -> float | None:
    """The seconds that the start of a case takes in a new process; None where it fails there, with a warning."""
    command = [sys.executable, "-m", "sntg.bench.starting", json.dumps(asdict(case)), device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        warnings.warn(f"{case} does not start in a process of its own: {reason}", stacklevel=2)
        return None
    return float(done.stdout.split()[-1])


@contextmanager
def compiler_cache(folder: Path) -> Iterator[None]:
    """Inside, PyTorch's compiler and Triton keep what they compile in the folder, and find nothing else."""
    variables = {"TORCHINDUCTOR_CACHE_DIR": folder / "inductor", "TRITON_CACHE_DIR": folder / "triton"}
    before = {name: os.environ.pop(name, None) for name in variables}
    os.environ.update({name: str(path) for name, path in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def main() -> None:
    """Prints the seconds that the start of a case takes here."""
    case, device = Case(**json.loads(sys.argv[1])), sys.argv[2]
    config = config_of(case, device)
    inputs = inputs_of(config)
    with own_randomness(config):
        print(seconds(lambda: begin(config, inputs), torch.device(device)))


if __name__ == "__main__":
    main()
