"""Stopping a run from outside, Ctrl-C or SIGTERM: the step at hand is finished first, so that a checkpoint can be
written. A second Ctrl-C stops at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """A run was asked to stop, and has; `signal` is what asked."""

    def __init__(self, by: signal.Signals) -> None:
        super().__init__(f"stopped by {by.name}")
        self.signal = by


Check = Callable[[], None]
_asked: ContextVar[Check | None] = ContextVar("_asked", default=None)


def stop_if_asked() -> None:
    """Raises Stopped where a run has been asked to stop: for those who are not handed the function that tells.

    >>> stop_if_asked()
    """
    if check := _asked.get():
        check()


@contextmanager
def stop_requests() -> Iterator[Check]:
    """Inside, the signals wait; the function it gives raises Stopped if there was one. Only a main thread has signals.

    A run that is one of several hears what all of them are asked.

    >>> with stop_requests() as check:
    ...     check()
    """
    if others := _asked.get():
        yield others
        return
    received: list[signal.Signals] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(signal.Signals(number))

    def check() -> None:
        if received:
            raise Stopped(received[0])

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {number: signal.signal(number, remember) for number in SIGNALS}
    _asked.set(check)
    try:
        yield check
    finally:
        _asked.set(None)
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminated(KeyboardInterrupt):
    """SIGTERM has come. No Exception: an engine that fails is replaced, and this must not count as one."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Inside, SIGTERM interrupts at once, as Ctrl-C does; outside it would end the process with nothing put in order.

    >>> with sigterm_interrupts():
    ...     pass
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
