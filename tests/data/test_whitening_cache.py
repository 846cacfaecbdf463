"""What a ZCA has learnt is kept on disk, and trusted only if sound."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from whitening_fixtures import FITTED, dataset, images, rows

from sntg.data import whitening
from sntg.data.whitening import WHITENINGS, whiten

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def fits(monkeypatch) -> list[int]:
    """Grows by one for each ZCA that is fitted instead of read."""
    done, fit = [], whitening._fit
    monkeypatch.setattr(whitening, "_fit", lambda *args: done.append(1) or fit(*args))
    return done


def only_file(cache: Path) -> Path:
    (file,) = cache.glob("*.safetensors")
    return file


@pytest.mark.parametrize("name", FITTED)
def test_the_second_time_the_cache_is_hit(name, cache, fits, caplog):
    caplog.set_level(logging.INFO)
    first = whiten(dataset(), name)
    assert "read from" not in caplog.text
    second = whiten(dataset(), name)
    assert len(fits) == 1
    assert f"whitening: read from {only_file(cache)}" in caplog.text
    assert torch.equal(first.train_x, second.train_x)
    assert torch.equal(first.test_x, second.test_x)


@pytest.mark.parametrize("name", [n for n in WHITENINGS if n not in FITTED])
def test_what_is_not_fitted_is_not_cached(name, cache):
    whiten(dataset(), name)
    assert not cache.exists()


def test_other_images_and_other_whitenings_have_files_of_their_own(cache, fits):
    whiten(dataset(), "zca")
    whiten(dataset(), "gcn-zca")
    whiten(dataset(images(500, 5)), "zca")
    whiten(dataset(images(500, 0)[:499]), "zca")  # a part of a set, still with the whole set's content_hash
    whiten(dataset(images(500, 0).reshape(500, 3, 4, 9)), "zca")
    assert len(fits) == len(list(cache.glob("*.safetensors"))) == 5


def test_nothing_else_is_left_in_the_folder(cache):
    whiten(dataset(), "zca")
    assert {path.suffix for path in cache.iterdir()} == {".safetensors", ".lock"}


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_a_bit(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, lambda _: b"", lambda _: b"not at all what it should be"])
def test_a_damaged_file_is_fitted_anew(damage, cache, fits, caplog):
    first = whiten(dataset(), "zca")
    sound = only_file(cache).read_bytes()
    only_file(cache).write_bytes(damage(sound))
    second = whiten(dataset(), "zca")
    assert len(fits) == 2
    assert "fitted anew" in caplog.text
    assert torch.equal(first.train_x, second.train_x)
    assert only_file(cache).read_bytes() == sound


def wrong_values(name: str):
    zca = whitening.ZCA(torch.zeros(108).double(), torch.eye(108).double())
    return {
        "shape": replace(zca, mean=torch.zeros(107).double()),
        "type": replace(zca, matrix=torch.eye(108)),
        "nan": replace(zca, mean=torch.full((108,), float("nan")).double()),
    }[name]


@pytest.mark.parametrize("what", ["shape", "type", "nan"])
def test_a_file_with_the_wrong_content_is_fitted_anew(what, monkeypatch, fits, caplog):
    with monkeypatch.context() as context:
        context.setattr(whitening, "_fit", lambda *_: wrong_values(what))
        context.setattr(whitening, "_apply", lambda x, *_: x)
        whiten(dataset(), "zca")
    done = whiten(dataset(), "zca")
    assert len(fits) == 1
    assert "is damaged and is fitted anew" in caplog.text
    np.testing.assert_allclose(rows(done.train_x).mean(0), 0, atol=1e-6)


def test_a_cache_that_cannot_be_written_is_only_a_warning(cache, fits, caplog):
    cache.write_text("a file where the folder should be")
    first, second = whiten(dataset(), "zca"), whiten(dataset(), "zca")
    assert len(fits) == 2
    assert "not kept for the next run" in caplog.text
    assert torch.equal(first.train_x, second.train_x)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_read_and_not_written(cache, fits, caplog):
    whiten(dataset(), "zca")
    cache.chmod(0o500)
    try:
        whiten(dataset(), "zca")
        assert len(fits) == 1
        whiten(dataset(), "gcn-zca")
        assert "not kept for the next run" in caplog.text
    finally:
        cache.chmod(0o700)


def test_a_write_that_fails_leaves_nothing_behind(cache, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    whiten(dataset(), "zca")
    assert "No space left on device" in caplog.text
    assert {path.suffix for path in cache.iterdir()} == {".lock"}


WORKER = """
import sys, time
from pathlib import Path
import torch
from sntg.data import whitening
from sntg.data.dataset import Dataset

fit = whitening._fit

def slow_fit(*args):
    with open(sys.argv[1], "a") as log:
        log.write("fitted\\n")
    time.sleep(1)
    return fit(*args)

whitening._fit = slow_fit
x = torch.arange(40 * 12, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(40, 3, 2, 2)
y = torch.zeros(40, dtype=torch.long)
Path(sys.argv[2]).touch()
while not Path(sys.argv[3]).exists():
    time.sleep(0.01)
print(whitening.whiten(Dataset("mine", x, y, x, y, 1), "zca").train_x.double().sum().item())
"""


def test_of_two_processes_one_fits_and_the_other_reads(tmp_path):
    log, ready = tmp_path / "log", [tmp_path / "ready0", tmp_path / "ready1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, log, ready[i], ready[1 - i]],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    results = {process.communicate(timeout=120)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(results) == 1
    assert log.read_text() == "fitted\n"
