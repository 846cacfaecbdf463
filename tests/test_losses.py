"""The losses other than the graph term, in value and gradient against the equations."""

import numpy as np
import pytest
import references as reference
import torch

from sntg.losses import consistency_kl, consistency_mse, cross_entropy, entropy

N, K = 7, 4
LABELS = np.array([2, -1, 0, -1, 3, 0, -1])
KNOWN = np.array([True, False, True, True, False, True, True])
CONSISTENCY = {
    consistency_mse: reference.consistency_mse,
    consistency_kl: reference.consistency_kl,
}
each_consistency = pytest.mark.parametrize("consistency", CONSISTENCY, ids=lambda f: f.__name__)
each_mask = pytest.mark.parametrize("known", [None, KNOWN], ids=["all-known", "some-known"])


def logits(seed=0, shape=(N, K), scale=2.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def leaf(array, dtype=torch.float64):
    return torch.tensor(array, dtype=dtype, requires_grad=True)


def mask(known):
    return None if known is None else torch.from_numpy(known)


def close(ours, expected, rtol=1e-12, atol=1e-15):
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=rtol, atol=atol)


# --------------------------------------------------------------------------------------------------- cross-entropy


def test_cross_entropy_sums_the_labelled_and_divides_by_the_whole_batch():
    z = leaf(logits())
    loss = cross_entropy(z, torch.from_numpy(LABELS))
    loss.backward()
    value, gradient = reference.cross_entropy(logits(), LABELS)
    close(loss, value)
    close(z.grad, gradient)
    assert (z.grad[LABELS < 0] == 0).all()


def test_unlabelled_rows_make_the_cross_entropy_smaller_not_different_in_kind():
    """Four of seven rows are labelled: the mean over those four alone is 7/4 of the loss."""
    labelled = LABELS >= 0
    alone = cross_entropy(leaf(logits()[labelled]), torch.from_numpy(LABELS[labelled]))
    close(cross_entropy(leaf(logits()), torch.from_numpy(LABELS)), alone.item() * 4 / 7)


def test_a_batch_without_labels_has_no_cross_entropy_and_no_gradient():
    z = leaf(logits())
    loss = cross_entropy(z, torch.full((N,), -1))
    loss.backward()
    assert loss.item() == 0
    assert (z.grad == 0).all()


# ----------------------------------------------------------------------------------------------------- consistency


@each_mask
@each_consistency
def test_consistency_is_its_equation_in_value_and_in_both_gradients(consistency, known):
    z, target = leaf(logits(0)), leaf(reference.softmax(logits(1)))
    loss = consistency(z, target, mask(known))
    loss.backward()
    value, in_z, in_target = CONSISTENCY[consistency](logits(0), reference.softmax(logits(1)), known)
    close(loss, value)
    close(z.grad, in_z)
    close(target.grad, in_target)


@each_mask
@each_consistency
def test_gradient_flows_through_both_branches_of_the_pi_model(consistency, known):
    a, b = leaf(logits(0)), leaf(logits(1))
    consistency(a, b.softmax(-1), mask(known)).backward()
    target = reference.softmax(logits(1))
    _, in_a, in_target = CONSISTENCY[consistency](logits(0), target, known)
    close(a.grad, in_a)
    close(b.grad, reference.through_softmax(target, in_target))
    assert b.grad.abs().max() > 1e-3


@each_consistency
def test_a_constant_target_leaves_the_teacher_alone(consistency):
    a, b = leaf(logits(0)), leaf(logits(1))
    consistency(a, b.softmax(-1).detach()).backward()
    assert b.grad is None
    assert a.grad.abs().max() > 1e-3


@each_consistency
def test_a_row_without_a_target_counts_as_zero_and_moves_nothing(consistency):
    """Its target is all zeros until the row has been visited once."""
    target = reference.softmax(logits(1)) * KNOWN[:, None]
    z = leaf(logits(0))
    loss = consistency(z, torch.from_numpy(target), mask(KNOWN))
    loss.backward()
    only_known = consistency(torch.from_numpy(logits(0)[KNOWN]), torch.from_numpy(target[KNOWN]))
    close(loss, only_known.item() * KNOWN.sum() / N)
    assert (z.grad[~KNOWN] == 0).all()


@each_consistency
def test_equal_distributions_are_a_minimum(consistency):
    z = leaf(logits())
    loss = consistency(z, torch.from_numpy(reference.softmax(logits())))
    loss.backward()
    assert abs(loss.item()) < 1e-15
    assert z.grad.abs().max() < 1e-15


