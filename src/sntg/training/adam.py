"""Adam as the reference code runs it.

It differs from torch.optim.Adam in where epsilon goes (beside the root of the uncorrected second moment) and in the
bias correction, which uses the current beta1 while beta1 ramps down. The learning rate may differ from run to run.

All parameters live in one flat tensor, and so do their gradients: small nets have many small tensors, and one
operation on all of them costs little more than an operation on one.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


class Adam:
    """m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2, theta <- theta - lr sqrt(1-b2^t)/(1-b1^t) m / (sqrt(v) + eps).

    runs: the length of the parameters' leading run axis, where they have one.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> optimiser = Adam([weight])
    >>> weight.square().sum().backward()
    >>> optimiser.step(lr=0.1)
    >>> weight.data
    tensor([0.9000])
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], beta2: float = 0.999, eps: float = 1e-8, runs: int = 1
    ) -> None:
        self.parameters = list(parameters)
        self.beta2 = beta2
        self.eps = eps
        self.steps = 0
        self.theta = torch.cat([p.detach().flatten() for p in self.parameters])
        numbers = torch.arange(runs, device=self.theta.device)
        self.run_of = torch.cat([numbers.repeat_interleave(p.numel() // runs) for p in self.parameters])
        self.gradient = torch.zeros_like(self.theta)
        self.m = torch.zeros_like(self.theta)
        self.v = torch.zeros_like(self.theta)
        self.gradients = self._views(self.gradient)
        for parameter, values, gradient in zip(self.parameters, self._views(self.theta), self.gradients, strict=True):
            parameter.data = values
            if parameter.grad is None:
                parameter.grad = gradient

    @torch.no_grad()
    def step(self, lr: Tensor | float, beta1: float = 0.9) -> None:
        """One update from the parameters' gradients, which it clears. `lr` is a number, or one for each run (runs,)."""
        self._gather()
        self.steps += 1
        self.m.lerp_(self.gradient, 1 - beta1)
        self.v.mul_(self.beta2).addcmul_(self.gradient, self.gradient, value=1 - self.beta2)
        correction = (1 - self.beta2**self.steps) ** 0.5 / (1 - beta1**self.steps)
        rate = (lr[self.run_of] if isinstance(lr, Tensor) and lr.numel() > 1 else lr) * correction
        self.theta.sub_(self.v.sqrt().add_(self.eps).reciprocal_().mul_(self.m).mul_(rate))
        self.gradient.zero_()

    def state(self) -> dict[str, Tensor]:
        """The moments and the number of steps, for a checkpoint; the parameters are the model's to save."""
        return {"m": self.m, "v": self.v, "steps": torch.tensor(self.steps)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes back to what `state` gave."""
        self.m.copy_(state["m"])
        self.v.copy_(state["v"])
        self.steps = int(state["steps"])

    def _views(self, flat: Tensor) -> list[Tensor]:
        """The flat tensor's parts in the parameters' shapes."""
        parts = torch.split(flat, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def _gather(self) -> None:
        """Takes in gradients that someone put beside the flat tensor instead of adding to it."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            if parameter.grad is not gradient:
                gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
                parameter.grad = gradient
