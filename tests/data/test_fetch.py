"""Fetching from a local server that serves well, breaks off, corrupts, stalls, says nothing or knows no such file."""

import gzip
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import pytest
from image_fixtures import small, write_set
from rich.console import Console

import sntg
from sntg.data.fetch import fetch
from sntg.data.image_sets import IMAGE_SETS, Download, ImageSet
from sntg.data.images import find, read_images
from sntg.errors import UsageError

SOON = 0.3  # seconds until a mirror counts as dead
SOURCE = str(Path(sntg.__file__).parents[1])


class Server(ThreadingHTTPServer):
    """Serves `files`; the first part of a path says how: good, truncated, corrupt, stalled, silent or anything else."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.closing = threading.Event()

    def mirror(self, manner: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{manner}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is what some of these tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        _, manner, file = self.path.split("/")
        self.server.asked.append(f"{manner}/{file}")
        content = self.server.files.get(file)
        if manner == "silent":
            self.server.closing.wait()
        elif content is None or manner not in ("good", "truncated", "corrupt", "stalled", "endless"):
            self.send_error(404)
        else:
            self.send_response(200)
            if manner != "endless":  # which says no length and simply ends, in the middle of the file
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.send_body(manner, content)

    def send_body(self, manner: str, content: bytes) -> None:
        if manner == "corrupt":
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.wfile.write(content if manner in ("good", "corrupt") else content[: len(content) // 2])
        self.wfile.flush()
        if manner == "stalled":
            self.server.closing.wait()

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


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


def files(folder: Path) -> list[str]:
    """All files under a folder but the lock."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return sorted(str(path.relative_to(folder)) for path in found)


def expected_files(images: ImageSet) -> list[str]:
    return sorted(f"{images.folders[0]}/{file}" for file in images.files)


def refusal(images: ImageSet, folder: Path, timeout: float = SOON) -> str:
    with pytest.raises(UsageError) as refused:
        fetch(images, folder, timeout)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- it goes well ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_a_set_is_fetched_and_can_be_read(name, offered, server, tmp_path):
    images = offered(name, "good")
    place = fetch(images, tmp_path / "data")
    assert place == tmp_path / "data" / images.folders[0]
    assert files(tmp_path / "data") == expected_files(images)  # no archive, no half-written file beside them
    served = {file: (tmp_path / "served" / file).read_bytes() for file in images.files}
    assert {file: (place / file).read_bytes() for file in images.files} == served
    assert server.asked == [f"good/{d.file}" for d in images.downloads]
    assert read_images(images, tmp_path / "data").classes == images.classes


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_what_is_there_is_not_fetched_again(name, offered, server, tmp_path):
    images = offered(name, "good")
    fetch(images, tmp_path)
    server.asked.clear()
    assert fetch(images, tmp_path) == tmp_path / images.folders[0]
    assert server.asked == []


def test_re_made_files_of_a_sound_set_are_left_as_they_are(offered, server, tmp_path):
    images, place = offered("mnist", "good"), tmp_path / "data/mnist"
    write_set(images, place)
    for path in place.iterdir():
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 9))
    before = {path: path.read_bytes() for path in place.iterdir()}
    assert fetch(images, tmp_path / "data") == place
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    assert server.asked == []


def test_everybody_may_read_what_was_fetched(offered, tmp_path):
    images = offered("svhn", "good")
    place = fetch(images, tmp_path / "data")
    umask = os.umask(0)
    os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o666 & ~umask}


def test_two_at_once_fetch_it_once(offered, server, tmp_path):
    images = offered("cifar10", "good")
    with ThreadPoolExecutor(4) as pool:
        places = list(pool.map(lambda _: fetch(images, tmp_path / "data"), range(4)))
    assert places == [tmp_path / "data" / images.folders[0]] * 4
    assert server.asked == ["good/cifar-10-binary.tar.gz"]


