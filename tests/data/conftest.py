"""A cache folder of a test's own, and a server with a small image set on it."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from image_fixtures import small, write_set
from mirrors import Server

from sntg.data.image_sets import IMAGE_SETS, Download, ImageSet


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache folder of the test's own, which does not exist yet."""
    monkeypatch.setenv("SNTG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.closing.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def offered(server, tmp_path):
    """Puts a small set on the server, and says so in the set: offered("mnist", "truncated", "good")."""

    def offer(name: str, *manners: str) -> ImageSet:
        images, folder = small(IMAGE_SETS[name]), tmp_path / "served"
        write_set(images, folder)
        mirrors = tuple(map(server.mirror, manners))
        for download in images.downloads:
            packed = tar_of(download.inside, folder) if download.inside else (folder / download.file).read_bytes()
            server.files[download.file] = packed
        downloads = tuple(
            Download(d.file, hashlib.sha256(server.files[d.file]).hexdigest(), mirrors, d.inside)
            for d in images.downloads
        )
        return replace(images, downloads=downloads)

    return offer


def tar_of(inside: str, folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, inside)
    return buffer.getvalue()
