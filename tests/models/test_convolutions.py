"""Networks through the GPU's kernels where tensors hold nothing, as a compiler sees them: what comes out has the shape
and the dtype it has without kernels. What is in it, `test_shifted.py` and `test_fused.py` compare."""

from unittest import mock

import pytest
import torch
from torch._subclasses import FakeTensorMode

from sntg.models import NORMALISATIONS, SmallNet, convolutions, two_batches, use_precision

each_normalisation = pytest.mark.parametrize("normalisation", NORMALISATIONS)
each_precision = pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    monkeypatch.setattr(convolutions, "can_fuse", lambda x, channels: channels % 32 == 0)


def shapes(tensors):
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def seen(compute, net, precision):
    """What `compute` gives, without kernels and with them."""
    found = []
    for fused in (False, True):
        use_precision(net, precision, fused)
        with FakeTensorMode(allow_non_fake_inputs=True):
            found.append(shapes(compute()))
    return found


@each_precision
@each_normalisation
@pytest.mark.parametrize(("leading", "side"), [((4,), 16), ((2, 4), 16), ((2, 4), 18)], ids=str)
def test_a_step(leading, side, normalisation, precision):
    net = SmallNet((3, side, side), 4, normalisation=normalisation).float().train()

    def step():
        out = net(torch.randn(*leading, 3, side, side))
        parameters = list(net.parameters())
        return [*out, *torch.autograd.grad(out.logits.sum() + out.features.sum(), parameters)]

    plain, fused = seen(step, net, precision)
    assert fused == plain


@pytest.mark.parametrize(("precision", "dtype"), [("tf32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_convolutions_of_a_mean_only_network_compute_in_the_precision(precision, dtype):
    net = use_precision(SmallNet((3, 16, 16), 4).float().train(), precision, fused=True)
    real, dtypes = convolutions.F.conv2d, []

    def conv2d(images, weight, *rest, **more):
        dtypes.extend([images.dtype, weight.dtype])
        return real(images, weight, *rest, **more)

    with mock.patch.object(convolutions.F, "conv2d", conv2d), FakeTensorMode(allow_non_fake_inputs=True):
        net(torch.randn(4, 3, 16, 16))
    assert dtypes == [dtype] * 10


@each_precision
@each_normalisation
def test_an_evaluation(normalisation, precision):
    net = SmallNet((3, 16, 16), 4, normalisation=normalisation).float().eval()

    @torch.no_grad()
    def evaluation():
        return net(torch.randn(4, 3, 16, 16))

    plain, fused = seen(evaluation, net, precision)
    assert fused == plain


@pytest.mark.parametrize("normalisation", ["batch", "batch-logits"])
def test_a_derivative(normalisation):
    net = use_precision(SmallNet((3, 16, 16), 4, normalisation=normalisation).float().train(), "bfloat16", fused=True)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x = torch.randn(4, 3, 16, 16)
        output, linearised = net.linearised(x)
        logits, tangent, pull = linearised(torch.randn_like(x))
        assert shapes([logits, tangent]) == shapes([output.logits] * 2)
        assert shapes([pull(tangent)]) == shapes([x])


@each_normalisation
def test_two_batches(normalisation):
    net = SmallNet((3, 16, 16), 4, normalisation=normalisation).float().train()

    def both():
        with two_batches(net, 4):
            return net(torch.randn(6, 3, 16, 16))

    plain, fused = seen(both, net, "bfloat16")
    assert fused == plain