@each_consistency
def test_zeros_in_the_target_give_finite_gradients(consistency):
    target = np.eye(K)[[2, 1, 0, 0, 3, 0, 1]]
    target[0] = [0.5, 0.5, 0, 0]
    z, t = leaf(logits()), leaf(target)
    loss = consistency(z, t)
    loss.backward()
    value, in_z, _ = CONSISTENCY[consistency](logits(), target)
    close(loss, value)
    close(z.grad, in_z)
    assert torch.isfinite(t.grad).all()


def test_a_branch_that_is_certain_to_the_last_bit_has_a_finite_kl_gradient():
    """softmax underflows to exact zeros in float32."""
    a, b = leaf(logits(0), torch.float32), leaf(np.array([[500.0, 0, 0, 0]] * N), torch.float32)
    consistency_kl(a, b.softmax(-1)).backward()
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(b.grad).all()


# --------------------------------------------------------------------------------------------------------- entropy


def test_entropy_is_its_equation_in_value_and_gradient():
    z = leaf(logits())
    loss = entropy(z)
    loss.backward()
    value, gradient = reference.entropy(logits())
    close(loss, value)
    close(z.grad, gradient)


def test_entropy_lies_between_none_and_log_k():
    close(entropy(torch.zeros(N, K, dtype=torch.float64)), np.log(K))
    certain = leaf(np.array([[1e4, 0, 0, 0]] * N), torch.float32)
    loss = entropy(certain)
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(certain.grad).all()


# ------------------------------------------------------------------------------------------------------ all of them

LOSSES = {
    "cross_entropy": lambda z, t, y, known: cross_entropy(z, y),
    "consistency_mse": lambda z, t, y, known: consistency_mse(z, t, known),
    "consistency_kl": lambda z, t, y, known: consistency_kl(z, t, known),
    "entropy": lambda z, t, y, known: entropy(z),
}
REFERENCES = {
    "cross_entropy": lambda z, t, y, known: reference.cross_entropy(z, y),
    "consistency_mse": lambda z, t, y, known: reference.consistency_mse(z, t, known),
    "consistency_kl": lambda z, t, y, known: reference.consistency_kl(z, t, known),
    "entropy": lambda z, t, y, known: reference.entropy(z),
}


@pytest.mark.parametrize("name", LOSSES)
def test_float32_agrees_to_float32(name):
    z, target = leaf(logits(0), torch.float32), torch.tensor(reference.softmax(logits(1)), dtype=torch.float32)
    loss = LOSSES[name](z, target, torch.from_numpy(LABELS), mask(KNOWN))
    loss.backward()
    value, gradient, *_ = REFERENCES[name](logits(0), reference.softmax(logits(1)), LABELS, KNOWN)
    close(loss, value, rtol=2e-6)
    close(z.grad, gradient, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_large_logits_neither_overflow_nor_give_nan(name):
    z = leaf(logits(scale=1e4), torch.float32)
    target = torch.tensor(reference.softmax(logits(1)), dtype=torch.float32)
    loss = LOSSES[name](z, target, torch.from_numpy(LABELS), mask(KNOWN))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_leading_axes_are_independent_batches(name):
    runs = 3
    z, target = logits(0, (runs, N, K)), reference.softmax(logits(1, (runs, N, K)))
    labels = np.stack([np.roll(LABELS, r) for r in range(runs)])
    known = np.stack([np.roll(KNOWN, r) for r in range(runs)])
    leaves = leaf(z)
    loss = LOSSES[name](leaves, *map(torch.from_numpy, (target, labels, known)))
    assert loss.shape == (runs,)
    loss.sum().backward()
    for r in range(runs):
        value, gradient, *_ = REFERENCES[name](z[r], target[r], labels[r], known[r])
        close(loss[r], value)
        close(leaves.grad[r], gradient)


@pytest.mark.parametrize("name", LOSSES)
def test_the_reference_gradient_is_the_slope_of_the_reference_value(name):
    """The references are derived by hand: central differences vouch for them."""
    z, rest = logits(), (reference.softmax(logits(1)), LABELS, KNOWN)
    gradient = REFERENCES[name](z, *rest)[1]
    for index in np.ndindex(z.shape):
        step = np.zeros_like(z)
        step[index] = 1e-6
        up, down = (REFERENCES[name](z + s, *rest)[0] for s in (step, -step))
        assert (up - down) / 2e-6 == pytest.approx(gradient[index], abs=1e-8)


@each_consistency
def test_the_reference_gradient_in_the_target_is_a_slope_as_well(consistency):
    z, target = logits(), reference.softmax(logits(1))
    gradient = CONSISTENCY[consistency](z, target, KNOWN)[2]
    for index in np.ndindex(target.shape):
        step = np.zeros_like(target)
        step[index] = 1e-7
        up, down = (CONSISTENCY[consistency](z, target + s, KNOWN)[0] for s in (step, -step))
        assert (up - down) / 2e-7 == pytest.approx(gradient[index], abs=1e-6)
