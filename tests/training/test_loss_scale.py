"""The loss scale: what overflows is not taken, by that run alone, and a resumed run is where it was."""

import pytest
import torch
from engine_runs import copied, make_config, make_stack, overflow_above, same_state
from torch import nn
from torch.testing import assert_close

from sntg.models import LOSS_SCALE
from sntg.training import loss_scale
from sntg.training.adam import Adam
from sntg.training.loss_scale import LossScale

GRADIENT = torch.tensor([3.0, -0.5, 0.0])
RUN_OF = torch.tensor([0, 0, 1, 1, 0, 1])  # where two runs' numbers are in a flat tensor


@pytest.fixture
def steady(monkeypatch):
    monkeypatch.setattr(loss_scale, "STEADY", 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_finite_gradient_is_scaled_back_exactly(dtype):
    scale = LossScale(1024.0)
    unscaled, taken = scale.unscaled(1024.0 * GRADIENT.to(dtype))
    assert torch.equal(unscaled, GRADIENT.to(dtype))
    assert (unscaled.dtype, taken.dtype, taken.item(), scale.value.item()) == (dtype, dtype, 1, 1024)


@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
def test_one_that_is_not_finite_is_nothing_and_halves_the_scale(wrong):
    scale = LossScale(1024.0)
    for value in (512.0, 256.0):
        unscaled, taken = scale.unscaled(torch.tensor([1.0, wrong, 2.0]))
        assert unscaled.tolist() == [0, 0, 0]
        assert (taken.item(), scale.value.item()) == (0, value)
    unscaled, taken = scale.unscaled(256.0 * GRADIENT)
    assert torch.equal(unscaled, GRADIENT)
    assert (taken.item(), scale.value.item()) == (1, 256)


def test_at_one_what_is_not_finite_comes_through():
    """It is no overflow; the weights it leaves behind will show in the losses."""
    scale = LossScale(4.0)
    bad = torch.tensor([torch.nan, 1.0])
    assert [scale.unscaled(bad)[1].item() for _ in range(3)] == [0, 0, 1]
    unscaled, _ = scale.unscaled(bad)
    assert unscaled[0].isnan()
    assert unscaled[1] == 1
    assert scale.value.item() == 1


def test_it_doubles_after_steady_steps_and_never_beyond_its_start(steady):
    scale = LossScale(1024.0)
    seen = []
    for good in [1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]:
        scale.unscaled(GRADIENT if good else GRADIENT * torch.inf)
        seen.append(scale.value.item())
    assert seen == [1024, 512, 512, 512, 256, 256, 256, 512, 512, 512, 1024, 1024, 1024, 1024]


def test_each_of_several_runs_has_its_own():
    scale = LossScale(8.0, runs=2)
    gradient = 8.0 * torch.arange(1.0, 7.0)
    gradient[3] = torch.inf
    unscaled, taken = scale.unscaled(gradient, RUN_OF)
    assert unscaled.tolist() == [1, 2, 0, 0, 5, 0]
    assert taken.tolist() == [1, 1, 0, 0, 1, 0]
    assert scale.value.tolist() == [8, 4]
    unscaled, taken = scale.unscaled(8.0 * torch.ones(6), RUN_OF)
    assert unscaled.tolist() == [1, 1, 2, 2, 1, 2]
    assert taken.all()


def test_it_goes_back_to_where_another_was(steady):
    one, other = LossScale(64.0, 2), LossScale(64.0, 2)
    one.unscaled(torch.tensor([torch.inf, 1.0]), torch.arange(2))
    one.unscaled(torch.ones(2), torch.arange(2))
    other.load_state({name: tensor.clone() for name, tensor in one.state().items()})
    for _ in range(4):
        for scale in (one, other):
            scale.unscaled(torch.ones(2), torch.arange(2))
        assert_close(one.state(), other.state(), rtol=0, atol=0)
    assert one.value.tolist() == [64, 64]


def test_a_checkpoint_of_an_earlier_version_has_the_scale_it_began_with():
    scale = LossScale(64.0)
    scale.unscaled(torch.tensor([torch.inf]))
    scale.load_state({"m": torch.zeros(1)})
    assert (scale.value.item(), scale.steady.item()) == (64, 0)


# --- in the optimiser, and in a run ----------------------------------------------------------------------------------


def test_a_step_that_overflows_moves_nothing():
    """Not by momentum either, and both moments stay as they are."""
    adam = Adam([nn.Parameter(torch.tensor([1.0, 2.0]))], loss_scale=1024.0)
    for gradient in ([1.0, -3.0], [torch.inf, 1.0]):
        before = [t.clone() for t in (adam.theta, adam.m, adam.v)]
        adam.gradient.copy_(torch.tensor(gradient))
        adam.step(0.1, 0.9, 0.999)
        same = [torch.equal(*pair) for pair in zip((adam.theta, adam.m, adam.v), before, strict=True)]
        assert same == [gradient[0] == torch.inf] * 3


def runs_of(*seeds, engine="eager"):
    return make_stack(*(make_config("pi+sntg", engine, seed=seed) for seed in seeds))


@pytest.fixture
def scaled(monkeypatch):
    """The loss is scaled in float32, too, and overflows with a scale above 300: the first two steps do."""
    monkeypatch.setitem(LOSS_SCALE, "float32", 1024.0)
    overflow_above(300, monkeypatch)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_run_goes_on_after_an_overflow(scaled, engine):
    runs = runs_of(0, engine=engine)
    assert runs.configs[0].engine == engine
    begun = runs.optimiser.theta.clone()
    moved = []
    for _ in range(4):
        runs.advance()
        moved.append(not torch.equal(runs.optimiser.theta, begun))
    assert moved == [False, False, True, True]
    (record,) = runs.histories[0]
    assert record["loss_scale"] == 256
    assert runs.optimiser.theta.isfinite().all()
    assert not runs.diverged


def test_it_is_resumed_to_the_same_bits(scaled):
    ends, runs = [], runs_of(0)
    runs.advance()
    state = copied(runs.state())
    for going_on in (runs, runs_of(0)):
        going_on.load_state(state, [[]])
        for _ in range(4):
            going_on.advance()
        ends.append(copied(going_on.state()))
    assert same_state(*ends)
    assert state["optimiser/loss_scale"].item() == 512
    assert ends[0]["optimiser/loss_scale"].item() == 256


def test_a_run_that_has_diverged_does_not_hold_up_another(scaled):
    """Its gradients are no numbers at any scale."""
    runs = runs_of(0, 1)
    with torch.no_grad():
        next(runs.model.parameters())[0].fill_(torch.nan)
    begun = runs.optimiser.theta.clone()
    for _ in range(4):
        runs.advance()
    assert list(runs.diverged) == [0]
    assert runs.optimiser.scale.value.tolist() == [64, 256]
    second = runs.optimiser.run_of == 1
    assert (runs.optimiser.theta[second] != begun[second]).any()
    assert runs.optimiser.theta[second].isfinite().all()


def test_where_nothing_is_scaled_nothing_is_told_of_it():
    runs = runs_of(0)
    for _ in range(4):
        runs.advance()
    assert "loss_scale" not in runs.histories[0][0]
    assert runs.optimiser.scale is None
    assert runs.optimiser.run_of is None
