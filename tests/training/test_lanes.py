"""Taking turns: each lane's random numbers are its own, and who ends, fails or is stopped leaves the others in order.

What a lane has on a GPU is tested here with a GPU that is none, and with a real one in test_engines_gpu.py.
"""

import gc
import signal
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from sntg.errors import DivergenceError, Notice
from sntg.training.engines import beside_others
from sntg.training.lanes import Lane, take_turns
from sntg.training.stopping import Stopped

CPU = torch.device("cpu")


def lanes(count):
    return [Lane(CPU) for _ in range(count)]


def job(name, steps, told, end=None):
    """Takes some steps, then raises `end` or returns its name; it tells what happens, and that it cleans up."""
    try:
        for step in range(steps):
            told.append(f"{name}{step}")
            yield
        if end is not None:
            raise end
        told.append(f"{name} done")
        return [name]
    finally:
        told.append(f"{name} out")


def once(jobs):
    """Jobs that begin once."""
    return [lambda job=job: job for job in jobs]


def draws(seed, count, drawn):
    """Random numbers from a seed of its own, a few at every step."""
    torch.manual_seed(seed)
    for _ in range(count):
        drawn.append(torch.rand(2))
        yield
    return []


# --- a lane ----------------------------------------------------------------------------------------------------------


def test_what_a_run_that_has_ended_held_is_free_before_the_next_begins():
    """Even where it refers to itself, as a run and its step do."""

    class Run: ...

    seen = []

    def job():
        run = Run()
        run.step = lambda: run
        seen.append(weakref.ref(run))
        yield
        return []

    def next_job():
        seen.append(seen[0]())
        yield
        return []

    gc.disable()
    try:
        take_turns([job, next_job], lanes(1))
    finally:
        gc.enable()
    assert seen[1] is None


def test_a_lane_goes_on_where_its_last_turn_ended_and_leaves_the_others_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    here, lane = [torch.rand(1)], Lane(CPU)
    inside = []
    for _ in range(2):
        with lane.turn():
            inside.append(torch.rand(1))
        here.append(torch.rand(1))
    assert torch.equal(torch.cat(here), expected)
    assert torch.equal(torch.cat(inside), expected[1:])  # it began where it was made


def test_an_error_in_a_turn_ends_it_as_it_should():
    before = torch.get_rng_state()
    lane, drawn = Lane(CPU), []

    def fail():
        with lane.turn():
            drawn.append(torch.rand(1))
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
        assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(*drawn)


def test_on_a_cpu_there_is_room_and_nothing_to_clear():
    lane = Lane(CPU)
    assert lane.stream is None
    assert lane.has_room(100)
    lane.clear()


class Generator:
    """A GPU's generator, as far as a lane knows it: a pointer to a state."""

    def __init__(self, state):
        self.state = state

    def clone_state(self):
        return Generator(list(self.state))

    def graphsafe_get_state(self):
        return Generator(self.state)

    def graphsafe_set_state(self, other):
        self.state = other.state


@pytest.fixture
def gpu(monkeypatch):
    """What lanes ask of torch.cuda, of a device that remembers: its generator, stream, memory and who waited."""
    device = SimpleNamespace(type="cuda")
    gpu = SimpleNamespace(device=device, generator=Generator(["mine"]), stream="mine", made=0, waits=[], memory=[])

    class Stream:
        device, device_index = gpu.device, 1

        def __init__(self, device):
            gpu.made += 1
            self.name = f"stream {gpu.made}"

        def wait_stream(self, other):
            gpu.waits.append((self.name, other))

    @contextmanager
    def use(stream):
        before, gpu.stream = gpu.stream, stream.name
        yield
        gpu.stream = before

    fakes = {"Stream": Stream, "stream": use, "current_stream": lambda device: gpu.stream}
    fakes |= {"default_generators": (None, gpu.generator), "empty_cache": lambda: gpu.memory.append("emptied")}
    fakes |= {"mem_get_info": lambda device: (80, 100), "memory_reserved": lambda device: 90}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return gpu


def test_on_a_gpu_every_lane_has_a_stream_and_a_generators_state_of_its_own(gpu):
    outside = gpu.generator.state
    one, other = Lane(gpu.device), Lane(gpu.device)
    assert gpu.waits == [("stream 1", "mine"), ("stream 2", "mine")]
    inside = []
    for lane in (one, other, one):
        with lane.turn():
            inside.append((gpu.stream, gpu.generator.state))
        assert (gpu.stream, gpu.generator.state) == ("mine", outside)
        assert gpu.generator.state is outside
    assert [stream for stream, _ in inside] == ["stream 1", "stream 2", "stream 1"]
    states = [state for _, state in inside]
    assert states[0] is states[2]
    assert len({id(state) for state in (outside, *states)}) == 3


def test_a_lane_keeps_the_state_that_was_put_in_the_place_of_its_own(gpu):
    """After a recording that failed."""
    lane, put = Lane(gpu.device), ["another"]
    with lane.turn():
        gpu.generator.graphsafe_set_state(Generator(put))
    with lane.turn():
        assert gpu.generator.state is put


def test_on_a_gpu_another_run_needs_what_each_has_and_half_of_what_is_free_is_left_alone(gpu):
    lane = Lane(gpu.device)
    assert [lane.has_room(runs) for runs in (1, 2, 3)] == [False, False, True]  # of 80, and 90 are taken
    lane.clear()
    assert gpu.memory == ["emptied"]


