"""Adam as the reference code runs it.

It differs from torch.optim.Adam in where epsilon goes (beside the root of the uncorrected second moment) and in the
bias correction, which uses the current beta1 while beta1 ramps down. The learning rate may differ from run to run.

All parameters live in one flat tensor, and so do their gradients: small nets have many small tensors, and one
operation on all of them costs little more than an operation on one. Rates and momenta may be tensors, so that a step
recorded once can be replayed with others.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from sntg.models import flatten, split_like
from sntg.training.loss_scale import LossScale, spread

Value = Tensor | float


class Adam:
    """m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2, theta <- theta - lr sqrt(1-b2^t)/(1-b1^t) m / (sqrt(v) + eps).

    runs: the length of the parameters' leading run axis, where they have one. loss_scale: what `scaled` multiplies the
    losses by at first; None is not at all. The caller counts the steps t: see `bias_correction`.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> optimiser = Adam([weight])
    >>> weight.square().sum().backward()
    >>> optimiser.gather()
    >>> optimiser.step(0.1 * bias_correction(0.9, 0.999, 1), beta1=0.9, beta2=0.999)
    >>> weight.data
    tensor([0.9000])
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], eps: float = 1e-8, runs: int = 1, loss_scale: float | None = None
    ) -> None:
        self.parameters = list(parameters)
        self.eps = eps
        self.theta = flatten(self.parameters)
        numbers = torch.arange(runs, device=self.theta.device)
        run_of = [numbers.repeat_interleave(p.numel() // runs) for p in self.parameters]
        self.run_of = torch.cat(run_of) if runs > 1 else None  # of every number in the flat tensor
        self.scale = None if loss_scale is None else LossScale(loss_scale, runs, self.theta.device)
        self.gradient = torch.zeros_like(self.theta)
        self.m = torch.zeros_like(self.theta)
        self.v = torch.zeros_like(self.theta)
        self.gradients = split_like(self.gradient, self.parameters)

    def scaled(self, losses: Tensor) -> Tensor:
        """The losses (runs,) as gradients are to be taken of them."""
        return losses if self.scale is None else losses * self.scale.value

    @torch.no_grad()
    def gather(self) -> None:
        """Moves the parameters' gradients into the flat tensor."""
        found = [(flat, p.grad) for flat, p in zip(self.gradients, self.parameters, strict=True) if p.grad is not None]
        if len(found) < len(self.parameters):
            self.gradient.zero_()
        if found:
            torch._foreach_copy_([flat for flat, _ in found], [gradient for _, gradient in found])
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: Value, beta1: Value, beta2: Value) -> None:
        """One update from the gathered gradients. `rate` is lr with its bias correction, one number or one a run."""
        gradient, of_m, of_v = self.gradient, _share(1 - beta1, self.m), _share(1 - beta2, self.v)
        if isinstance(rate, Tensor):
            rate = spread(rate.to(self.theta.dtype), self.run_of)
        if self.scale is not None:
            gradient, taken = self.scale.unscaled(gradient, self.run_of)
            of_m, of_v, rate = of_m * taken, of_v * taken, rate * taken
        self.m.lerp_(gradient, of_m)
        self.v.lerp_(gradient.square(), of_v)
        self.theta.sub_(self.m / self.v.sqrt().add_(self.eps) * rate)

    def state(self) -> dict[str, Tensor]:
        """The moments, and where the loss scale is, for a checkpoint; the parameters are the model's to save."""
        return {"m": self.m, "v": self.v} | ({} if self.scale is None else self.scale.state())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes back to what `state` gave; gradients of a step that was not finished are forgotten."""
        self.m.copy_(state["m"])
        self.v.copy_(state["v"])
        if self.scale is not None:
            self.scale.load_state(state)
        for parameter in self.parameters:
            parameter.grad = None


def bias_correction(beta1: float, beta2: float, t: int) -> float:
    """What the learning rate of step t = 1, 2, ... is multiplied by: both moments started at zero.

    >>> round(bias_correction(0.9, 0.999, 1), 4)
    0.3162
    """
    return float((1 - beta2**t) ** 0.5 / (1 - beta1**t))


def _share(value: Value, like: Tensor) -> Value:
    """How much of the new goes in, as `lerp` wants it."""
    return value.to(like.dtype) if isinstance(value, Tensor) else value
