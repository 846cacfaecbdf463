"""Adam as the recipe has it, step by step against float64 NumPy."""

import math

import numpy as np
import pytest
import references as reference
import torch
from torch import nn

from sntg.training.adam import Adam

SHAPES = [(3, 2), (4,), (2, 1, 3, 3)]


def schedule(step, steps=40):
    """A learning rate and a beta1 that change at every step, as in a ramp-down."""
    down = math.exp(-12.5 * (step / steps) ** 2)
    return 0.02 * down, down * 0.9 + (1 - down) * 0.5


def parameters(dtype=torch.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [nn.Parameter(torch.from_numpy(rng.normal(size=shape)).to(dtype)) for shape in SHAPES]


def gradients(step):
    """Of very different sizes, zeros included."""
    rng = np.random.default_rng(1000 + step)
    return [10.0 ** rng.integers(-6, 3) * rng.normal(size=shape) * (rng.random(shape) < 0.9) for shape in SHAPES]


def run(ours, expected, steps=40):
    """Both through the same steps; yields after each one."""
    for step in range(steps):
        lr, beta1 = schedule(step, steps)
        for parameter, g in zip(ours.parameters, gradients(step), strict=True):
            parameter.grad = torch.from_numpy(g).to(parameter.dtype)
        ours.step(lr, beta1)
        for one, g in zip(expected, gradients(step), strict=True):
            one.step(g, lr, beta1)
        yield


@pytest.mark.parametrize(("beta2", "eps"), [(0.999, 1e-8), (0.99, 1e-8), (0.999, 0.1)])
def test_every_step_is_the_recipes_while_lr_and_beta1_ramp_down(beta2, eps):
    ours = Adam(parameters(), beta2, eps)
    expected = [reference.Adam(p.detach().numpy(), beta2, eps) for p in ours.parameters]
    for _ in run(ours, expected):
        for parameter, one in zip(ours.parameters, expected, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), one.theta, rtol=1e-12, atol=1e-14)
    assert ours.steps == 40


def test_float32_stays_near_the_recipe():
    ours = Adam(parameters(torch.float32))
    expected = [reference.Adam(p.detach().numpy()) for p in ours.parameters]
    for _ in run(ours, expected):
        pass
    for parameter, one in zip(ours.parameters, expected, strict=True):
        assert parameter.dtype == torch.float32
        np.testing.assert_allclose(parameter.detach().numpy(), one.theta, rtol=2e-6, atol=2e-6)


def test_the_defaults_are_the_recipes():
    ours, expected = Adam(parameters()), [reference.Adam(p.detach().numpy(), 0.999, 1e-8) for p in parameters()]
    for parameter, one, g in zip(ours.parameters, expected, gradients(0), strict=True):
        parameter.grad = torch.from_numpy(g)
        one.step(g, 0.1, beta1=0.9)
    ours.step(0.1)
    for parameter, one in zip(ours.parameters, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), one.theta, rtol=1e-13)


def test_the_bias_correction_uses_the_current_beta1():
    """Two steps of gradient 1 with beta1 0.9, then 0.5: m = 0.5 * 0.1 + 0.5 = 0.55, divided by 1 - 0.5^2."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    adam = Adam([weight], eps=0.0)
    positions = []
    for beta1 in (0.9, 0.5):
        weight.grad = torch.ones_like(weight)
        adam.step(1.0, beta1)
        positions.append(weight.item())
    assert positions == pytest.approx([-1.0, -1.0 - 0.55 / 0.75], rel=1e-12)


def test_each_run_has_its_own_learning_rate():
    lr = torch.tensor([0.1, 0.003, 0.0], dtype=torch.float64)
    stacked = [nn.Parameter(torch.stack([p.detach()] * 3)) for p in parameters()]
    together = Adam(stacked, runs=3)
    alone = [Adam(parameters()) for _ in lr]
    for step in range(5):
        for p, g in zip(stacked, gradients(step), strict=True):
            p.grad = torch.stack([torch.from_numpy(g)] * 3)
        together.step(lr, 0.7)
        for adam, rate in zip(alone, lr.tolist(), strict=True):
            for p, g in zip(adam.parameters, gradients(step), strict=True):
                p.grad = torch.from_numpy(g)
            adam.step(rate, 0.7)
    for run, adam in enumerate(alone):
        for p, one in zip(stacked, adam.parameters, strict=True):
            torch.testing.assert_close(p[run], one.data, rtol=1e-13, atol=0, check_dtype=True)
    for p, before in zip(stacked, parameters(), strict=True):
        assert torch.equal(p[2], before)
        assert not torch.equal(p[0], p[1])


def one_step(eps, gradient=0.5):
    """How far our Adam and torch's move in a first step at rate 1."""
    ours, theirs = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    ours.grad = torch.full_like(ours, gradient)
    theirs.grad = torch.full_like(theirs, gradient)
    Adam([ours], eps=eps).step(1.0)
    torch.optim.Adam([theirs], lr=1.0, eps=eps).step()
    return ours.item(), theirs.item()


