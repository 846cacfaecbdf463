"""Fetching from a local server that serves well, breaks off, corrupts, stalls, says nothing or knows no such file."""

import gzip
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from fetched import SOON, expected_files, files, refusal
from image_fixtures import write_set
from rich.console import Console

import sntg
from sntg.data.fetch import fetch
from sntg.data.image_sets import IMAGE_SETS
from sntg.data.images import find, read_images

SOURCE = str(Path(sntg.__file__).parents[1])


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
