"""The mean of a convolution, known before: sums of images, and a layer's weight and shift from them.

The kernels run on a GPU where there is one, else in Triton's interpreter; one test here runs this file again in a
process of its own, with the interpreter.
"""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from interpreter import DEVICE, INTERPRETED, needs_kernels, run_in_interpreter

from sntg.models import means
from sntg.models.means import Taps, tap_sums, weight_and_shift

each_taps = pytest.mark.parametrize("taps", [Taps(3, 1), Taps(3, 0), Taps(1, 0), Taps(5, 2), Taps(5, 0)], ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)


@each_taps
@pytest.mark.parametrize("size", [(5, 5), (6, 9)], ids=str)
def test_a_taps_sum_is_that_of_a_convolution_with_this_tap_alone(taps, size):
    x = torch.randn(2, 3, 4, *size)
    sums = tap_sums(x, taps)
    assert sums.shape == (2, taps.size**2, 4)
    assert sums.dtype == torch.float32
    for tap in range(taps.size**2):
        alone = torch.zeros(taps.size**2).index_fill_(0, torch.tensor(tap), 1.0)
        kernel = alone.view(1, 1, taps.size, taps.size).expand(4, 1, -1, -1)
        met = F.conv2d(x.flatten(0, 1), kernel, padding=taps.padding, groups=4).unflatten(0, (2, 3))
        torch.testing.assert_close(sums[:, tap], met.sum((1, 3, 4)), rtol=1e-5, atol=1e-5)


def test_sums_of_16_bit_images_are_added_up_in_float32():
    x = torch.ones(1, 257, 1, 1, 1, dtype=torch.bfloat16)  # which has no 257
    assert float(tap_sums(x, Taps(1, 0))) == 257


def test_sums_can_be_differentiated():
    x = torch.randn(1, 2, 2, 4, 4, dtype=torch.float32, requires_grad=True)
    (dx,) = torch.autograd.grad(tap_sums(x, Taps(3, 1))[0, 0].sum(), x)  # the tap above and to the left
    assert torch.equal(dx[0, 0, 0], F.pad(torch.ones(3, 3), (0, 1, 0, 1)))


def random_layer(taps, C=6, outputs=5, groups=2, seed=0):
    """V, g of both signs, b, and images of each group, of which the means are far from zero."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    V, g, b = draw(outputs, C, taps.size, taps.size), draw(outputs), draw(outputs)
    x = draw(groups, 3, C, 6, 7) + draw(groups, 1, C, 1, 1) + 1
    return [t.to(DEVICE).requires_grad_() for t in (V, g, b, x)]


def pixels_of(x, taps):
    return x.shape[1] * taps.outputs(x.shape[3]) * taps.outputs(x.shape[4])


def computed(V, g, b, x, taps, dtype=torch.float32, spare=0):
    length = V[0].numel() + spare
    return weight_and_shift(V, g, b, tap_sums(x, taps), pixels_of(x, taps), length, dtype)


def by_tap(weight):
    """A kernel (outputs, C, size, size) as the rows that a convolution reads."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def normed(V, g):
    return V / V.flatten(1).norm(dim=1)[:, None, None, None] * g[:, None, None, None]


