"""Adam as the recipe has it, step by step against float64 NumPy."""

import math

import numpy as np
import pytest
import references as reference
import torch
from torch import nn

from sntg.training.adam import Adam, bias_correction

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


def give(adam, gradients):
    """Hands the gradients over as a backward pass leaves them."""
    for parameter, g in zip(adam.parameters, gradients, strict=True):
        parameter.grad = torch.from_numpy(g).to(parameter.dtype)
    adam.gather()


def take(adam, lr, t, beta1=0.9, beta2=0.999):
    """Step number t = 1, 2, ... of the recipe; the number is the caller's to count."""
    adam.step(lr * bias_correction(beta1, beta2, t), beta1, beta2)


def run(ours, expected, steps=40, beta2=0.999):
    """Both through the same steps; yields after each one."""
    for step in range(steps):
        lr, beta1 = schedule(step, steps)
        give(ours, gradients(step))
        take(ours, lr, step + 1, beta1, beta2)
        for one, g in zip(expected, gradients(step), strict=True):
            one.step(g, lr, beta1)
        yield


@pytest.mark.parametrize(("beta2", "eps"), [(0.999, 1e-8), (0.99, 1e-8), (0.999, 0.1)])
def test_every_step_is_the_recipes_while_lr_and_beta1_ramp_down(beta2, eps):
    ours = Adam(parameters(), eps)
    expected = [reference.Adam(p.detach().numpy(), beta2, eps) for p in ours.parameters]
    for _ in run(ours, expected, beta2=beta2):
        for parameter, one in zip(ours.parameters, expected, strict=True):
            np.testing.assert_allclose(parameter.detach().numpy(), one.theta, rtol=1e-12, atol=1e-14)


def test_rates_and_momenta_may_be_tensors_of_the_device():
    """A step that is recorded once and replayed can have its numbers in no other way."""
    numbers, tensors = Adam(parameters()), Adam(parameters())
    for step in range(40):
        lr, beta1 = schedule(step)
        beta2 = 0.99 if step < 20 else 0.999
        for adam in (numbers, tensors):
            give(adam, gradients(step))
        rate = lr * bias_correction(beta1, beta2, step + 1)
        numbers.step(rate, beta1, beta2)
        tensors.step(*(torch.tensor(value, dtype=torch.float64) for value in (rate, beta1, beta2)))
    torch.testing.assert_close(tensors.theta, numbers.theta, rtol=1e-14, atol=0)


def test_numbers_of_float64_move_float32_weights_without_changing_their_type():
    adam = Adam(parameters(torch.float32))
    give(adam, gradients(0))
    adam.step(*(torch.tensor(value, dtype=torch.float64) for value in (0.1, 0.9, 0.999)))
    assert adam.theta.dtype == adam.m.dtype == adam.v.dtype == torch.float32
    expected = Adam(parameters(torch.float32))
    give(expected, gradients(0))
    expected.step(0.1, 0.9, 0.999)
    torch.testing.assert_close(adam.theta, expected.theta, rtol=1e-6, atol=1e-7)


def test_the_bias_correction_is_kingma_and_bas():
    for t in (1, 2, 10, 10_000):
        expected = math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        assert bias_correction(0.9, 0.999, t) == pytest.approx(expected, rel=1e-15)
    assert bias_correction(0.5, 0.99, 1) == pytest.approx(math.sqrt(0.01) / 0.5, rel=1e-12)


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
    give(ours, gradients(0))
    for one, g in zip(expected, gradients(0), strict=True):
        one.step(g, 0.1, beta1=0.9)
    take(ours, 0.1, 1)
    for parameter, one in zip(ours.parameters, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), one.theta, rtol=1e-13)


def test_the_bias_correction_uses_the_current_beta1():
    """Two steps of gradient 1 with beta1 0.9, then 0.5: m = 0.5 * 0.1 + 0.5 = 0.55, divided by 1 - 0.5^2."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    adam = Adam([weight], eps=0.0)
    positions = []
    for t, beta1 in enumerate((0.9, 0.5), 1):
        give(adam, [np.ones(1)])
        take(adam, 1.0, t, beta1)
        positions.append(weight.item())
    assert positions == pytest.approx([-1.0, -1.0 - 0.55 / 0.75], rel=1e-12)


def test_each_run_has_its_own_learning_rate():
    lr = torch.tensor([0.1, 0.003, 0.0], dtype=torch.float64)
    stacked = [nn.Parameter(torch.stack([p.detach()] * 3)) for p in parameters()]
    together = Adam(stacked, runs=3)
    alone = [Adam(parameters()) for _ in lr]
    for step in range(5):
        give(together, [np.stack([g] * 3) for g in gradients(step)])
        take(together, lr, step + 1, 0.7)
        for adam, rate in zip(alone, lr.tolist(), strict=True):
            give(adam, gradients(step))
            take(adam, rate, step + 1, 0.7)
    for run, adam in enumerate(alone):
        for p, one in zip(stacked, adam.parameters, strict=True):
            torch.testing.assert_close(p[run], one.data, rtol=1e-13, atol=0, check_dtype=True)
    for p, before in zip(stacked, parameters(), strict=True):
        assert torch.equal(p[2], before)
        assert not torch.equal(p[0], p[1])


def one_step(eps, gradient=0.5):
    """How far our Adam and torch's move in a first step at rate 1."""
    ours, theirs = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    theirs.grad = torch.full_like(theirs, gradient)
    adam = Adam([ours], eps=eps)
    give(adam, [np.full(1, gradient)])
    take(adam, 1.0, 1)
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


