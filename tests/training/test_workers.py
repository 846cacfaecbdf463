"""Runs trained by worker processes: news on the way, results in order, failures at once, nobody left behind."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sntg.errors import DivergenceError
from sntg.training import load_inputs, resolve, workers


def test_a_failing_workers_error_surfaces_as_it_was_raised():
    config = resolve("two-moons", 12, "supervised", epochs=9, batch=6000, lr=1e30)
    with pytest.raises(DivergenceError, match=r"^the supervised loss became nan at step \d+$"):
        workers.train_all([config], lambda number, epochs: None)


def test_a_worker_reports_every_epoch_under_its_runs_number(monkeypatch):
    news = queue.Queue()
    monkeypatch.setattr(workers, "_news", news)
    config = resolve("two-moons", 12, "supervised", epochs=3, batch=6000)
    trained = workers._train(5, config)
    assert [news.get_nowait() for _ in range(3)] == [(5, 1), (5, 2), (5, 3)]
    decided = {"engine": "eager", "precision": "float32"}
    decided |= {"data_hash": trained.data.content_hash, "split_hash": load_inputs(config).split.content_hash}
    assert trained.config == replace(config, **decided)
    assert trained.config.data_hash


def ended(result=None, error=None):
    future = Future()
    if error:
        future.set_exception(error)
    else:
        future.set_result(result)
    return future


class Prepared:
    """Stands for the pool and for the queue: futures and news prepared beforehand, no processes."""

    def __init__(self, monkeypatch, futures, news=()):
        self.futures, self.queue, self.closed = iter(futures), queue.Queue(), None
        for one in news:
            self.queue.put(one)
        monkeypatch.setattr(workers, "get_context", lambda kind: SimpleNamespace(Queue=lambda: self.queue))
        monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda *a, **options: self)

    def submit(self, *arguments):
        return next(self.futures)

    def shutdown(self, **options):
        self.closed = options


def test_news_that_comes_with_the_last_result_is_still_passed_on(monkeypatch):
    """Or the bar would stop short of its end."""
    pool = Prepared(monkeypatch, [ended("a"), ended("b")], news=[(0, 1), (1, 1), (0, 2)])
    heard = []
    assert workers.train_all(["x", "y"], lambda *news: heard.append(news)) == ["a", "b"]
    assert heard == [(0, 1), (1, 1), (0, 2)]
    assert pool.closed is not None


def test_news_is_passed_on_while_runs_go_on_and_silence_is_waited_out(monkeypatch):
    slow = Future()
    Prepared(monkeypatch, [slow, ended("b")], news=[(1, 1)])
    heard = []

    def hear(*news):
        heard.append(news)
        threading.Timer(0.4, lambda: slow.set_result("a")).start()  # longer than one wait for news

    assert workers.train_all(["x", "y"], hear) == ["a", "b"]
    assert heard == [(1, 1)]


def test_a_failure_does_not_wait_for_the_runs_before_it(monkeypatch):
    """The first run never ends; the second has failed: the pool is closed and the error told at once."""
    pool = Prepared(monkeypatch, [Future(), ended(error=DivergenceError("the loss became nan"))])
    caught = []

    def attempt():
        try:
            workers.train_all(["x", "y"], lambda *news: None)
        except DivergenceError as e:
            caught.append(str(e))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout=3)
    assert caught == ["the loss became nan"]
    assert pool.closed["cancel_futures"]


ORPHANS = """
import sys, os
from sntg.training import resolve, train_all
if __name__ == "__main__":
    config = resolve("two-moons", 12, "supervised", epochs=100000, batch=100)
    train_all([config], lambda run, epoch: print(epoch, flush=True))
"""


def child_list(pid):
    return Path(f"/proc/{pid}/task/{pid}/children")


def alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not child_list(os.getpid()).exists(), reason="this system does not list children in /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(ORPHANS)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert parent.stdout
    assert parent.stdout.readline()  # training has begun
    children = [int(child) for child in child_list(parent.pid).read_text().split()]
    assert children
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while any(alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [child for child in children if alive(child)]
