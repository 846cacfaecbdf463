"""A file appears under its name only when it is whole."""

import errno
import os
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"  # the end of a name while the file is being written; it stays if the process is killed then


def write_bytes(path: Path, content: bytes) -> None:
    """Writes beside, through to the disk, then renames; of a write that fails nothing is left.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder, "a"), b"whole")
    ...     sorted(os.listdir(folder))
    ['a']
    """
    if not path.name:  # the current folder, or the root
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    beside = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a text as `write_bytes` does; lines end in the same way on every system."""
    write_bytes(path, text.encode())
