"""Requests to stop: remembered until asked about, the second Ctrl-C at once, and all as before afterwards."""

import os
import signal
import threading

import pytest

from sntg.training.stopping import SIGNALS, Stopped, stop_if_asked, stop_requests


@pytest.fixture(autouse=True)
def handlers():
    """The handlers of the test run itself, which must be there again in the end."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def send(number):
    os.kill(os.getpid(), number)


def test_the_signals_are_ctrl_c_and_sigterm():
    assert set(SIGNALS) == {signal.SIGINT, signal.SIGTERM}


def test_without_a_signal_there_is_nothing_to_stop_for():
    with stop_requests() as check:
        check()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_until_it_is_asked_about_and_is_named(number):
    with stop_requests() as check:
        send(number)
        done = "the step at hand"
        with pytest.raises(Stopped, match=f"stopped by {number.name}") as stopped:
            check()
    assert done
    assert stopped.value.signal == number


def test_who_is_not_handed_the_function_may_ask_all_the_same():
    with stop_requests():
        stop_if_asked()
        send(signal.SIGTERM)
        with pytest.raises(Stopped):
            stop_if_asked()
    stop_if_asked()


def test_one_of_several_runs_hears_what_all_are_asked_and_leaves_the_signals_to_them():
    with stop_requests() as all_of_them:
        listening = signal.getsignal(signal.SIGTERM)
        with stop_requests() as one:
            assert signal.getsignal(signal.SIGTERM) is listening
            send(signal.SIGTERM)
            with pytest.raises(Stopped):
                one()
        assert signal.getsignal(signal.SIGTERM) is listening
        with pytest.raises(Stopped):
            all_of_them()
        with pytest.raises(Stopped):
            stop_if_asked()


def test_the_request_stays_until_it_is_heard():
    with stop_requests() as check:
        send(signal.SIGTERM)
        for _ in range(2):
            with pytest.raises(Stopped):
                check()


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_ctrl_c_stops_at_once(first):
    with stop_requests():
        send(first)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_a_second_sigterm_waits_as_the_first_does():
    with stop_requests() as check:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        with pytest.raises(Stopped):
            check()


def test_the_first_signal_is_the_one_that_counts():
    with stop_requests() as check:
        send(signal.SIGINT)
        send(signal.SIGTERM)
        with pytest.raises(Stopped) as stopped:
            check()
    assert stopped.value.signal == signal.SIGINT


def test_the_handlers_are_given_back_after_an_error_too(handlers):
    def fail():
        with stop_requests():
            assert signal.getsignal(signal.SIGINT) is not handlers[signal.SIGINT]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_later_run_knows_nothing_of_an_earlier_request():
    with stop_requests():
        send(signal.SIGTERM)
    with stop_requests() as check:
        check()


def test_in_another_thread_there_are_no_signals_to_wait_for(handlers):
    """Python delivers them to the main thread alone; a run in a notebook's thread must still work."""
    seen = []

    def work():
        with stop_requests() as check:
            check()
            seen.append({number: signal.getsignal(number) for number in SIGNALS})

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [handlers]
