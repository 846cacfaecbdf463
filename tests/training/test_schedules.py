"""The ramps at every epoch against the formulas of the recipe and of the paper's text."""

import math

import pytest
import references as reference
from hypothesis import given
from hypothesis import strategies as st

from sntg.training.schedules import Schedule, linear_decay, ramp_down, ramp_up

EPOCHS = range(300)
SVHN = Schedule(epochs=300, lr_max=1e-3, w_max=30.0, label_factor=1000 / 73257)


def test_the_ramp_up_is_the_recipes_formula_at_every_epoch():
    assert [ramp_up(e, 80) for e in EPOCHS] == pytest.approx([reference.ramp_up(e) for e in EPOCHS], rel=1e-14)


def test_the_ramp_down_is_the_recipes_formula_at_every_epoch():
    ours = [ramp_down(e, 300, 50) for e in range(301)]
    assert ours == pytest.approx([reference.ramp_down(e) for e in range(301)], rel=1e-14)


def test_the_ramp_down_is_the_papers_text_in_its_last_50_epochs():
    ours = [ramp_down(t, 300, 50) for t in range(250, 301)]
    assert ours == pytest.approx([reference.ramp_down_of_the_text(t) for t in range(250, 301)], rel=1e-12)


def test_known_points_of_the_ramps():
    assert ramp_up(0, 80) == pytest.approx(0.006737946999085467, rel=1e-14)  # exp(-5)
    assert ramp_up(40, 80) == pytest.approx(0.2865047968601901, rel=1e-14)  # exp(-1.25)
    assert ramp_up(80, 80) == ramp_up(299, 80) == 1
    assert ramp_down(0, 300, 50) == ramp_down(250, 300, 50) == 1
    assert ramp_down(275, 300, 50) == pytest.approx(0.04393693362340742, rel=1e-14)  # exp(-3.125)
    assert ramp_down(300, 300, 50) == pytest.approx(3.7266531720786e-06, rel=1e-12)  # exp(-12.5)


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_ramp_up_rises_to_1_and_stays(epoch, length):
    value = ramp_up(epoch, length)
    assert math.exp(-5) * (1 - 1e-12) <= value <= ramp_up(epoch + 1, length) <= 1
    assert (value == 1) == (epoch >= length)


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_ramp_down_falls_from_1_in_the_last_epochs_only(epoch, length):
    value = ramp_down(epoch, 200, length)
    assert 0 < ramp_down(epoch + 1, 200, length) <= value <= 1
    assert (value == 1) == (length == 0 or epoch <= 200 - length)


def test_the_learning_rate_is_ramped_at_both_ends():
    ours = [SVHN.lr(e) for e in EPOCHS]
    assert ours == pytest.approx([reference.ramp_up(e) * reference.ramp_down(e) * 1e-3 for e in EPOCHS], rel=1e-13)


def test_overlapping_ramps_multiply():
    """With 100 epochs the ramp-down starts at 50, while the ramp-up still runs."""
    short = Schedule(epochs=100, lr_max=1.0, w_max=1.0)
    assert short.lr(60) == pytest.approx(
        math.exp(-5 * (1 - 60 / 80) ** 2) * math.exp(-12.5 * (10 / 50) ** 2), rel=1e-13
    )


def test_beta1_falls_from_09_to_05_with_the_ramp_down():
    down = [reference.ramp_down(e) for e in EPOCHS]
    assert [SVHN.beta1(e) for e in EPOCHS] == pytest.approx([d * 0.9 + (1 - d) * 0.5 for d in down], rel=1e-14)
    assert SVHN.beta1(0) == SVHN.beta1(250) == 0.9
    assert SVHN.beta1(299) == pytest.approx(0.5, abs=1e-5)


def test_w_is_ramped_scaled_by_the_labelled_share_and_zero_in_the_first_epoch():
    expected = [0.0] + [reference.ramp_up(e) * 30 * 1000 / 73257 for e in EPOCHS[1:]]
    assert [SVHN.w(e) for e in EPOCHS] == pytest.approx(expected, rel=1e-13)
    assert SVHN.w(0) == 0
    assert SVHN.w(1) > 0


def test_w_has_no_ramp_down():
    assert SVHN.w(299) == SVHN.w(80) == pytest.approx(30 * 1000 / 73257, rel=1e-14)


def test_without_a_label_factor_w_reaches_w_max():
    assert Schedule(epochs=300, lr_max=1e-3, w_max=300.0).w(80) == 300


@pytest.mark.parametrize("epoch", [0, 1, 40, 79, 80, 200, 299])
@pytest.mark.parametrize("k", [0.0, 0.1, 1.0])
def test_the_weights_of_all_terms(epoch, k):
    """Loss = CE + w cons + w ent H + w k R_S."""
    weights = Schedule(epochs=300, lr_max=1.0, w_max=100.0, label_factor=0.08, k=k, ent=0.5).weights(epoch)
    w = 0.0 if epoch == 0 else reference.ramp_up(epoch) * 8
    assert weights == pytest.approx({"supervised": 1, "consistency": w, "entropy": 0.5 * w, "sntg": k * w}, rel=1e-13)


def test_k_is_04_unless_told():
    assert SVHN.weights(100)["sntg"] == pytest.approx(0.4 * SVHN.w(100), rel=1e-14)


def test_a_late_graph_starts_with_a_ramp_of_its_own_and_delays_nothing_else():
    late = Schedule(epochs=500, lr_max=1e-3, w_max=0.2, k=0.1, graph_start=200, graph_ramp=50)
    for epoch in range(500):
        since = epoch - 200
        factor = 0.0 if since < 0 else math.exp(-5 * (1 - since / 50) ** 2) if since < 50 else 1.0
        weights = late.weights(epoch)
        assert late.graph(epoch) == pytest.approx(factor, rel=1e-14)
        assert weights["sntg"] == pytest.approx(late.w(epoch) * 0.1 * factor, rel=1e-13)
        assert weights["consistency"] == late.w(epoch)
    assert late.graph(199) == 0 < late.graph(200) == pytest.approx(math.exp(-5))


