"""What a process that was killed while it compiled has left is gone before the next one compiles."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock

from sntg.errors import Notice
from sntg.training.leftovers import MARKS, compiling, sweep
from sntg.training.stopping import Stopped, stop_requests

HOUR = 3600 * 10**9
NAMES = ("ab/x.main.so", "ab/x.o", "ab/x.main.cpp", "precompiled_headers/y.h.gch", "precompiled_headers/y.h")


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """The cache that the environment names, and the default one."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "named"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return tmp_path / "named", Path(default_cache_dir())


def write(caches, age):
    """Files in every cache that were last written so many nanoseconds ago."""
    files = {cache / name for cache in caches for name in NAMES}
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"part of it")
        os.utime(file, ns=(time.time_ns() - age,) * 2)
    return files


def mark_of_another(cache, age):
    marks = cache / MARKS
    marks.mkdir(parents=True, exist_ok=True)
    mark = marks / f"{time.time_ns() - age}-1"
    mark.touch()
    return mark


def lock_of(mark):
    return FileLock(f"{mark}.lock")


def existing(files):
    return {file for file in files if file.exists()}


def test_what_a_killed_compiler_wrote_is_deleted_and_what_pytorch_wrote_is_kept(caches):
    files = write(caches, age=HOUR)
    mark = mark_of_another(caches[0], age=2 * HOUR)
    with compiling():
        assert {file.suffix for file in existing(files)} == {".cpp", ".h"}
        assert len(existing(files)) == 4  # two in each cache
        assert not mark.exists()


def test_what_was_whole_before_it_began_is_kept(caches):
    files = write(caches, age=2 * HOUR)
    mark_of_another(caches[0], age=HOUR)
    with compiling():
        assert existing(files) == files


def test_a_process_that_still_compiles_is_left_alone(caches):
    files = write(caches, age=HOUR)
    mark = mark_of_another(caches[0], age=2 * HOUR)
    with lock_of(mark), compiling():
        assert existing(files) == files
        assert mark.exists()


def test_what_may_be_of_one_that_still_compiles_is_deleted_when_that_is_done(caches, monkeypatch):
    """Half of a library of the one that was killed would be loaded otherwise, and the run go on without compiling."""
    files = write(caches, age=HOUR)
    mark_of_another(caches[0], age=3 * HOUR)
    alive = mark_of_another(caches[0], age=2 * HOUR)
    lock, looks = lock_of(alive), []

    def end_at_the_third_look(seconds):
        assert existing(files) == files
        looks.append(seconds)
        if len(looks) == 3:
            alive.unlink()
            lock.release()

    lock.acquire()
    monkeypatch.setattr("time.sleep", end_at_the_third_look)
    with pytest.warns(Notice, match="another still compiles: this one waits for that, for 120 s at most"), compiling():
        assert {file.suffix for file in existing(files)} == {".cpp", ".h"}
    assert len(looks) == 3


def test_one_that_never_gets_done_is_not_waited_for_for_ever_and_keeps_its_files(caches, monkeypatch):
    monkeypatch.setattr("sntg.training.leftovers.PATIENCE", 0.5)
    files = write(caches, age=HOUR)
    gone, alive = mark_of_another(caches[0], age=3 * HOUR), mark_of_another(caches[0], age=2 * HOUR)
    with warnings.catch_warnings(action="ignore"), lock_of(alive), compiling():
        assert existing(files) == files
        assert gone.exists()
    alive.unlink()
    with compiling():
        assert {file.suffix for file in existing(files)} == {".cpp", ".h"}


def test_who_waits_hears_that_it_is_to_stop(caches):
    mark_of_another(caches[0], age=3 * HOUR)
    alive = mark_of_another(caches[0], age=2 * HOUR)
    with lock_of(alive), stop_requests():
        signal.raise_signal(signal.SIGTERM)
        with pytest.warns(Notice), pytest.raises(Stopped), compiling():
            pytest.fail("it goes on")


def test_two_that_begin_at_once_see_each_other(caches):
    """The second would sweep away what the first has begun to write since."""

    def begin():
        with compiling():
            return True

    assert begin()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(caches[0] / f"{MARKS}.lock"):
            second = pool.submit(begin)
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
        assert second.result(timeout=60)


def test_what_is_older_than_one_that_still_compiles_is_deleted(caches, monkeypatch):
    monkeypatch.setattr("sntg.training.leftovers.PATIENCE", 0.0)
    files = write(caches, age=2 * HOUR)
    mark_of_another(caches[0], age=3 * HOUR)
    alive = mark_of_another(caches[0], age=HOUR)
    with lock_of(alive), compiling():
        assert {file.suffix for file in existing(files)} == {".cpp", ".h"}


def test_what_is_no_mark_or_cannot_be_deleted_keeps_nobody_from_compiling(caches, monkeypatch):
    (mark_of_another(caches[0], age=2 * HOUR).parent / ".DS_Store").touch()
    files = write(caches, age=HOUR)

    def refuse(path, missing_ok=False):
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        sweep(caches[0] / MARKS, set(caches))
    assert existing(files) == files
    with compiling():
        assert {file.suffix for file in existing(files)} == {".cpp", ".h"}


def test_a_process_leaves_its_mark_until_it_is_done(caches):
    marks = caches[0] / MARKS
    with compiling():
        assert sorted(path.suffix for path in marks.iterdir()) == ["", ".lock"]
    assert list(marks.iterdir()) == []


def test_the_mark_of_one_that_was_stopped_stays_for_the_next(caches):
    with suppress(KeyboardInterrupt), compiling():
        files = write(caches, age=0)
        raise KeyboardInterrupt
    with compiling():
        assert {file.suffix for file in existing(files)} == {".cpp", ".h"}
    assert list((caches[0] / MARKS).iterdir()) == []


@pytest.mark.slow
def test_after_a_kill_in_the_midst_of_compiling_a_run_is_compiled_all_the_same(tmp_path):
    """The kill hits the compiler too, when it has begun to write a library; what follows of it is cut off."""
    cache = tmp_path / "cache"
    cache.mkdir()
    environment = os.environ | {"TMPDIR": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "sntg", "train", "two-moons", "--labels", "12", "--method", "supervised"]
    command += ["--engine", "compiled", "--set", "epochs=1", "--out"]

    def begun():
        return [file for file in cache.glob("*/*.main.so") if file.stat().st_size > 100]

    with subprocess.Popen([*command, tmp_path / "killed"], env=environment, start_new_session=True) as process:
        while not begun():
            assert process.poll() is None
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
    for file in begun():
        os.truncate(file, 100)
    done = subprocess.run([*command, tmp_path / "again"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "engine compiled" in done.stderr
    assert "does not work here" not in done.stderr
