"""Where the tests find the real MNIST, CIFAR-10 and SVHN.

$SNTG_DATA if it is set; otherwise packed copies in shared/data beside the checkout (or where $SNTG_PACKED_DATA says),
which are unpacked once into .test-data, a folder git ignores. Elsewhere the tests that need them skip and say so.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
UNPACKED = ROOT / ".test-data"
SETS = ("mnist", "cifar10", "svhn")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real datasets; whitening matrices are cached beside them."""
    if "SNTG_DATA" in os.environ:
        return Path(os.environ["SNTG_DATA"])
    packed = Path(os.environ.get("SNTG_PACKED_DATA", ROOT.parent / "shared" / "data"))
    if not (packed / "unpack").exists():
        pytest.skip(f"the real datasets are not here: SNTG_DATA is not set, and {packed} has no packed copies")
    UNPACKED.mkdir(exist_ok=True)
    with FileLock(UNPACKED / ".lock"):  # the workers of a parallel run share one copy
        for name in SETS:
            if not (UNPACKED / f".{name}").exists():
                subprocess.run([sys.executable, packed / "unpack", UNPACKED, name], check=True, capture_output=True)
                (UNPACKED / f".{name}").touch()
    return UNPACKED
