"""VAT's direction against Hessians known exactly, and its loss against the equation."""

from copy import deepcopy

import numpy as np
import pytest
import references as reference
import torch

from sntg.adversarial import adversarial_direction, lds, unit
from sntg.errors import UsageError
from sntg.models import SmallNet, frozen_statistics, initialising, shared_noise

D, K = 12, 5
A = np.random.default_rng(0).normal(size=(K, D)) * np.linspace(2, 0.3, D)  # a clear dominant direction
X = np.random.default_rng(1).normal(size=(40, D)) * 0.5
SEED = 11


def linear(x):
    """z = A x on the last axis."""
    return x @ torch.from_numpy(A).T


def start(shape, dtype=torch.float64):
    """The random start that `adversarial_direction` draws after the same seed."""
    torch.manual_seed(SEED)
    return torch.randn(shape, dtype=dtype)


def direction(predict, x, *arguments, **options):
    torch.manual_seed(SEED)
    return adversarial_direction(predict, x, *arguments, **options)


def cosines(a, b):
    """|cos| of the angle between corresponding rows; a row of zeros, which rounding may leave, is like no other."""
    a, b = (np.asarray(v, dtype=np.float64).reshape(len(v), -1) for v in (a, b))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.abs((a * b).sum(1)) / np.where(lengths > 0, lengths, 1.0)


# --------------------------------------------------------------------------------------------------- known Hessian


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_each_power_iteration_is_exactly_the_unit_vector_of_h_d(iterations):
    d = start(X.shape).numpy()
    for row, x in enumerate(X):
        H = reference.linear_hessian(A, x)
        for _ in range(iterations):
            d[row] = H @ reference.unit(d[row])
        d[row] = reference.unit(d[row])
    ours = direction(linear, torch.from_numpy(X), power_iterations=iterations)
    np.testing.assert_allclose(ours.numpy(), d, rtol=1e-9, atol=1e-12)


def test_iterations_approach_the_dominant_eigenvector():
    dominant = np.stack([np.linalg.eigh(reference.linear_hessian(A, x))[1][:, -1] for x in X])
    x = torch.from_numpy(X)
    at_random, one, three = (cosines(direction(linear, x, power_iterations=i), dominant).mean() for i in (0, 1, 3))
    assert at_random < 0.4  # about sqrt(2 / (pi D))
    assert one > at_random + 0.3
    assert three > one + 0.05
    assert cosines(direction(linear, x, power_iterations=100), dominant).mean() > 0.99


def test_no_other_direction_of_that_length_changes_the_prediction_more():
    """What the eigenvector is for: along it the divergence grows the most."""
    x, length = torch.from_numpy(X), 0.1
    clean = linear(x)
    worst = lds(linear, x, length * direction(linear, x, power_iterations=50), clean)
    torch.manual_seed(0)
    for _ in range(20):
        other = unit(torch.randn(X.shape, dtype=torch.float64))
        assert lds(linear, x, length * other, clean) < worst


def test_axes_of_one_input_form_one_vector():
    """An image's direction is scaled over all its pixels, not row by row of the image."""
    images = torch.from_numpy(X).view(40, 1, 3, 4)
    ours = direction(lambda x: linear(x.flatten(1)), images, 3)
    torch.testing.assert_close(ours.flatten(1), direction(linear, torch.from_numpy(X)), rtol=1e-10, atol=1e-12)


def test_leading_axes_are_independent_batches():
    x = torch.from_numpy(X)
    together = direction(linear, x.view(4, 10, D))
    torch.testing.assert_close(together.view(40, D), direction(linear, x), rtol=1e-10, atol=1e-12)


def test_the_direction_is_a_constant_and_leaves_no_gradient_behind():
    weight = torch.from_numpy(A).clone().requires_grad_()
    x = torch.from_numpy(X).requires_grad_()
    for xi in (None, 1e-2):
        assert not direction(lambda x: x @ weight.T, x, xi=xi).requires_grad
    assert weight.grad is None
    assert x.grad is None


@pytest.mark.parametrize("xi", [None, 1e-2])
def test_the_direction_is_the_same_where_gradients_are_off(xi):
    x = torch.from_numpy(X)
    with torch.no_grad():
        ours = direction(linear, x, xi=xi)
    assert torch.equal(ours, direction(linear, x, xi=xi))


# ---------------------------------------------------------------------------------------------- finite differences


def small_net():
    """A small convolutional net after data-dependent initialisation, and a batch for it."""
    torch.manual_seed(0)
    net, x = SmallNet((1, 16, 16), K), torch.randn(6, 1, 16, 16)
    with initialising(net), torch.no_grad():
        net(x)
    return net, x


def logits_of(net):
    return lambda x: net(x).logits


