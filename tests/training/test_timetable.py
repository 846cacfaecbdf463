"""The timetable: every step's line is what the schedules and Adam's bias correction say of it, in float64."""

import math

import pytest
import torch

from sntg.training.schedules import Schedule
from sntg.training.timetable import Timetable

TERMS = ("supervised", "consistency", "entropy", "sntg")
EPOCHS, STEPS = 5, 4
SHARED = {"epochs": EPOCHS, "ramp_down": 2, "ema": 0.99, "beta2": 0.995, "early_momentum": 0.9, "early_epochs": 1}
RUNS = [
    Schedule(lr_max=0.003, w_max=100.0, label_factor=0.08, k=0.4, ent=0.7, ramp_up=3, skip_first=False, **SHARED),
    Schedule(lr_max=0.01, w_max=7.0, k=2.0, ramp_up=2, graph_start=2, graph_ramp=2, **SHARED),
    Schedule(lr_max=0.0, w_max=1.0 / 3.0, ramp_up=0, **SHARED),
]
DECAYS = {"gauss": RUNS, "linear": [Schedule(lr_max=0.01, w_max=3.0, ramp_up=2, decay="linear", **SHARED)]}


def expected(schedules, moment, t):
    """What step number t = 1, 2, ... is to use, straight from the definitions."""
    beta1 = schedules[0].beta1(moment)
    ema, beta2 = schedules[0].momenta(moment)
    correction = math.sqrt(1 - beta2**t) / (1 - beta1**t)
    weights = {term: [s.weights(moment)[term] for s in schedules] for term in TERMS}
    return beta1, beta2, ema, [s.lr(moment) * correction for s in schedules], weights


def assert_line(values, schedules, moment, t):
    beta1, beta2, ema, rate, weights = expected(schedules, moment, t)
    for tensor in (values.beta1, values.beta2, values.ema):
        assert tensor.shape == ()
        assert tensor.dtype == torch.float64
    assert (values.beta1.item(), values.beta2.item(), values.ema.item()) == (beta1, beta2, ema)
    assert values.rate.dtype == torch.float64
    assert values.rate.tolist() == pytest.approx(rate, rel=1e-15, abs=0)
    assert {term: tensor.tolist() for term, tensor in values.weights.items()} == weights  # nothing is rounded


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_every_line_of_a_run_is_what_the_schedules_say_of_its_step(decay, stepwise):
    schedules = DECAYS[decay]
    table = Timetable(schedules, TERMS, STEPS, stepwise)
    for step in range(EPOCHS * STEPS):
        if step % STEPS == 0:
            table.load(step)
        moment = step / STEPS if stepwise else step // STEPS
        assert table.moment(step) == moment
        assert_line(table.next(), schedules, moment, step + 1)


def test_ramps_that_move_with_every_step_give_every_step_another_line_and_the_others_one_an_epoch():
    for stepwise, lines in ((True, STEPS), (False, 1)):
        table = Timetable(RUNS[:1], TERMS, STEPS, stepwise)
        table.load(STEPS)
        weights = [table.next().weights["consistency"].item() for _ in range(STEPS)]
        assert len(set(weights)) == lines


def test_the_rate_moves_with_every_step_either_way():
    """The bias correction counts steps, whatever the ramps do."""
    table = Timetable(RUNS[:1], TERMS, STEPS)
    table.load(0)
    assert len({table.next().rate.item() for _ in range(STEPS)}) == STEPS


def test_the_bias_correction_of_the_first_step_divides_by_what_the_moments_lack():
    schedule = Schedule(epochs=1, lr_max=1.0, w_max=0.0, ramp_up=0, ramp_down=0, beta2=0.99)
    table = Timetable([schedule], ("supervised",), 1)
    table.load(0)
    assert table.next().rate.item() == pytest.approx(math.sqrt(0.01) / 0.1, rel=1e-12)


def test_the_bias_correction_of_a_late_step_is_that_of_its_number_and_not_of_its_place_in_the_epoch():
    schedule = Schedule(epochs=1000, lr_max=1.0, w_max=0.0, ramp_up=0, ramp_down=0)
    table = Timetable([schedule], ("supervised",), 7)
    table.load(699)
    t = 700
    assert table.next().rate.item() == pytest.approx(math.sqrt(1 - 0.999**t) / (1 - 0.9**t), rel=1e-14)


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("step", [0, 1, 3, 4, 6, 7, 19])
def test_a_table_loaded_in_mid_epoch_goes_on_from_there(step, stepwise):
    table = Timetable(RUNS, TERMS, STEPS, stepwise)
    table.load(0)
    table.next()
    table.load(step)
    for later in range(step, (step // STEPS + 1) * STEPS):
        assert_line(table.next(), RUNS, later / STEPS if stepwise else later // STEPS, later + 1)


def test_loading_goes_back_and_forth_between_epochs():
    table = Timetable(RUNS, TERMS, STEPS)
    for step in (9, 2, 17, 17, 2, 3):
        table.load(step)
        assert_line(table.next(), RUNS, step // STEPS, step + 1)


def test_the_lines_and_the_place_stay_where_they_are_in_memory():
    """A recorded step looks its line up in the same memory at every replay."""
    table = Timetable(RUNS, TERMS, STEPS)
    table.load(0)
    where = table.lines.data_ptr(), table.place.data_ptr()
    for step in range(EPOCHS * STEPS):
        if step % STEPS == 0:
            table.load(step)
        table.next()
        assert (table.lines.data_ptr(), table.place.data_ptr()) == where


def test_a_line_given_is_not_changed_by_what_comes_after():
    table = Timetable(RUNS, TERMS, STEPS)
    table.load(0)
    first = table.next()
    rate, weight = first.rate.clone(), first.weights["consistency"].clone()
    table.next()
    table.load(16)
    assert torch.equal(first.rate, rate)
    assert torch.equal(first.weights["consistency"], weight)


@pytest.mark.parametrize("terms", [("supervised",), ("supervised", "sntg"), ("sntg", "supervised")])
def test_it_has_the_terms_it_was_asked_for_and_no_others(terms):
    table = Timetable(RUNS, terms, STEPS)
    table.load(12)
    weights = table.next().weights
    assert tuple(weights) == terms
    assert {name: w.tolist() for name, w in weights.items()} == {n: [s.weights(3)[n] for s in RUNS] for n in terms}


def test_weights_that_float32_would_round_are_kept():
    table = Timetable(RUNS, TERMS, STEPS)
    table.load(16)
    (weight,) = table.next().weights["consistency"][2:].tolist()
    assert weight == 1.0 / 3.0
    assert weight != torch.tensor(1.0 / 3.0).item()
