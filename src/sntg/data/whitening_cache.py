"""Fitted ZCAs on disk: one file each, named by what it was fitted on, and fitted by one process if several want it."""

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sntg.data.folders import cache_folder
from sntg.files import write_bytes

FORMAT = 1  # raise it when a file, or the numbers in it, mean something else than before
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ZCA:
    """x -> (x - mean) @ matrix, both float64: mean (pixels,), matrix (pixels, pixels)."""

    mean: Tensor
    matrix: Tensor

    def sha256(self) -> str:
        """The checksum of all numbers.

        >>> ZCA(torch.zeros(1), torch.ones(1, 1)).sha256()[:8]
        '22b6f43b'
        """
        digest = hashlib.sha256(self.mean.numpy().data)
        digest.update(self.matrix.contiguous().numpy().data)
        return digest.hexdigest()


def read_or_fit(label: str, pixels: int, fit: Callable[[], ZCA]) -> ZCA:
    """The ZCA called `label` from the cache folder; if it is not there or damaged, `fit()`, which is then put there.

    >>> import os, tempfile, unittest.mock
    >>> fit = unittest.mock.Mock(return_value=ZCA(torch.zeros(1).double(), torch.ones(1, 1).double()))
    >>> with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, SNTG_CACHE=folder):
    ...     first, second = read_or_fit("mine", 1, fit), read_or_fit("mine", 1, fit)
    >>> fit.call_count
    1
    """
    path = cache_folder() / f"whitening-{label}-v{FORMAT}.safetensors"
    zca = _read(path, pixels)
    if zca is not None:
        return zca
    with _locked(path):
        zca = _read(path, pixels)  # another process may have fitted it while this one waited
        if zca is None:
            zca = fit()
            _write(path, zca)
    return zca


def _read(path: Path, pixels: int) -> ZCA | None:
    """The file's ZCA, or None if there is none that can be trusted."""
    try:
        if not path.exists():
            return None
        with safe_open(path, framework="pt") as file:
            checksum = (file.metadata() or {}).get("sha256")
            # Copies: what safetensors returns is the file itself, mapped into memory.
            zca = ZCA(file.get_tensor("mean").clone(), file.get_tensor("matrix").clone())
    except (OSError, SafetensorError) as e:
        logger.warning("whitening: %s cannot be read and is fitted anew: %s", path, e)
        return None
    if not _sound(zca, pixels) or zca.sha256() != checksum:
        logger.warning("whitening: %s is damaged and is fitted anew", path)
        return None
    logger.info("whitening: read from %s", path)
    return zca


def _sound(zca: ZCA, pixels: int) -> bool:
    shapes = zca.mean.shape == (pixels,) and zca.matrix.shape == (pixels, pixels)
    return shapes and all(t.dtype == torch.float64 and bool(t.isfinite().all()) for t in (zca.mean, zca.matrix))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the file's lock; where there can be none (a folder that cannot be written), goes on without."""
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as e:
        logger.info("whitening: no lock for %s: %s", path, e)
    try:
        yield
    finally:
        lock.release()


def _write(path: Path, zca: ZCA) -> None:
    """Keeps a ZCA. A cache that cannot be written costs time, no more: a warning."""
    content = save({"mean": zca.mean, "matrix": zca.matrix.contiguous()}, {"sha256": zca.sha256()})
    try:
        write_bytes(path, content)
    except OSError as e:
        logger.warning("whitening: not kept for the next run, because %s cannot be written: %s", path, e)