@pytest.mark.parametrize("xi", [1e-2, 1e-6])
def test_finite_differences_find_the_exact_direction_in_float64(xi):
    """1e-6 is the reference code's step, right where the arithmetic can carry it."""
    net, x = small_net()
    net, x = net.double().eval(), x.double()
    differences, exact = (direction(logits_of(net), x, 3, xi=step) for step in (xi, None))
    assert cosines(differences, exact).min() > 0.99


@pytest.mark.parametrize("n", [6, 128])
@pytest.mark.parametrize("xi", [None, 1e-2, 1e-6])
def test_the_direction_has_length_one_whatever_the_step_and_the_batch(xi, n):
    """The step scales the gradient; a scale near unit's 1e-12 would make r shorter than epsilon."""
    net, x = small_net()
    net, x = net.double().eval(), x.double().repeat(22, 1, 1, 1)[:n]
    length = direction(logits_of(net), x, 3, xi=xi).flatten(1).norm(dim=1)
    torch.testing.assert_close(length, torch.ones_like(length), rtol=0, atol=1e-3)


@pytest.mark.parametrize("xi", [None, 1e-2])
def test_h_d_is_found_at_its_own_scale(xi):
    """On a model so flat that unit's 1e-12 counts, a factor from the step, the batch or float16's range would tell."""
    x = np.tile(X, (5, 1))
    d = [reference.unit(row) for row in start(x.shape).numpy()]
    H = [reference.linear_hessian(1e-8 * A, row) for row in x]
    expected = np.stack([reference.unit(H @ d) for H, d in zip(H, d, strict=True)])
    assert np.linalg.norm(expected, axis=1).max() < 0.9
    ours = direction(lambda x: 1e-8 * linear(x), torch.from_numpy(x), xi=xi)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-3, atol=1e-4)


def test_the_reference_step_drowns_in_float32_rounding_and_the_exact_product_does_not():
    """Why the reference's xi is an option and not the default."""
    net, x = small_net()
    net.eval()
    exact32, step32 = direction(logits_of(net), x, 3), direction(logits_of(net), x, 3, xi=1e-6)
    expected = hessian_product(net, x, start(x.shape, torch.float32))
    assert cosines(exact32, expected).min() > 0.999
    assert cosines(step32, expected).mean() < 0.95


# ------------------------------------------------------------------------------------------------ a real network


def in_float64(net):
    """A float64 copy of the net, with the same noise and masks where it shares them."""
    copy = deepcopy(net).double()
    for module in copy.modules():
        if getattr(module, "shared", None) is not None:
            module.shared = module.shared.double()
    return copy


def hessian_product(net, x, d):
    """H d in float64 from the whole Jacobian of all logits in all inputs (in training a batch's rows are coupled)."""
    net, x = in_float64(net), x.double()
    J = torch.autograd.functional.jacobian(logits_of(net), x).reshape(len(x) * K, -1).numpy()
    logits = net(x).logits.detach().numpy()
    d = np.stack([reference.unit(row) for row in d.numpy()]).reshape(-1)
    tangent = (J @ d).reshape(len(x), K)
    v = np.stack([reference.softmax_covariance(z) @ t for z, t in zip(logits, tangent, strict=True)])
    return (v.reshape(-1) @ J).reshape(x.shape)


def test_a_conv_net_in_evaluation_matches_float64():
    net, x = small_net()
    net.eval()
    expected = hessian_product(net, x, start(x.shape, torch.float32))
    assert cosines(direction(logits_of(net), x, 3), expected).min() > 0.99


def test_a_conv_net_in_training_matches_float64_under_shared_noise():
    net, x = small_net()
    net.train()
    means = [m.running_mean.clone() for m in net.modules() if hasattr(m, "running_mean")]
    with shared_noise(net), frozen_statistics(net):
        with torch.no_grad():
            net(x)  # draws the noise and the masks that every later pass shares
        expected = hessian_product(net, x, start(x.shape, torch.float32))
        ours = direction(logits_of(net), x, 3)
    assert cosines(ours, expected).min() > 0.99
    for before, module in zip(means, (m for m in net.modules() if hasattr(m, "running_mean")), strict=True):
        assert torch.equal(module.running_mean, before)


# ------------------------------------------------------------------------------------------------------ lds, unit


