"""Where the kernels' tests run: on a GPU where there is one, else in Triton's interpreter, on a CPU.

The interpreter is chosen for a whole process before Triton is imported, so a test file runs itself again in a process
of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sntg.models import grid

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
needs_kernels = pytest.mark.skipif(
    not (grid.AVAILABLE and (INTERPRETED or torch.cuda.is_available())),
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
)


def release(module):
    return tuple(int(number) for number in module.__version__.split(".")[:2])


def run_in_interpreter(file):
    """All tests of the file that need kernels, small."""
    triton = pytest.importorskip("triton")
    if release(triton) < (3, 7) and release(np) >= (2, 4):
        pytest.skip("Triton's interpreter runs with NumPy 2.4 from Triton 3.7 on")
    command = [sys.executable, "-m", "pytest", "--noconftest", "--quiet", "-p", "no:cacheprovider", file]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
