"""Trains the demo's runs on all cores: small nets gain more from a run a core than from many cores a run."""

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any

import torch

from sntg.training import Config, Trained, train


def train_all(configs: list[Config], on_epoch: Callable[[int, int], None]) -> list[Trained]:
    """Trains every config and returns the runs in their order; on_epoch(which run, epochs done) tells how far it is."""
    context = get_context("spawn")  # a forked torch may hang
    with context.Manager() as manager:
        news: Any = manager.Queue()
        workers = min(len(configs), os.cpu_count() or 1)
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,))
        try:
            futures = [pool.submit(_train, number, config, news) for number, config in enumerate(configs)]
            _relay(futures, news, on_epoch)
            for future in futures:
                if future.done():
                    future.result()  # a failure is told at once, not after the runs before it
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _relay(futures: list["Future[Trained]"], news: Any, on_epoch: Callable[[int, int], None]) -> None:
    """Passes on the workers' news until all have ended or one has failed."""
    while True:
        ended = wait(futures, timeout=0)
        failed = any(f.exception() for f in ended.done if not f.cancelled())
        try:
            on_epoch(*news.get(timeout=0.2 if ended.not_done else 0))
        except queue.Empty:
            if not ended.not_done:
                return
        if failed:
            return


def _train(number: int, config: Config, news: Any) -> Trained:
    (trained,) = train([config], lambda records: news.put((number, records[0]["epoch"])))
    return trained
