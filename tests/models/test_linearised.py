"""Functions to first order: what PyTorch makes of any, chains of linear maps, and the scale of what is pulled back."""

import pytest
import torch
from torch.func import jvp, vjp

from sntg.models import MLP, SmallNet, stack
from sntg.models.convnet import _mean_map
from sntg.models.layers import AffineDense, BatchNormDense
from sntg.models.linearised import LinearMap, composed, differentiated

A = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
X, D, V = torch.tensor([[0.3, -0.2]]), torch.tensor([[1.0, 0.5]]), torch.tensor([[0.2, -1.0, 0.7]])


def f(x):
    return torch.sin(x @ A.T)


def jacobian():
    return torch.autograd.functional.jacobian(f, X)[0, :, 0]


def test_any_function_can_be_differentiated():
    output, tangent, pull = differentiated(f, X)(D)
    torch.testing.assert_close(output, f(X))
    torch.testing.assert_close(tangent, D @ jacobian().T)
    torch.testing.assert_close(pull(V), V @ jacobian())


def test_linear_maps_go_one_after_the_other_and_their_transposes_back():
    matrices = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 3.0]])
    maps = [LinearMap(lambda t, m=m: t @ m.T, lambda u, m=m: u @ m) for m in matrices]
    d, v, J = torch.tensor([[1.0, -1.0, 2.0]]), torch.tensor([[0.5, -2.0]]), matrices[1] @ matrices[0]
    output, tangent, pull = composed(X, maps)(d)
    assert output is X
    torch.testing.assert_close(tangent, d @ J.T)
    torch.testing.assert_close(pull(v), v @ J)


@pytest.mark.parametrize("shape", [(7,), (2, 7), (1, 7), (1, 2, 7)], ids=str)
@pytest.mark.parametrize("make", [BatchNormDense, AffineDense], ids=["batch", "affine"])
def test_a_dense_layer_knows_its_derivative(make, shape):
    """That of what it does in training mode, where a batch's rows are tied together; alone and as a stack of one."""
    torch.manual_seed(0)
    layer = make(4, 3).double()
    for parameter in layer.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    layer = stack([layer]) if shape[0] == 1 else layer
    layer.track_statistics = False
    x, d, v = (torch.randn(*shape, size, dtype=torch.float64) for size in (3, 3, 4))
    push, pull = layer.linear(x)
    torch.testing.assert_close(push(d), jvp(layer, (x,), (d,))[1])
    torch.testing.assert_close(pull(v), vjp(layer, x)[1](v)[0])


def test_a_network_without_kernels_leaves_its_derivative_to_pytorch():
    torch.manual_seed(0)
    for net, x in ((MLP(2, 3), torch.randn(5, 2)), (SmallNet((1, 16, 16), 3), torch.randn(5, 1, 16, 16))):
        net.eval()
        output, linearised = net.linearised(x)
        assert linearised is None
        assert all(torch.equal(*pair) for pair in zip(output, net(x), strict=True))


def test_the_transpose_of_global_averaging_shares_out():
    x, v = torch.randn(2, 3, 4, 5, 5), torch.randn(2, 3, 4)
    there, back = _mean_map(x)
    torch.testing.assert_close(there(x), x.mean((-2, -1)))
    torch.testing.assert_close((back(v) * x).sum(), (v * there(x)).sum())
    _, back = _mean_map(x.bfloat16())
    assert (back(v).shape, back(v).dtype) == (x.shape, torch.bfloat16)