def test_a_bar_on_a_terminal_and_silence_elsewhere(offered, tmp_path, capfd):
    images = offered("svhn", "truncated", "good")
    screen = StringIO()
    fetch(images, tmp_path / "one", console=Console(file=screen, force_terminal=True, width=100))
    assert all(file in screen.getvalue() for file in images.files)
    assert "100%" in screen.getvalue()
    fetch(images, tmp_path / "two")
    assert capfd.readouterr() == ("", "")


# --- mirrors that fail -----------------------------------------------------------------------------------------------

BAD = ("truncated", "endless", "corrupt", "stalled", "silent", "absent")


@pytest.mark.parametrize("manner", BAD)
@pytest.mark.parametrize("name", ["svhn", "cifar100"])
def test_the_next_mirror_is_tried(name, manner, offered, server, tmp_path):
    images = offered(name, manner, "good")
    fetch(images, tmp_path / "data", SOON)
    assert files(tmp_path / "data") == expected_files(images)
    assert server.asked == [f"{how}/{d.file}" for d in images.downloads for how in (manner, "good")]


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("truncated", "the file broke off"),
        ("endless", "expected sha256 "),
        ("corrupt", "expected sha256 "),
        ("stalled", "nothing came for 0.3 s"),
        ("silent", "nothing came for 0.3 s"),
        ("absent", "HTTP 404"),
    ],
)
@pytest.mark.parametrize("name", ["svhn", "cifar100"])
def test_where_all_mirrors_fail_nothing_is_left(name, manner, reason, offered, server, tmp_path):
    images = offered(name, manner)
    said = refusal(images, tmp_path / "data")
    file = images.downloads[0].file
    assert f"{file} could not be downloaded ({server.mirror(manner)}{file}: {reason}" in said
    assert files(tmp_path / "data") == []


def test_a_checksum_that_differs_is_told(offered, server, tmp_path):
    images = offered("svhn", "corrupt")
    sent = server.files["train_32x32.mat"]
    found = hashlib.sha256(sent[:-1] + bytes([sent[-1] ^ 1])).hexdigest()
    assert f"expected sha256 {images.downloads[0].sha256}, found {found}" in refusal(images, tmp_path / "data")


