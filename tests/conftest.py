"""Makes `references.py` importable from every test folder, and keeps runs on one core and reproducible."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode puts nothing on the path by itself

from real_data import real_data  # noqa: F401  (a fixture for every test folder)

torch.set_num_threads(1)

# A law that holds is tested alike on every machine: no deadline, no memory of past runs, no luck.
settings.register_profile("sntg", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("sntg")


@pytest.fixture
def caller_settings():
    """Tells how PyTorch computes what is float32, as far as it does not refuse to; afterwards all is as it was."""
    b = torch.backends
    places = b, b.cudnn, b.cudnn.conv, b.cudnn.rnn, b.cuda.matmul, b.mkldnn.matmul, b.mkldnn.conv, b.mkldnn.rnn

    def older():
        for ask in (lambda: b.cudnn.allow_tf32, torch.get_float32_matmul_precision):
            try:
                yield ask()
            except RuntimeError:
                yield "refused"

    def told():
        return [place.fp32_precision for place in places], list(older())

    before = told()
    yield told
    b.fp32_precision = b.cudnn.fp32_precision = "none"
    b.cudnn.allow_tf32 = before[1][0]
    torch.set_float32_matmul_precision(before[1][1])
    for place, precision in zip(places, before[0], strict=True):
        place.fp32_precision = precision
    assert told() == before
