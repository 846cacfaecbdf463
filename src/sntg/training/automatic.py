"""What `auto` means: the engine whose run is over first, and the fastest precision that is exact enough.

docs/performance.md has the figures behind each choice.
"""

import os
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from sntg.errors import Notice
from sntg.methods import METHODS, parse
from sntg.models import CONVOLUTIONAL
from sntg.training.config import Config, steps_an_epoch

LONG = 5000  # steps, after which a CPU has made up for the time that compiling takes, where it gains any


def decided(config: Config, points: int) -> Config:
    """The config with `auto` replaced by what it means for the run on its device, with so many training points.

    >>> from sntg.training import resolve
    >>> chosen = decided(resolve("two-moons", 12, "pi", device="cpu"), points=6000)
    >>> chosen.engine, chosen.precision
    ('eager', 'float32')
    """
    device, engine, precision = torch.device(config.device), config.engine, config.precision
    base = METHODS[parse(config.method).base]
    by_differences = base.name == "vat" and config.xi > 0
    if engine == "auto":
        steps = config.epochs * steps_an_epoch(config, points)
        engine = best_engine(device, config.method, config.model, steps)
        if engine == "eager" and compiling_pays(config.method, config.model, steps):
            reason = "there is no C++ compiler here"
            warnings.warn(f"{reason}: with one this run would be compiled, and over sooner", Notice, stacklevel=2)
    if precision == "auto":
        precision = "float32" if by_differences else best_precision(device, config.method)
    if config.model not in CONVOLUTIONAL:
        if config.precision not in ("auto", "float32"):
            reason = f"precision = {config.precision} is that of convolutions, and the {config.model} has none"
            warnings.warn(f"{reason}: it computes in float32", Notice, stacklevel=2)
        precision = "float32"
    elif by_differences and precision != "float32":
        reason = f"a difference by xi = {config.xi} may be lost in {precision}, and with it the direction"
        warnings.warn(f"{reason}: float32 loses least", Notice, stacklevel=2)
    elif (precision, base.sixteen_bits) == ("bfloat16", "float16"):
        reason = f"in bfloat16 the directions of {config.method} are not exact in the first steps"
        warnings.warn(f"{reason}: precision = auto is exact enough", Notice, stacklevel=2)
    return replace(config, engine=engine, precision=precision)


def best_engine(device: torch.device, method: str, model: str, steps: int) -> str:
    """What `auto` is for a run of so many steps; docs/performance.md has the figures.

    >>> best_engine(torch.device("cpu"), "pi+sntg", "mlp", steps=30_000)
    'eager'
    """
    if device.type == "cuda":
        return "graph"
    return "compiled" if compiling_pays(method, model, steps) and cpp_compiler() else "eager"


def compiling_pays(method: str, model: str, steps: int) -> bool:
    """Whether a run of so many steps on a CPU is over sooner if it is compiled first.

    >>> compiling_pays("vat", "mlp", 30_000), compiling_pays("vat", "mlp", 100)
    (True, False)
    """
    return METHODS[parse(method).base].many_calls and model not in CONVOLUTIONAL and steps >= LONG


def cpp_compiler() -> str | None:
    """The name of the C++ compiler that PyTorch's compiler hands its code to on a CPU; None where there is none."""
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    found = shutil.which(os.environ.get("CXX", default))
    return found and Path(found).name


def best_precision(device: torch.device, method: str) -> str:
    """The fastest precision that is exact enough for the method: docs/performance.md has the figures.

    >>> best_precision(torch.device("cpu"), "pi+sntg")
    'float32'
    """
    native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return METHODS[parse(method).base].sixteen_bits if native else "float32"
