"""Trains many runs on all cores: small nets gain more from a run a core than from many cores a run."""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import active_children, get_context, parent_process
from typing import Any

import torch

from sntg.training.config import Config
from sntg.training.loop import Trained, train

_news: Any = None  # in a worker: the queue its progress goes into


def train_all(configs: list[Config], on_epoch: Callable[[int, int], None]) -> list[Trained]:
    """Trains every config and returns the runs in their order; on_epoch(which run, epochs done) tells how far it is.

    The first failure ends all of them and is raised as it was.

    >>> from sntg.training import resolve
    >>> runs = train_all([resolve("two-moons", 12, "pi", s, epochs=1) for s in (0, 1)], lambda run, epochs: None)
    >>> [len(run.history) for run in runs]
    [1, 1]
    """
    context = get_context("spawn")  # a forked torch may hang
    news: Any = context.Queue()
    before = active_children()
    workers = min(len(configs), os.cpu_count() or 1)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare, initargs=(news,))
    try:
        futures = [pool.submit(_train, number, config) for number, config in enumerate(configs)]
        _relay(futures, news, on_epoch)
        for future in futures:
            if future.done():
                future.result()  # a failure is told at once, not after the runs before it
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - set(before):
            process.terminate()


def _relay(futures: list["Future[Trained]"], news: Any, on_epoch: Callable[[int, int], None]) -> None:
    """Passes on the workers' news until all have ended or one has failed."""
    while True:
        ended = wait(futures, timeout=0)
        failed = any(f.exception() for f in ended.done if not f.cancelled())
        try:
            on_epoch(*news.get(timeout=0.2))
        except queue.Empty:
            if not ended.not_done:
                return
        if failed:
            return


def _prepare(news: Any) -> None:
    """Readies a worker: one thread, its line to the parent, and an end when the parent is killed."""
    global _news
    _news = news
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _train(number: int, config: Config) -> Trained:
    (trained,) = train([config], lambda records: _news.put((number, records[0]["epoch"])))
    return trained
