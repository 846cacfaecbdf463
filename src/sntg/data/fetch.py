"""Image sets from the internet: from the first mirror that hands out the right file, never half a file."""

import errno
import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock
from rich.console import Console
from rich.progress import Progress

from sntg.data.formats import wrong
from sntg.data.image_sets import Download, ImageSet
from sntg.data.images import find, read_images
from sntg.errors import UsageError
from sntg.terminal import progress_bar

TIMEOUT = 30.0  # seconds without a byte until a mirror counts as dead
CHUNK = 1 << 16


def fetch(images: ImageSet, folder: Path, timeout: float = TIMEOUT, console: Console | None = None) -> Path:
    """Downloads what is missing of an image set into the data folder, and reads it: what it returns can be used.

    A file that is already there with the right checksum is kept, so a call after an interruption goes on with the rest.

    >>> from sntg.data.image_sets import IMAGE_SETS
    >>> fetch(IMAGE_SETS["mnist"], Path(__file__))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sntg.errors.UsageError: mnist cannot be put into ...fetch.py: ...
    """
    if not _is_sound(images, folder):
        _make(images, folder)
        with FileLock(folder / f".{images.name}.lock"):
            # Another process may have fetched it while this one waited for the lock.
            if not _is_sound(images, folder):
                _fetch_files(images, folder, timeout, console or Console(stderr=True))
                read_images(images, folder)
    return find(images, folder).folder


def _is_sound(images: ImageSet, folder: Path) -> bool:
    try:
        read_images(images, folder)
    except UsageError:
        return False
    return True


def _make(images: ImageSet, folder: Path) -> None:
    found = find(images, folder)
    try:
        found.folder.mkdir(parents=True, exist_ok=True)
        for place in (folder, found.folder):
            if not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, f"no permission to write into {place}")
        for path in found.files.values():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{path} is a folder, not a file")
    except OSError as e:
        reason = f"{images.name} cannot be put into {folder}: {e.strerror}"
        raise UsageError(f"{reason}: clear the way, or name another folder with --data or $SNTG_DATA") from e


def _fetch_files(images: ImageSet, folder: Path, timeout: float, console: Console) -> None:
    target = find(images, folder).folder
    # An archive goes beside the folder it is unpacked into; a plain file into it.
    paths = {download: (folder if download.inside else target) / download.file for download in images.downloads}
    missing = [download for download, path in paths.items() if _sha256(path) != download.sha256]
    with progress_bar(console) as progress:
        for download in missing:
            failures = _download(download, paths[download], timeout, progress)
            if failures:
                raise _unreachable(images, missing[missing.index(download) :], paths[download].parent, failures)
    for download in filter(lambda d: d.inside, images.downloads):
        _unpack(paths[download], download.inside, images.files, target)
        if download in missing:  # an archive that somebody put here stays
            paths[download].unlink()


def _download(download: Download, path: Path, timeout: float, progress: Progress) -> list[str]:
    """Tries the mirrors in turn: why each of them failed, or nothing if one of them did not."""
    import pooch  # only here: it takes a while, and whoever has the data does not need it
    import requests

    bar, failures = _Bar(progress, download.file), []
    get = pooch.HTTPDownloader(
        progressbar=bar, chunk_size=CHUNK, timeout=timeout, headers={"Accept-Encoding": "identity"}
    )
    for url in download.urls:
        bar.reset()
        try:
            with _beside(path) as file:
                get(url, file, None)
                file.flush()
                found = _sha256(Path(file.name))
                if found != download.sha256:
                    raise ValueError(f"expected sha256 {download.sha256}, found {found}")
            return []
        except (requests.RequestException, ValueError) as e:
            failures.append(f"{url}: {_reason(e, timeout)}")
    return failures


def _reason(error: Exception, timeout: float) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if isinstance(error, requests.Timeout) or "timed out" in str(error):  # a stall in mid-file is no Timeout of theirs
        return f"nothing came for {timeout:g} s"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the file broke off"
    return "cannot be reached" if isinstance(error, requests.RequestException) else str(error)


def _unpack(archive: Path, inside: str, names: Sequence[str], target: Path) -> None:
    """Takes the files of these names, and nothing else, out of an archive; no name in it becomes a path."""
    wanted = {f"{inside}/{name}": name for name in names}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() and member.name in wanted else None
                if content is not None:
                    with _beside(target / wanted.pop(member.name)) as file:
                        shutil.copyfileobj(content, file)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise wrong(archive, "a tar archive", "a broken one or something else") from e
    if wanted:
        raise wrong(archive, f"an archive with the files {', '.join(wanted)}", "one without them")


@contextmanager
def _beside(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes its name at the end, when all went well, and not before."""
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unreachable(images: ImageSet, missing: Sequence[Download], target: Path, failures: Sequence[str]) -> UsageError:
    urls = " and ".join(download.urls[0] for download in missing)
    others = "".join(f" (or from {mirror})" for mirror in missing[0].mirrors[1:])
    return UsageError(
        f"{images.name}: {missing[0].file} could not be downloaded ({'; '.join(failures)}): download {urls}{others} "
        f"by other means, put {' and '.join(d.file for d in missing)} into {target}, "
        f"and run `sntg data fetch {images.name}` again"
    )


class _Bar:
    """A file's line in the progress bar, in the words pooch uses."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=None)

    def _set_total(self, total: int) -> None:
        self._progress.update(self._task, total=total or None)

    total = property(fset=_set_total)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Nothing to do: the bar is closed with all its lines."""
