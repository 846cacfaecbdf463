"""Functions to first order: what PyTorch makes of any, chains of linear maps, and the scale of what is pulled back."""

import torch

from sntg.models import MLP, SmallNet
from sntg.models.convnet import _mean_map
from sntg.models.linearised import LinearMap, after, differentiated

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


def test_linear_maps_go_before_and_their_transposes_after():
    first, second = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 3.0]])
    maps = [LinearMap(lambda t, m=m: t @ m.T, lambda u, m=m: u @ m) for m in (first, second)]
    d, J = torch.tensor([[1.0, -1.0, 2.0]]), jacobian() @ second @ first
    output, tangent, pull = after(maps, differentiated(f, X))(d)
    torch.testing.assert_close(output, f(X))
    torch.testing.assert_close(tangent, d @ J.T)
    torch.testing.assert_close(pull(V), V @ J)


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
