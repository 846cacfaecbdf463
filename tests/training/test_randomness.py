"""A run's random numbers and the way it computes are its own affair: what was set before is set afterwards."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sntg.errors import UsageError
from sntg.models.noise import GaussianNoise
from sntg.training import resolve, train
from sntg.training.loop import Stack
from sntg.training.randomness import initial_weights, other_draws, own_randomness


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
    with own_randomness(make_config(seed=3)):
        assert torch.equal(inside, torch.rand(1))


def test_two_threads_do_not_train_at_once():
    """Each would draw numbers that are the other's, and put switches back that the other needs."""
    config = make_config(epochs=1)
    (alone,) = train([config])
    refused = []

    def meanwhile(records):
        with ThreadPoolExecutor() as threads, pytest.raises(UsageError, match="another thread of this process trains"):
            threads.submit(train, [make_config(seed=1, epochs=1)]).result()
        train([make_config(seed=2, epochs=1)])  # within the same thread one may
        refused.append(records)

    (undisturbed,) = train([config], meanwhile)
    assert refused
    assert undisturbed.history == alone.history
    with ThreadPoolExecutor() as threads:
        (elsewhere,) = threads.submit(train, [config]).result()
    assert elsewhere.history == alone.history


@pytest.mark.parametrize("seed", [0, 7])
def test_a_run_draws_other_numbers_than_its_initial_weights(seed):
    """A Gaussian noise whose numbers a shuffle has moved on by 6000 was once, number for number, a layer's weights."""
    with initial_weights(seed):
        weights = torch.randn(20_000)
    with own_randomness(make_config(seed=seed)):
        torch.randperm(6000)
        noise = torch.randn(20_000)
    assert torch.isin(weights, noise).float().mean() < 0.01
    torch.rand(3)
    caller = torch.get_rng_state()
    with initial_weights(seed):
        assert torch.equal(torch.randn(20_000), weights)
    assert torch.equal(torch.get_rng_state(), caller)


@pytest.mark.parametrize("seeds", [(0,), (7, 0)], ids=str)
def test_the_first_noise_is_not_the_weights(seeds, monkeypatch):
    """It once was in part, and made the data-dependent initialisation come out too small."""
    draws, draw = [], GaussianNoise.draw

    def seen(noise, x):
        draws.append(draw(noise, x))
        return draws[-1]

    monkeypatch.setattr(GaussianNoise, "draw", seen)
    configs = [make_config(seed=seed, epochs=1) for seed in seeds]
    with own_randomness(configs[0]):
        runs = Stack(configs)
    noise = torch.cat([drawn.flatten() for drawn in draws])
    for name, V in runs.model.named_parameters():
        if name.endswith("V"):
            # V is 0.05 times a draw, to rounding; in steps of 1e-6 about one in a hundred is another draw by chance.
            assert torch.isin((V / 0.05 * 1e6).round(), (noise * 1e6).round()).float().mean() < 0.1, name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no process")
def test_a_forked_process_may_train_while_a_thread_of_its_parent_does():
    """It has none of its parent's threads, so nobody there draws its numbers."""

    def train_in_a_child():
        child = os.fork()
        if child == 0:
            try:
                with own_randomness(make_config()):
                    os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1]

    with own_randomness(make_config()), ThreadPoolExecutor() as threads:
        assert threads.submit(train_in_a_child).result() == 0


def test_the_generators_of_other_devices_are_left_alone(monkeypatch):
    """Somebody's GPU loop may train one of our runs on the CPU, or on another GPU."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)  # what torch.manual_seed calls, too
    with own_randomness(make_config(seed=3, device="cpu")):
        assert not seeded


@pytest.mark.parametrize(("pairs", "in_order"), [("half", False), ("all", True)])
def test_a_run_computes_as_it_asks_for_and_its_caller_as_before(pairs, in_order, caller_settings):
    """`test_arithmetic.py` has each switch by itself. Sums in order are slow, and for pairs that share rows alone."""
    before = caller_settings()
    with own_randomness(make_config(pairs=pairs)):
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
        assert torch.backends.cudnn.conv.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.are_deterministic_algorithms_enabled() == in_order
    assert caller_settings() == before


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_what_the_caller_lets_products_be_computed_in_changes_no_run(setting, caller_settings):
    config = resolve("digits", 20, "pi+sntg", epochs=1, epoch_steps=2, ramp_up=0)
    expected = final_weights(config)
    torch.set_float32_matmul_precision(setting)
    torch.backends.mkldnn.conv.fp32_precision = {"highest": "ieee", "high": "tf32", "medium": "bf16"}[setting]
    assert torch.equal(final_weights(config), expected)


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


def test_draws_that_others_make_are_not_missed_even_after_an_error():
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    first = torch.rand(1)
    with pytest.raises(AttributeError), other_draws(torch.device("cpu")):
        torch.rand(5).no_such_thing()
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)