# --- turns -----------------------------------------------------------------------------------------------------------


def test_turns_are_taken_step_by_step_and_the_next_takes_the_place_of_who_is_done():
    told, rounds = [], []
    jobs = [job("a", 1, told), job("b", 3, told), job("c", 2, told)]
    assert take_turns(once(jobs), lanes(2), lambda: rounds.append(len(told))) == [["a"], ["b"], ["c"]]
    turns = ["a0", "b0", "a done", "a out", "b1", "c0", "b2", "c1", "b done", "b out", "c done", "c out"]
    assert told == turns
    assert rounds == [2, 5, 7, 10, 12]  # a turn that ends a job is a turn


def test_jobs_in_one_lane_come_one_after_the_other():
    told = []
    take_turns(once([job("a", 2, told), job("b", 1, told)]), lanes(1))
    assert told == ["a0", "a1", "a done", "a out", "b0", "b done", "b out"]


def test_without_room_for_another_they_come_one_after_the_other_too(monkeypatch):
    asked, told = [], []
    monkeypatch.setattr(Lane, "has_room", lambda lane, runs: asked.append(runs))
    take_turns(once([job("a", 2, told), job("b", 1, told)]), lanes(3))
    assert told == ["a0", "a1", "a done", "a out", "b0", "b done", "b out"]
    assert set(asked) == {1}


def test_a_lane_is_cleared_before_another_job_begins(monkeypatch):
    told = []
    monkeypatch.setattr(Lane, "clear", lambda lane: told.append("cleared"))
    take_turns(once([job("a", 1, told, DivergenceError()), job("b", 1, told)]), lanes(1))
    assert told == ["a0", "a out", "cleared", "b0", "b done", "b out", "cleared"]


def test_every_job_draws_what_it_would_draw_alone():
    alone, turned = {}, {}
    for seed in range(4):
        alone[seed], turned[seed] = [], []
        list(draws(seed, 2 + seed, alone[seed]))
    torch.manual_seed(9)
    before = torch.get_rng_state()
    take_turns(once([draws(seed, 2 + seed, turned[seed]) for seed in range(4)]), lanes(3))
    assert torch.equal(torch.get_rng_state(), before)
    for seed in range(4):
        assert torch.equal(torch.cat(turned[seed]), torch.cat(alone[seed]))


def test_one_that_diverges_leaves_the_others_to_their_end_and_is_told_in_its_place():
    told = []
    jobs = [job("a", 2, told), job("b", 1, told, DivergenceError("no number")), job("c", 1, told)]
    assert take_turns(once(jobs), lanes(2)) == [["a"], "no number", ["c"]]
    assert told.count("b out") == 1


def test_when_asked_to_stop_all_that_train_do_and_no_other_begins():
    """Each hears of it in its own turn, or is so near its end that it gets there."""
    told, request = [], Stopped(signal.SIGTERM)
    jobs = [job("a", 1, told, request), job("b", 1, told), job("c", 2, told, request), job("d", 1, told)]
    with pytest.raises(Stopped) as stopped:
        take_turns(once(jobs), lanes(3))
    assert stopped.value is request
    assert told == ["a0", "b0", "c0", "a out", "b done", "b out", "c1", "c out"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_any_other_error_ends_all_of_them_each_in_its_own_lane(error):
    told, numbers = [], []

    def watched(name, steps, seed, end=None):
        torch.manual_seed(seed)
        try:
            yield from job(name, steps, told, end)
        finally:
            numbers.append(torch.initial_seed())

    before = torch.get_rng_state()
    jobs = [watched("a", 5, 1), watched("b", 1, 2, error()), watched("c", 5, 3), job("d", 1, told)]
    with pytest.raises(error) as raised:  # it refers to all that is open, so nothing is closed by chance
        take_turns(once(jobs), lanes(3))
    assert told == ["a0", "b0", "c0", "a1", "b out", "a out", "c out"]
    assert numbers == [2, 1, 3]
    assert torch.equal(torch.get_rng_state(), before)
    assert raised.value is not None


def test_an_error_between_the_rounds_ends_all_of_them_too():
    told = []

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        take_turns(once([job("a", 2, told), job("b", 2, told)]), lanes(2), fail)
    assert told == ["a0", "b0", "a out", "b out"]
    assert raised.value is not None


def test_one_that_finds_no_memory_beside_the_others_begins_again_when_a_lane_is_free():
    told, ends = [], [torch.OutOfMemoryError("too little"), None]
    jobs = [lambda: job("a", 3, told), lambda: job("b", 1, told, ends.pop(0))]
    with pytest.warns(Notice, match="too small for 2 runs at once: the last of them waits"):
        assert take_turns(jobs, lanes(2)) == [["a"], ["b"]]
    assert told == ["a0", "b0", "a1", "b out", "a2", "a done", "a out", "b0", "b done", "b out"]


def test_a_run_knows_whether_there_are_others():
    seen = {"a": [], "b": []}

    def looks(name, steps):
        for _ in range(steps):
            seen[name].append(beside_others.get())
            yield
        return [name]

    take_turns([lambda: looks("a", 3), lambda: looks("b", 1)], lanes(2))
    assert seen == {"a": [False, True, False], "b": [True]}  # b ends after its step
    assert not beside_others.get()


def test_one_that_finds_no_memory_alone_says_so():
    with pytest.raises(torch.OutOfMemoryError):
        take_turns(once([job("a", 1, [], torch.OutOfMemoryError("too little")), job("b", 1, [])]), lanes(1))