def test_gradients_are_taken_in_and_cleared():
    """Each at its own parameter's place, and the next backward pass adds nothing to them."""
    adam = Adam(parameters())
    for step in (0, 1):
        give(adam, gradients(step))
        assert all(p.grad is None for p in adam.parameters)
        flat = np.concatenate([g.ravel() for g in gradients(step)])
        np.testing.assert_array_equal(adam.gradient.numpy(), flat)


def test_a_scaled_loss_gives_the_same_steps():
    """float16's gradients are taken of a larger loss; powers of two scale back exactly."""
    plain, scaled = Adam(parameters()), Adam(parameters(), loss_scale=1024.0)
    for step in range(5):
        give(plain, gradients(step))
        give(scaled, [1024.0 * g for g in gradients(step)])
        for adam in (plain, scaled):
            take(adam, schedule(step)[0], step + 1)
    assert torch.equal(plain.theta, scaled.theta)
    assert torch.equal(plain.v, scaled.v)


def test_the_parameters_are_views_of_one_tensor_that_every_step_moves():
    adam = Adam(parameters())
    before = [p.detach().clone() for p in adam.parameters]
    give(adam, gradients(0))
    take(adam, 0.1, 1)
    flat = torch.cat([p.detach().flatten() for p in adam.parameters])
    assert torch.equal(adam.theta, flat)
    assert not any(torch.equal(p, old) for p, old in zip(adam.parameters, before, strict=True))


def test_a_missing_gradient_counts_as_zero():
    """The momentum of the steps before still moves the parameter."""
    adam = Adam([nn.Parameter(torch.ones(2, dtype=torch.float64))])
    expected = reference.Adam(np.ones(2))
    for t, g in enumerate((np.array([1.0, -2.0]), None, None), 1):
        if g is not None:
            adam.parameters[0].grad = torch.from_numpy(g)
        adam.gather()
        take(adam, 0.1, t)
        expected.step(np.zeros(2) if g is None else g, 0.1, 0.9)
    np.testing.assert_allclose(adam.parameters[0].detach().numpy(), expected.theta, rtol=1e-13)


def test_one_missing_gradient_beside_others_counts_as_zero_too():
    """What was gathered at its place the step before is gone."""
    adam = Adam(parameters())
    expected = [reference.Adam(p.detach().numpy()) for p in adam.parameters]
    for step in range(3):
        given = gradients(step)
        for p, g in zip(adam.parameters, given, strict=True):
            p.grad = torch.from_numpy(g)
        if step:
            given[1] = np.zeros(SHAPES[1])
            adam.parameters[1].grad = None
        adam.gather()
        take(adam, 0.1, step + 1)
        for one, g in zip(expected, given, strict=True):
            one.step(g, 0.1, 0.9)
    for parameter, one in zip(adam.parameters, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), one.theta, rtol=1e-12)


def test_parameters_given_as_a_generator_are_kept():
    net = nn.Linear(2, 3)
    assert len(Adam(net.parameters()).parameters) == 2


# --- stopping and going on -------------------------------------------------------------------------------------------


def through(adam, steps):
    for step in steps:
        give(adam, gradients(step))
        lr, beta1 = schedule(step)
        take(adam, lr, step + 1, beta1)


def test_an_optimiser_put_back_to_where_another_was_takes_the_same_steps():
    """The parameters are the model's to put back, and the number of steps the caller's; the moments are its own."""
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
    for ours, theirs in zip(other.parameters, adam.parameters, strict=True):
        assert torch.equal(ours, theirs)


def test_loading_a_state_forgets_the_gradients_of_a_step_that_was_not_finished():
    """Or they would be added to those of the next."""
    adam = Adam(parameters())
    state = {name: tensor.clone() for name, tensor in adam.state().items()}
    for p, g in zip(adam.parameters, gradients(0), strict=True):
        p.grad = torch.from_numpy(g)
    adam.load_state(state)
    assert all(p.grad is None for p in adam.parameters)


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
    adam = Adam([weight])
    for t, (beta2, g) in enumerate(((0.99, 2.0), (0.999, 3.0)), 1):
        give(adam, [np.full(1, g)])
        take(adam, 0.1, t, beta2=beta2)
    assert adam.v.item() == pytest.approx(0.999 * 0.01 * 4 + 0.001 * 9, rel=1e-12)
