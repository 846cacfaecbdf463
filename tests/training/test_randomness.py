"""A run's random numbers and kernels are its own affair: what was set before is set afterwards."""

import warnings

import pytest
import torch

from sntg.training import resolve
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness, sums_in_order


def make_config(**settings):
    return resolve("two-moons", 12, "pi+sntg", **settings)


def test_the_callers_random_numbers_go_on_as_if_nothing_had_been():
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    first = torch.rand(1)
    with own_randomness(make_config(seed=3)):
        inside = torch.rand(1)
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)
    torch.manual_seed(3)
    assert torch.equal(inside, torch.rand(1))


def test_the_generators_of_other_devices_are_left_alone(monkeypatch):
    """Somebody's GPU loop may train one of our runs on the CPU, or on another GPU."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)  # what torch.manual_seed calls, too
    with own_randomness(make_config(seed=3, device="cpu")):
        assert not seeded


def fail():
    raise ZeroDivisionError


def test_kernels_are_repeatable_inside_and_as_they_were_outside_even_after_an_error(monkeypatch):
    cudnn = torch.backends.cudnn
    for name, value in {"deterministic": False, "benchmark": True, "allow_tf32": True}.items():
        monkeypatch.setattr(cudnn, name, value)
    with own_randomness(make_config()):
        assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (True, False, False)
        assert not torch.are_deterministic_algorithms_enabled()  # slow, and not needed for pairs that share no row
    with own_randomness(make_config(pairs="all")):
        assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ZeroDivisionError), own_randomness(make_config()):
        fail()
    assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (False, True, True)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def final_weights(config):
    with own_randomness(config):
        runs = Stack([config])
        while not runs.finished:
            runs.advance()
    return runs.optimiser.theta


@pytest.mark.parametrize("pairs", ["half", "random", "all"])
def test_a_cpu_of_several_threads_trains_to_the_same_bits_whatever_pairs_share_rows(pairs, two_threads):
    """Added up as the threads come, sixty steps end in other weights nearly every time."""
    settings = {"epochs": 1, "ramp_up": 0, "graph_start": 0, "graph_ramp": 0, "k": 0.4, "pairs": pairs}
    config = make_config(n_pairs=4000 if pairs == "random" else None, **settings)
    first = final_weights(config)
    assert all(torch.equal(final_weights(config), first) for _ in range(3))


@pytest.mark.parametrize("before", [(False, False), (True, True), (True, False)])
def test_sums_are_in_order_inside_and_as_they_were_outside(before):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        with sums_in_order():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        with pytest.raises(ZeroDivisionError), sums_in_order():
            fail()
        after = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        assert after == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_runs_that_end_in_another_order_than_they_began_leave_it_to_the_one_around_them():
    """As seeds do that take turns."""
    filters = list(warnings.filters)
    with sums_in_order():
        first, second = sums_in_order(), sums_in_order()
        for run in (first, second):
            run.__enter__()
        for run in (first, second):
            run.__exit__(None, None, None)
            assert torch.are_deterministic_algorithms_enabled()
            with warnings.catch_warnings(record=True) as caught:
                warnings.warn("this operation is not deterministic because it uses CuBLAS", stacklevel=1)
            assert caught == []
    assert not torch.are_deterministic_algorithms_enabled()
    assert warnings.filters == filters


def test_only_the_matrix_products_warning_is_left_unsaid():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with sums_in_order():
            warnings.warn("this operation is not deterministic because it uses CuBLAS", stacklevel=1)
            warnings.warn("another", stacklevel=1)
    assert [str(w.message) for w in caught] == ["another"]