def test_epsilon_stands_beside_the_root_of_the_uncorrected_v():
    """In a first step v = 0.001 g^2: against eps = 0.1 our root is 0.0158, torch's corrected one 0.5."""
    ours, theirs = one_step(eps=0.1)
    root = math.sqrt(0.001)
    assert ours == pytest.approx(-root * 0.5 / (root * 0.5 + 0.1), rel=1e-12)
    assert theirs == pytest.approx(-0.5 / (0.5 + 0.1), rel=1e-12)
    assert abs(ours) < 0.2 < 0.8 < abs(theirs)


def test_without_epsilon_it_is_torchs_adam():
    ours, theirs = one_step(eps=0.0)
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_a_step_clears_the_gradients():
    adam = Adam(parameters())
    for p, g in zip(adam.parameters, gradients(0), strict=True):
        p.grad = torch.from_numpy(g)
    adam.step(0.1)
    assert all(p.grad is None or not p.grad.any() for p in adam.parameters)


def test_a_missing_gradient_counts_as_zero():
    """The momentum of the steps before still moves the parameter."""
    adam = Adam([nn.Parameter(torch.ones(2, dtype=torch.float64))])
    expected = reference.Adam(np.ones(2))
    for g in (np.array([1.0, -2.0]), None, None):
        if g is not None:
            adam.parameters[0].grad = torch.from_numpy(g)
        adam.step(0.1)
        expected.step(np.zeros(2) if g is None else g, 0.1, 0.9)
    np.testing.assert_allclose(adam.parameters[0].detach().numpy(), expected.theta, rtol=1e-13)


def test_parameters_given_as_a_generator_are_kept():
    net = nn.Linear(2, 3)
    assert len(Adam(net.parameters()).parameters) == 2


# --- stopping and going on -------------------------------------------------------------------------------------------


def through(adam, steps):
    for step in steps:
        for p, g in zip(adam.parameters, gradients(step), strict=True):
            p.grad = torch.from_numpy(g)
        adam.step(*schedule(step))


def test_an_optimiser_put_back_to_where_another_was_takes_the_same_steps():
    """The parameters are the model's to put back; the moments and the number of steps are the optimiser's."""
    adam = Adam(parameters())
    through(adam, range(5))
    state = {name: tensor.clone() for name, tensor in adam.state().items()}
    other = Adam([nn.Parameter(p.detach().clone()) for p in adam.parameters])
    through(other, range(20, 23))
    with torch.no_grad():
        for p, value in zip(other.parameters, adam.parameters, strict=True):
            p.copy_(value)
    other.load_state(state)
    through(adam, range(5, 10))
    through(other, range(5, 10))
    assert other.steps == adam.steps == 10
    for ours, theirs in zip(other.parameters, adam.parameters, strict=True):
        assert torch.equal(ours, theirs)


def test_loading_a_state_copies_it():
    adam = Adam(parameters())
    through(adam, range(3))
    state = {name: tensor.clone() for name, tensor in adam.state().items()}
    before = {name: tensor.clone() for name, tensor in state.items()}
    adam.load_state(state)
    through(adam, range(3, 6))
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_the_second_momentum_may_change_on_the_way():
    """v = 0.99 * 0.01 g^2 of the first step, or 0.999 of it, plus the second step's part."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    adam = Adam([weight], beta2=0.99)
    for beta2, g in ((0.99, 2.0), (0.999, 3.0)):
        weight.grad = torch.full_like(weight, g)
        adam.beta2 = beta2
        adam.step(0.1)
    assert adam.v.item() == pytest.approx(0.999 * 0.01 * 4 + 0.001 * 9, rel=1e-12)
