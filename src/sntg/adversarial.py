"""VAT's perturbation: the direction in which the prediction changes most, and the loss along it (Miyato et al., 2017).

The divergence KL(p(x) || p(x + r)) has its minimum at r = 0, so what matters there is its Hessian in r,

    H = J^T (diag(p) - p p^T) J,        J the Jacobian of the logits in x,

and the worst direction is H's dominant eigenvector. A power iteration needs only products H d: J d, a tangent pushed
forward through the network, then J^T (...), a gradient pulled back, both exact and without a step size. The reference
code differences the divergence's gradient with a step xi = 1e-6 instead. In float32 that leaves rounding in place of
J d, which J^T still pulls back to where predictions change: another direction, and no weaker one (docs/cifar10.md has
figures), but one that hangs on how a machine rounds. So it is an option here, not the default.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from sntg.compiler import name_cache
from sntg.errors import UsageError
from sntg.losses import consistency_kl
from sntg.models import Linearised, differentiated

LARGEST = 16.0  # entry of what is pulled back: it may grow a thousandfold before float16 overflows

Predict = Callable[[Tensor], Tensor]  # inputs -> logits, the same function (noise, masks) at every call


def adversarial_direction(
    predict: Predict,
    x: Tensor,
    event_dims: int = 1,
    power_iterations: int = 1,
    xi: float | None = None,
    linearised: Linearised | None = None,
) -> Tensor:
    """The unit perturbation of each row of x that changes `predict` most, from a random start.

    event_dims: how many of x's last axes make up one input. xi: the reference's finite-difference step; None is exact.
    linearised: `predict` to first order at x, from a network that knows it; else PyTorch differentiates `predict`.

    `predict` may not write to tensors of its own, as `torch.nn.BatchNorm2d` does to its running statistics in training:
    PyTorch refuses to differentiate that. It can be given copies to write to.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    >>> def predict(x):
    ...     return torch.func.functional_call(net, {name: b.clone() for name, b in net.named_buffers()}, x)
    >>> adversarial_direction(predict, torch.randn(5, 2)).shape
    torch.Size([5, 2])
    >>> A = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    >>> d = adversarial_direction(lambda x: x @ A, torch.zeros(1, 2), power_iterations=4)
    >>> bool(d[0, 0].abs() > 0.99)
    True
    """
    if power_iterations < 0 or (xi is not None and not xi > 0):
        raise UsageError(f"power_iterations = {power_iterations} must not be negative, and xi = {xi} above 0 or None")
    if not torch.compiler.is_compiling():
        name_cache()  # PyTorch's derivatives load a part of its compiler
    if linearised is None:
        linearised = differentiated(predict, x)
    d = torch.randn(x.shape, dtype=x.dtype, device=x.device)
    for _ in range(power_iterations):
        d = unit(d, event_dims)
        d = _hessian_product(linearised, d) if xi is None else _difference_product(predict, x, d, xi)
    return unit(d, event_dims)


def lds(predict: Predict, x: Tensor, r: Tensor, clean_logits: Tensor) -> Tensor:
    """The local distributional smoothness loss KL(stopgrad p(x) || p(x + r)), a mean over the rows.

    >>> lds(lambda x: x, torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2))
    tensor(0.)
    """
    return consistency_kl(predict(x + r), F.softmax(clean_logits.detach(), -1))


def unit(d: Tensor, event_dims: int = 1) -> Tensor:
    """Each row scaled to length one, first by its largest entry so that the squares neither overflow nor vanish.

    >>> unit(torch.tensor([[3e30, 4e30]]))
    tensor([[0.6000, 0.8000]])
    """
    axes = tuple(range(-event_dims, 0))
    largest = d.abs().amax(axes, keepdim=True)
    d = d / torch.where(largest > 0, largest + 1e-12, 1.0)  # in 16 bits 1e-12 is nothing
    return d / (1e-6 + d.square().sum(axes, keepdim=True)).sqrt()


@torch.no_grad()
def _hessian_product(linearised: Linearised, d: Tensor) -> Tensor:
    """J^T (diag(p) - p p^T) J d.

    Where predictions are certain, what is pulled back is as small as their uncertainty. So that it is not lost, the
    likeliest class gets zero in J d, where a constant more changes nothing: nothing large is left to cancel.
    """
    logits, tangent, pull = linearised(d)
    p = F.softmax(logits, -1)
    t = tangent - tangent.gather(-1, logits.argmax(-1, keepdim=True))
    return _pulled_back(p * (t - (p * t).sum(-1, keepdim=True)), pull, d.ndim)


@torch.no_grad()
def _difference_product(predict: Predict, x: Tensor, d: Tensor, xi: float) -> Tensor:
    """The reference code's estimate of H d: each row's gradient of KL(p(x) || p(x + r)) at r = xi d, over xi.

    That is J^T v with v = (p(x + xi d) - p(x)) / xi, whose sum is zero. Where predictions are certain, the likeliest
    class's own difference, of two numbers near 1, is rounding, and larger than all others: a direction for or against
    that class, whatever the start. So it gets what the others sum up to, as in the reference, which writes its
    log-softmax out.
    """
    p = F.softmax(predict(x), -1)
    logits, pull = vjp(predict, x + xi * d)  # type: ignore[misc]
    likeliest = logits.argmax(-1, keepdim=True) == torch.arange(logits.shape[-1], device=x.device)
    others = torch.where(likeliest, 0.0, (F.softmax(logits, -1) - p) / xi)
    v = torch.where(likeliest, -others.sum(-1, keepdim=True), others)
    return _pulled_back(v, lambda v: pull(v)[0], d.ndim)


def _pulled_back(v: Tensor, pull: Callable[[Tensor], Tensor], ndim: int) -> Tensor:
    """J^T v, of so many axes. As float16 ends at 6e-8 and at 65504, v gets a scale that suits it on the way.

    The rows of a batch are scaled alike, for batch normalisation ties them together.
    """
    scale = v.abs().amax((-2, -1), keepdim=True).clamp(min=1e-30) / LARGEST
    return pull(v / scale) * scale.reshape(scale.shape + (1,) * (ndim - v.ndim))
