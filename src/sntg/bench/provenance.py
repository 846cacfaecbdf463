"""Where figures come from: the command, the commit, the hardware and the versions."""

import os
import platform
import re
import shutil
import subprocess
from datetime import date
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import sntg
from sntg.training.automatic import cpp_compiler


def made_by(command: str) -> dict[str, str]:
    """When, by which command and from which source the figures were made.

    >>> made_by("sntg bench")["command"]
    'sntg bench'
    """
    return {
        "date": date.today().isoformat(),
        "command": command,
        "commit": os.environ.get("COMMIT") or _commit(),
        "sntg": sntg.__version__,
        "source": _source(),
    }


def _commit() -> str:
    """The source's; an installed copy may lie in somebody else's repository, which does not know the file."""
    ours = _output("git", "ls-files", Path(__file__).name)
    return _output("git", "describe", "--always", "--dirty") if ours else ""


def _source() -> str:
    """A hash of the package's code: an installed copy has no commit, and a commit may have been changed since."""
    package = Path(sntg.__file__).parent
    found = sha256()
    for file in sorted(package.rglob("*.py")):
        found.update(f"{file.relative_to(package).as_posix()}\n".encode() + file.read_bytes())
    return found.hexdigest()[:16]


Hardware = dict[str, str | int | None]


def hardware(device: str) -> Hardware:
    """The machine and the versions that matter for speed.

    >>> hardware("cpu")["torch"] == torch.__version__
    True
    """
    found: Hardware = {
        "device": _cpu(),
        "cpu": _cpu(),
        "cpu_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cpp_compiler": cpp_compiler(),
    }
    return found | (_gpu(device) if torch.device(device).type == "cuda" else {})


def _gpu(device: str) -> Hardware:
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def _cpu() -> str:
    """The processor's name; Linux tells it in a file only."""
    told = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", told.read_text(), flags=re.M) if told.exists() else None
    return named[1] if named else platform.processor() or platform.machine()


def _output(*command: str) -> str:
    """What a command prints, run beside the source; nothing where there is no such command or it fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