@needs_kernels
@each_dtype
@each_taps
def test_the_weight_is_normed_and_rounded_and_the_mean_is_that_of_what_is_then_convolved(taps, dtype):
    V, g, b, x = random_layer(taps)
    weight, shift, mean = computed(V, g, b, x, taps, dtype)
    assert weight.dtype == dtype
    torch.testing.assert_close(
        weight.double(), by_tap(normed(V.double(), g.double())), rtol=1.01 * eps(dtype), atol=1e-7
    )
    rounded = weight.detach().double().view(len(V), taps.size, taps.size, -1).permute(0, 3, 1, 2)
    for group in range(2):
        y = F.conv2d(x[group].detach().double(), rounded, padding=taps.padding)
        torch.testing.assert_close(mean[group].double(), y.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(shift, b - mean)
    assert not mean.requires_grad


@needs_kernels
def test_norms_and_means_have_no_gradient():
    V, g, b, x = random_layer(Taps(1, 0))
    of_parameters = torch.ops.sntg.mean_only_layer(V, g, b, tap_sums(x, Taps(1, 0)), 7, 6, torch.float32)
    assert [result.requires_grad for result in of_parameters] == [True, True, False, False]


@needs_kernels
def test_sums_of_data_are_not_differentiated():
    V, g, b, x = random_layer(Taps(1, 0))
    with mock.patch.object(torch.ops.sntg, "tap_sums_gradient", side_effect=AssertionError):
        _, shift, _ = computed(V, g, b, x.detach(), Taps(1, 0))
        shift.sum().backward()
    assert torch.equal(b.grad, torch.full_like(b, 2.0))  # of two groups


def eps(dtype):
    return torch.finfo(dtype).eps  # a whole unit: the interpreter truncates


@needs_kernels
@each_taps
@pytest.mark.parametrize(("C", "outputs", "groups"), [(6, 5, 2), (3, 4, 1), (40, 130, 3)])
def test_gradients_are_those_of_float64(taps, C, outputs, groups):
    V, g, b, x = random_layer(taps, C, outputs, groups)
    weight, shift, _ = computed(V, g, b, x, taps)
    exact = [t.detach().double().requires_grad_() for t in (V, g, b, x)]
    exact_weight = normed(*exact[:2])
    y = F.conv2d(exact[3].flatten(0, 1), exact_weight, padding=taps.padding).unflatten(0, (groups, -1))
    exact_shift = exact[2] - y.mean((1, 3, 4))
    d_weight, d_shift = torch.randn_like(weight), torch.randn_like(shift)
    found = torch.autograd.grad([weight, shift], [V, g, b, x], [d_weight, d_shift])
    expected = torch.autograd.grad([by_tap(exact_weight), exact_shift], exact, [d_weight.double(), d_shift.double()])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@needs_kernels
def test_the_gradient_of_a_16_bit_weight_and_what_comes_through_the_mean_are_added_up_in_float32():
    """Ten thousand and one: in bfloat16 the one would be lost."""
    V = torch.tensor([[3.0, 4.0]], device=DEVICE).view(1, 2, 1, 1).requires_grad_()
    g, b = torch.ones(1, device=DEVICE, requires_grad=True), torch.zeros(1, device=DEVICE)
    sums = torch.tensor([[[1.0, 1.0]]], device=DEVICE)
    weight, shift, _ = weight_and_shift(V, g, b, sums, 1, 2, torch.bfloat16)
    gradients = torch.full_like(weight, 9984.0), -torch.ones_like(shift)
    (dg,) = torch.autograd.grad([weight, shift], g, gradients)
    assert float(dg) == pytest.approx(9985 * 1.4)  # along V / ||V|| = (0.6, 0.8)


@needs_kernels
@pytest.mark.parametrize("spare", [1, 5])
def test_what_is_spare_in_a_row_is_zero_and_its_gradient_goes_nowhere(spare):
    V, g, b, x = random_layer(Taps(3, 1), C=3)
    plain, wide = computed(V, g, b, x, Taps(3, 1)), computed(V, g, b, x, Taps(3, 1), spare=spare)
    assert torch.equal(wide.weight[:, :27], plain.weight)
    assert (wide.weight[:, 27:] == 0).all()
    assert torch.equal(wide.shift, plain.shift)
    (dV,) = torch.autograd.grad(wide.weight[:, 27:].sum(), V)
    assert (dV == 0).all()


@needs_kernels
def test_the_bits_repeat():
    V, g, b, x = random_layer(Taps(3, 1), C=40, outputs=130)
    passes = []
    for _ in range(2):
        weight, shift, mean = computed(V, g, b, x, Taps(3, 1), torch.bfloat16)
        passes.append((weight, mean, *torch.autograd.grad([weight.float().sum(), shift.sum()], [V, g, b, x])))
    assert all(torch.equal(one, other) for one, other in zip(*passes, strict=True))


@needs_kernels
@each_dtype
def test_the_operator_keeps_pytorchs_rules(dtype):
    V, g, b, x = random_layer(Taps(3, 1))
    sums = tap_sums(x, Taps(3, 1)).detach().requires_grad_()
    torch.library.opcheck(means.layer, (V, g, b, sums, 7, 56, dtype))


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's run")
def test_all_of_this_in_the_interpreter():
    run_in_interpreter(__file__)
