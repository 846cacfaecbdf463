"""Adam as the reference code runs it.

It differs from torch.optim.Adam in where epsilon goes (beside the root of the uncorrected second moment) and in the
bias correction, which uses the current beta1 while beta1 ramps down. The learning rate may differ from run to run.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Adam:
    """m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2, theta <- theta - lr sqrt(1-b2^t)/(1-b1^t) m / (sqrt(v) + eps).

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> weight.square().sum().backward()
    >>> Adam([weight]).step(lr=0.1)
    >>> weight.data
    tensor([0.9000])
    """

    def __init__(self, parameters: Iterable[nn.Parameter], beta2: float = 0.999, eps: float = 1e-8) -> None:
        self.parameters = list(parameters)
        self.beta2 = beta2
        self.eps = eps
        self.steps = 0
        self.m = [torch.zeros_like(p) for p in self.parameters]
        self.v = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, lr: Tensor | float, beta1: float = 0.9) -> None:
        """One update from the parameters' gradients, which it clears. `lr` is a number, or one for each run (runs,)."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        self.steps += 1
        torch._foreach_lerp_(self.m, gradients, 1 - beta1)
        torch._foreach_mul_(self.v, self.beta2)
        torch._foreach_addcmul_(self.v, gradients, gradients, 1 - self.beta2)
        update = torch._foreach_sqrt(self.v)
        torch._foreach_add_(update, self.eps)
        torch._foreach_reciprocal_(update)
        torch._foreach_mul_(update, self.m)
        correction = (1 - self.beta2**self.steps) ** 0.5 / (1 - beta1**self.steps)
        for parameter, change in zip(self.parameters, update, strict=True):
            parameter.sub_(change * (_per_run(lr, change) * correction))
            parameter.grad = None


def _per_run(lr: Tensor | float, like: Tensor) -> Tensor | float:
    return lr.reshape(-1, *(1,) * (like.ndim - 1)) if isinstance(lr, Tensor) else lr
