"""Makes `references.py` importable from every test folder, and keeps runs on one core and reproducible."""

import sys
from pathlib import Path

import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode puts nothing on the path by itself

from real_data import real_data  # noqa: F401  (a fixture for every test folder)

torch.set_num_threads(1)

# A law that holds is tested alike on every machine: no deadline, no memory of past runs, no luck.
settings.register_profile("sntg", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("sntg")
