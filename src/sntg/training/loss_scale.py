"""What the loss is multiplied by where gradients pass through float16, and what becomes of a step that overflows.

float16 ends at 65504 above and 6e-8 below. Gradients of a mean over images are small, so they are taken of a larger
loss. One that then overflows would leave nothing of the weights, and a run that repeats itself to the bit would end
there again however often it is resumed. So that step is not taken, and the next one has half the scale.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

STEADY = 2000  # steps without an overflow after which the scale doubles again


class LossScale:
    """A power of two, halved by an overflow and doubled again later, up to what it began with. Each run has its own.

    At one nothing is held back any more: what still makes gradients infinite is no overflow, and the losses will tell.
    The host has no part in any of it.

    >>> scale = LossScale(1024.0)
    >>> scale.unscaled(torch.tensor([2048.0, 0.0]))
    (tensor([2., 0.]), tensor([1.]))
    >>> scale.unscaled(torch.tensor([2048.0, torch.inf]))
    (tensor([0., 0.]), tensor([0.]))
    >>> scale.value
    tensor([512.])
    """

    def __init__(self, start: float, runs: int = 1, device: torch.device | str = "cpu") -> None:
        self.start = start
        self.value = torch.full((runs,), start, device=device)
        self.steady = torch.zeros(runs, dtype=torch.int64, device=device)  # steps since it was last changed

    def unscaled(self, gradient: Tensor, run_of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The gradient of the losses themselves, and whether the step is to be taken, 1, or not, 0: then it is zero.

        gradient: every number of every run; run_of: the run of each, where there are several.
        """
        finite = self._finite(gradient, run_of)
        usable = spread(finite | (self.value <= 1), run_of)
        unscaled = torch.where(usable, gradient / spread(self.value, run_of), 0.0)
        self._move(finite)
        return unscaled, usable.to(gradient.dtype)

    def _finite(self, gradient: Tensor, run_of: Tensor | None) -> Tensor:
        finite = torch.isfinite(gradient)
        if run_of is None:
            return finite.all()[None]
        return torch.zeros_like(self.value).index_add(0, run_of, (~finite).to(self.value.dtype)) == 0

    def _move(self, finite: Tensor) -> None:
        """Where the next step's scale is, after one that was finite or not."""
        steady = torch.where(finite, self.steady + 1, 0)
        factor = torch.where(finite, torch.where(steady == STEADY, 2.0, 1.0), 0.5)
        self.value.mul_(factor).clamp_(1.0, self.start)
        self.steady.copy_(steady % STEADY)

    def state(self) -> dict[str, Tensor]:
        """Where it is, for a checkpoint."""
        return {"loss_scale": self.value, "steady": self.steady}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes back to what `state` gave."""
        self.value.copy_(state.get("loss_scale", torch.tensor(self.start)))  # earlier versions never moved it
        self.steady.copy_(state.get("steady", torch.tensor(0)))


def spread(values: Tensor, run_of: Tensor | None) -> Tensor:
    """One value, or one a run, for each number of a flat tensor.

    >>> spread(torch.tensor([0.1, 0.2]), torch.tensor([0, 0, 1]))
    tensor([0.1000, 0.1000, 0.2000])
    """
    return values if run_of is None or values.numel() == 1 else values[run_of]