def test_a_late_graph_without_a_ramp_starts_at_full_weight():
    late = Schedule(epochs=300, lr_max=1e-3, w_max=1.0, graph_start=100)
    assert (late.graph(99), late.graph(100)) == (0.0, 1.0)


def test_the_graph_starts_with_the_rest_unless_told():
    assert [SVHN.graph(e) for e in EPOCHS] == [1.0] * 300


def test_ramps_of_length_zero_are_no_ramps():
    """VAT: constant weights from the first step on."""
    flat = Schedule(epochs=10, lr_max=2.0, w_max=1.0, ramp_up=0, ramp_down=0)
    assert [(flat.lr(e), flat.w(e), flat.beta1(e)) for e in range(10)] == [(2.0, 1.0, 0.9)] * 10


def test_the_ramps_move_with_the_number_of_epochs():
    synthetic = Schedule(epochs=500, lr_max=1.0, w_max=1.0, ramp_down=83)
    assert synthetic.lr(417) == 1
    assert synthetic.lr(450) == pytest.approx(math.exp(-12.5 * (33 / 83) ** 2), rel=1e-14)


# --- the first epoch, steps, and the other end -----------------------------------------------------------------------


@pytest.mark.parametrize(("skip_first", "ramp_up", "first"), [(True, 80, 0.0), (False, 80, math.exp(-5)), (True, 0, 1)])
def test_the_first_epoch_has_no_consistency_where_there_is_a_ramp_and_it_says_so(skip_first, ramp_up, first):
    schedule = Schedule(epochs=300, lr_max=1.0, w_max=8.0, ramp_up=ramp_up, skip_first=skip_first)
    weights = schedule.weights(0)
    assert weights["consistency"] == pytest.approx(8 * first)
    assert weights["sntg"] == pytest.approx(0.4 * 8 * first)
    assert weights["entropy"] == pytest.approx(8 * first)
    assert weights["supervised"] == 1


def test_the_whole_first_epoch_is_without_consistency_step_by_step_too():
    stepwise = Schedule(epochs=300, lr_max=1.0, w_max=8.0)
    assert [stepwise.w(step / 500) for step in range(500)] == [0.0] * 500
    assert stepwise.w(1.0) == pytest.approx(8 * math.exp(-5 * (79 / 80) ** 2))


@pytest.mark.parametrize("step", [0, 1, 399, 20_000, 39_999, 40_000, 124_999, 125_000, 137_500, 149_999])
def test_step_by_step_the_ramps_are_those_of_the_steps(step):
    """Mean Teacher's 150k steps in epochs of 500: the ramps are 40k and 25k steps long."""
    schedule = Schedule(epochs=300, lr_max=3e-3, w_max=100.0, label_factor=0.08, skip_first=False)
    up = math.exp(-5 * (1 - step / 40_000) ** 2) if step < 40_000 else 1.0
    down = math.exp(-12.5 * ((step - 125_000) / 25_000) ** 2) if step >= 125_000 else 1.0
    epoch = step / 500
    assert schedule.lr(epoch) == pytest.approx(3e-3 * up * down, rel=1e-12)
    assert schedule.w(epoch) == pytest.approx(8 * up, rel=1e-12)
    assert schedule.beta1(epoch) == pytest.approx(down * 0.9 + (1 - down) * 0.5, rel=1e-12)


VAT = Schedule(epochs=500, lr_max=1e-3, w_max=1.0, ramp_up=0, ramp_down=40, decay="linear")


@pytest.mark.parametrize(
    ("step", "share"), [(0, 1.0), (183_999, 1.0), (184_000, 1.0), (188_000, 0.75), (192_000, 0.5), (199_999, 1 / 16000)]
)
def test_a_linear_decay_goes_in_a_straight_line_to_zero(step, share):
    """VAT's 200k steps in epochs of 400: constant until step 184k."""
    assert VAT.lr(step / 400) == pytest.approx(1e-3 * share, rel=1e-9)
    assert VAT.w(step / 400) == 1


def test_with_a_linear_decay_beta1_jumps_when_it_starts():
    assert [VAT.beta1(step / 400) for step in (0, 183_999, 184_000, 199_999)] == [0.9, 0.9, 0.5, 0.5]


@given(st.floats(0, 100), st.integers(0, 100))
def test_a_linear_decay_falls_from_1_to_0(epoch, length):
    value = linear_decay(epoch, 100, length)
    assert 0 <= value <= 1
    assert value == (1 if length == 0 or epoch <= 100 - length else pytest.approx((100 - epoch) / length))


def test_the_early_momentum_stands_in_for_both_momenta_until_its_time_is_over():
    schedule = Schedule(epochs=360, lr_max=1.0, w_max=1.0, ema=0.997, beta2=0.998, early_momentum=0.99, early_epochs=80)
    assert [schedule.momenta(epoch) for epoch in (0, 79, 79.998)] == [(0.99, 0.99)] * 3
    assert [schedule.momenta(epoch) for epoch in (80, 80.002, 359)] == [(0.997, 0.998)] * 3


def test_without_an_early_time_the_momenta_are_constant():
    schedule = Schedule(epochs=300, lr_max=1.0, w_max=1.0, ema=0.9, beta2=0.8)
    assert {schedule.momenta(epoch) for epoch in EPOCHS} == {(0.9, 0.8)}
    assert SVHN.momenta(0) == (0.999, 0.999)