def test_a_stalled_mirror_does_not_hold_it_up(offered, tmp_path):
    start = time.monotonic()
    fetch(offered("svhn", "stalled", "good"), tmp_path / "data", SOON)
    assert SOON < time.monotonic() - start < 10


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_no_network_is_told_in_one_sentence_with_all_it_takes(name, offered, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = unused.getsockname()[1]
        mirrors = (f"http://127.0.0.1:{port}/one/", f"http://127.0.0.1:{port}/two/")
        images = offered(name)
        images = replace(images, downloads=tuple(replace(d, mirrors=mirrors) for d in images.downloads))
        said = refusal(images, tmp_path / "data")
    assert said.count("cannot be reached") == 2
    assert all(f"{mirrors[0]}{d.file}" in said for d in images.downloads)
    assert mirrors[1] in said
    folder = tmp_path / "data" / images.folders[0] if name == "mnist" else tmp_path / "data"
    names = " and ".join(d.file for d in images.downloads)
    assert said.endswith(f"put {names} into {folder}, and run `sntg data fetch {name}` again")


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_files_put_there_by_hand_as_told_are_taken(name, offered, server, tmp_path):
    images = offered(name, "absent")
    folder = tmp_path / "data" / (images.folders[0] if name == "mnist" else ".")
    refusal(images, tmp_path / "data")
    server.asked.clear()
    for download in images.downloads:
        (folder / download.file).write_bytes(server.files[download.file])
    fetch(images, tmp_path / "data")
    assert server.asked == []
    by_hand = ["cifar-10-binary.tar.gz"] if name == "cifar10" else []  # an archive of one's own is not taken away
    assert files(tmp_path / "data") == sorted(expected_files(images) + by_hand)


# --- interruptions ---------------------------------------------------------------------------------------------------


def test_a_second_call_goes_on_with_the_files_still_missing(offered, server, tmp_path):
    images = offered("mnist", "good")
    last = server.files.pop("t10k-images-idx3-ubyte.gz")
    said = refusal(images, tmp_path / "data")
    kept = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    assert files(tmp_path / "data") == [f"MNIST/raw/{file}" for file in kept]
    assert not any(file in said for file in kept)  # what is there need not be fetched by hand
    server.files["t10k-images-idx3-ubyte.gz"] = last
    server.asked.clear()
    fetch(images, tmp_path / "data")
    assert server.asked == ["good/t10k-images-idx3-ubyte.gz", "good/t10k-labels-idx1-ubyte.gz"]


def test_it_goes_on_in_the_folder_where_some_files_are(offered, server, tmp_path):
    images = offered("mnist", "good")
    write_set(images, tmp_path / "data/mnist")
    (tmp_path / "data/mnist/train-labels-idx1-ubyte.gz").unlink()
    assert fetch(images, tmp_path / "data") == tmp_path / "data/mnist"
    assert server.asked == ["good/train-labels-idx1-ubyte.gz"]


def test_ctrl_c_leaves_nothing_half_written(offered, server, tmp_path, monkeypatch):
    images = offered("svhn", "good")

    def interrupted(*_: object) -> None:
        assert list((tmp_path / "data").rglob("*.part"))
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr("sntg.data.fetch._Bar.update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(images, tmp_path / "data")
    assert files(tmp_path / "data") == []
    fetch(images, tmp_path / "data")
    assert files(tmp_path / "data") == expected_files(images)


def test_a_killed_process_leaves_nothing_under_a_files_name(offered, server, tmp_path):
    images = offered("svhn", "stalled")
    download = images.downloads[0]
    program = (
        "import json, sys; from dataclasses import replace; from pathlib import Path\n"
        "from sntg.data.fetch import fetch; from sntg.data.image_sets import IMAGE_SETS, Download\n"
        "file, sha256, mirror, folder = json.loads(sys.argv[1])\n"
        "fetch(replace(IMAGE_SETS['svhn'], downloads=(Download(file, sha256, (mirror,)),)), Path(folder))"
    )
    arguments = json.dumps([download.file, download.sha256, *download.mirrors, str(tmp_path / "data")])
    environment = os.environ | {"PYTHONPATH": SOURCE}
    with subprocess.Popen([sys.executable, "-c", program, arguments], env=environment) as process:
        partial = tmp_path / "data/svhn" / f"{download.file}.part"
        until = time.monotonic() + 60
        while not (partial.exists() and server.asked) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert files(tmp_path / "data") == [f"svhn/{download.file}.part"]
    assert find(images, tmp_path / "data").files == {}
    good = replace(images, downloads=tuple(replace(d, mirrors=(server.mirror("good"),)) for d in images.downloads))
    fetch(good, tmp_path / "data")
    assert files(tmp_path / "data") == expected_files(images)


def test_a_damaged_file_is_replaced(offered, server, tmp_path):
    images = offered("svhn", "good")
    place = fetch(images, tmp_path / "data")
    (place / "test_32x32.mat").write_bytes(b"something else")
    os.link(place / "test_32x32.mat", tmp_path / "seen by others")
    server.asked.clear()
    fetch(images, tmp_path / "data")
    assert server.asked == ["good/test_32x32.mat"]
    assert (place / "test_32x32.mat").read_bytes() == server.files["test_32x32.mat"]
    assert (tmp_path / "seen by others").read_bytes() == b"something else"  # renamed over it, not written into it


def test_a_damaged_file_stays_until_a_sound_one_has_come(offered, tmp_path):
    images = offered("svhn", "corrupt")
    write_set(images, tmp_path / "data/svhn")
    damaged = tmp_path / "data/svhn/train_32x32.mat"
    damaged.write_bytes(b"something else")
    refusal(images, tmp_path / "data")
    assert damaged.read_bytes() == b"something else"


# --- archives --------------------------------------------------------------------------------------------------------


def archive(images: ImageSet, server: Server, *members: tuple[str, bytes | str]) -> ImageSet:
    """The set with an archive of these members on the server; a member of type str is a link to that path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return packed(images, server, buffer.getvalue())


def packed(images: ImageSet, server: Server, content: bytes) -> ImageSet:
    download = images.downloads[0]
    server.files[download.file] = content
    return replace(images, downloads=(replace(download, sha256=hashlib.sha256(content).hexdigest()),))


def members_of(folder: Path) -> list[tuple[str, bytes | str]]:
    return [(f"cifar-100-binary/{file}", (folder / file).read_bytes()) for file in ("train.bin", "test.bin")]


def test_nothing_but_the_needed_files_comes_out_of_an_archive(offered, server, tmp_path):
    images = offered("cifar100", "good")
    hostile = [("../escaped", b"x"), ("cifar-100-binary/../../escaped", b"x"), (str(tmp_path / "escaped"), b"x")]
    hostile += [("cifar-100-binary/link", "/"), ("cifar-100-binary/link/escaped", b"x"), ("cifar-100-binary/a", b"x")]
    images = archive(images, server, *hostile, *members_of(tmp_path / "served"))
    fetch(images, tmp_path / "data")
    assert files(tmp_path / "data") == expected_files(images)
    assert not (tmp_path / "escaped").exists()


def test_a_link_under_a_needed_name_is_not_followed(offered, server, tmp_path):
    (tmp_path / "secret").write_text("secret")
    images = offered("cifar100", "good")
    _, test = members_of(tmp_path / "served")
    images = archive(images, server, ("cifar-100-binary/train.bin", str(tmp_path / "secret")), test)
    said = refusal(images, tmp_path / "data")
    assert said.startswith(f"{tmp_path / 'data/cifar-100-binary.tar.gz'}: expected an archive with the files ")
    assert "cifar-100-binary/train.bin" in said
    assert not (tmp_path / "data/cifar-100-binary/train.bin").exists()


def test_an_archive_that_is_none(offered, server, tmp_path):
    images = packed(offered("cifar100", "good"), server, b"no archive")
    said = refusal(images, tmp_path / "data")
    assert said.startswith(f"{tmp_path / 'data/cifar-100-binary.tar.gz'}: expected a tar archive, found ")


def test_an_archive_that_breaks_off(offered, server, tmp_path):
    images = offered("cifar100", "good")
    images = packed(images, server, server.files["cifar-100-binary.tar.gz"][:-3000])
    said = refusal(images, tmp_path / "data")
    assert said.startswith(f"{tmp_path / 'data/cifar-100-binary.tar.gz'}: expected ")
    assert not list((tmp_path / "data").rglob("*.part"))


def test_what_was_fetched_is_checked_before_it_is_called_done(offered, server, tmp_path):
    images = offered("cifar100", "good")
    train, _ = members_of(tmp_path / "served")
    images = archive(images, server, train, ("cifar-100-binary/test.bin", b"too short"))
    said = refusal(images, tmp_path / "data")
    assert said.startswith(f"{tmp_path / 'data/cifar-100-binary/test.bin'}: expected ")


# --- folders that will not do ----------------------------------------------------------------------------------------


def test_a_file_in_the_folders_place(offered, server, tmp_path):
    (tmp_path / "data").touch()
    assert refusal(offered("svhn", "good"), tmp_path / "data").startswith(
        f"svhn cannot be put into {tmp_path / 'data'}"
    )
    assert server.asked == []


def test_a_folder_in_a_files_place(offered, server, tmp_path):
    (tmp_path / "data/svhn/train_32x32.mat").mkdir(parents=True)
    said = refusal(offered("svhn", "good"), tmp_path / "data")
    assert f"{tmp_path / 'data/svhn/train_32x32.mat'} is a folder, not a file" in said
    assert server.asked == []


def test_a_folder_that_cannot_be_written_into(offered, server, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # what root cannot be refused by a folder's mode
    assert "no permission to write into" in refusal(offered("svhn", "good"), tmp_path / "data")
    assert server.asked == []