def test_lds_is_the_mean_divergence_and_its_gradient_sees_only_the_perturbed_pass():
    weight = torch.from_numpy(A).clone().requires_grad_()
    x, r = torch.from_numpy(X), torch.from_numpy(np.random.default_rng(2).normal(size=X.shape)).requires_grad_()
    clean = x @ weight.T
    clean.retain_grad()
    loss = lds(lambda x: x @ weight.T, x, r, clean)
    loss.backward()

    perturbed = X + r.detach().numpy()
    value, in_logits, _ = reference.consistency_kl(perturbed @ A.T, reference.softmax(X @ A.T))
    np.testing.assert_allclose(loss.detach().numpy(), value, rtol=1e-12)
    np.testing.assert_allclose(weight.grad.numpy(), in_logits.T @ perturbed, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(r.grad.numpy(), in_logits @ A, rtol=1e-10, atol=1e-13)
    assert clean.grad is None


def test_lds_is_zero_without_a_perturbation():
    x = torch.from_numpy(X)
    assert abs(float(lds(linear, x, torch.zeros_like(x), linear(x)))) < 1e-15


def test_lds_grows_by_half_the_hessian():
    """KL(p(x) || p(x + r)) = r^T H r / 2 + O(r^3): ties the direction's Hessian to the loss."""
    x = torch.from_numpy(X[:1])
    r = 1e-4 * reference.unit(np.random.default_rng(3).normal(size=D))
    value = float(lds(linear, x, torch.from_numpy(r)[None], linear(x)))
    assert value == pytest.approx(r @ reference.linear_hessian(A, X[0]) @ r / 2, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-13, 1e-6, 1.0, 1e18])
def test_unit_is_its_formula_at_every_scale(scale):
    d = scale * X
    expected = np.stack([reference.unit(row) for row in d])
    np.testing.assert_allclose(unit(torch.from_numpy(d)).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e18, 1e37])
def test_unit_has_length_one_in_float32(scale):
    """1e-6 under the root costs at most half a millionth."""
    d = scale * torch.from_numpy(X).float().clamp(-3, 3)
    torch.testing.assert_close(unit(d).norm(dim=1), torch.ones(40), rtol=0, atol=5e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_unit_of_nothing_is_nothing(dtype):
    assert (unit(torch.zeros(2, 3, dtype=dtype)) == 0).all()


def test_unit_scales_over_as_many_axes_as_an_input_has():
    d = torch.from_numpy(X).view(5, 8, 3, 4)
    for dims in (1, 2, 3):
        rows = d.flatten(4 - dims).flatten(0, -2)
        expected = torch.stack([torch.from_numpy(reference.unit(row.numpy())) for row in rows])
        torch.testing.assert_close(unit(d, dims).reshape(expected.shape), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("wrong", [{"xi": 0.0}, {"xi": -1e-6}, {"power_iterations": -1}])
def test_a_step_or_a_number_of_iterations_that_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError, match=r"power_iterations = .* xi = "):
        adversarial_direction(lambda x: x, torch.zeros(2, 3), **wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("certainty", [0.0, 20.0, 60.0])
def test_where_predictions_are_certain_what_is_left_of_them_gives_the_direction(certainty, dtype):
    """The reference is a sum of p_k p_j (t_k - t_j), in which nothing cancels; p is e^-60 at the least."""
    x, A_ = torch.from_numpy(X), torch.from_numpy(A)
    shift = torch.zeros(K, dtype=torch.float64)
    shift[0] = certainty
    found = direction(lambda x: x @ A_.to(x.dtype).T + shift.to(x.dtype), x.to(dtype))
    t = unit(start(x.shape, dtype).double()) @ A_.T
    p = torch.softmax(x @ A_.T + shift, -1)
    v = (p[:, :, None] * p[:, None, :] * (t[:, :, None] - t[:, None, :])).sum(-1)
    assert cosines(found, v @ A_).min() > 0.999


@pytest.mark.parametrize("certainty", [0.0, 10.0, 20.0])
def test_where_predictions_are_certain_a_difference_has_no_direction_of_the_likeliest_class(certainty):
    """The difference of its two probabilities, both near 1, is rounding and nothing else; it is the others' sum."""
    x, A_, step = torch.from_numpy(X), torch.from_numpy(A).float(), 1e-2
    shift = torch.zeros(K)
    shift[0] = certainty
    found = direction(lambda x: x @ A_.T + shift, x.float(), xi=step)
    before, after = (v @ A.T + shift.numpy() for v in (X, X + step * unit(start(X.shape, torch.float32)).numpy()))
    v = np.stack([reference.softmax(z) for z in after]) - np.stack([reference.softmax(z) for z in before])
    assert cosines(found, v @ A).min() > 0.999


@pytest.mark.parametrize("certainty", [0.0, 20.0, 60.0])
def test_where_predictions_are_certain_a_gradient_in_float16_still_has_the_direction(certainty):
    """Logits 20 apart: what is pulled back is of the order of 1e-9, and float16 ends at 6e-8."""
    x, logits = torch.from_numpy(X), linear(torch.from_numpy(X))
    logits[:, 0] += certainty

    def in_float16(d):
        return logits, linear(d), lambda v: (v.half() @ torch.from_numpy(A).half()).double()

    def in_float64(d):
        return logits, linear(d), lambda v: v @ torch.from_numpy(A)

    found, exact = (direction(linear, x, linearised=which) for which in (in_float16, in_float64))
    assert cosines(found, exact).mean() > 0.999
    np.testing.assert_allclose(found.norm(dim=1), exact.norm(dim=1), rtol=1e-2)  # short where it was short
