"""The random noise of a training pass: Gaussian noise and dropout, off in evaluation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Perturbation(nn.Module):
    """Random noise of the training pass. Inside `shared_noise` one draw serves every pass; where `two_batches` share a
    pass it serves the first, and the second has a draw of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.sharing = False
        self.shared: Tensor | None = None
        self.first_rows = 0

    def draw(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def apply_draw(self, x: Tensor, draw: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_draw(x, self.drawn(x)) if self.training else x

    def drawn(self, x: Tensor) -> Tensor:
        """The draw for a training pass over x: a new one, or the one it shares."""
        if not self.sharing:
            return self.draw(x)
        if self.first_rows and self.shared is not None and self.shared.shape != x.shape:
            return self._with_own_rows(x, self.shared)
        if self.shared is None or self.shared.shape != x.shape:
            self.shared = self.draw(x)
        return self.shared

    def _with_own_rows(self, x: Tensor, shared: Tensor) -> Tensor:
        """The shared draw for the first rows of x, and one of their own for the others."""
        rows = next(axis for axis in range(x.ndim) if x.shape[axis] != shared.shape[axis])
        own = self.draw(x.narrow(rows, self.first_rows, x.shape[rows] - self.first_rows))
        if x.shape[:rows].numel() == 1:  # `cat` keeps the layout of images that have no axes before their rows
            shared, own, rows = shared.flatten(0, rows), own.flatten(0, rows), 0
        return torch.cat([shared, own], rows).reshape(x.shape)


class GaussianNoise(Perturbation):
    """Adds N(0, std^2) in training; std may differ from run to run of a stack.

    >>> GaussianNoise(0.15).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    std: Tensor

    def __init__(self, std: float) -> None:
        super().__init__()
        self.register_buffer("std", torch.tensor(float(std)), persistent=False)

    def draw(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, dtype=x.dtype, device=x.device)

    def apply_draw(self, x: Tensor, draw: Tensor) -> Tensor:
        std = self.std.to(x.dtype)
        return torch.addcmul(x, draw, std.reshape(std.shape + (1,) * (x.ndim - std.ndim)))


class Dropout(Perturbation):
    """Drops each entry with probability `rate` in training and scales up the rest.

    >>> Dropout(0.5).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def draw(self, x: Tensor) -> Tensor:
        # On a CPU compiled and eager passes draw the same numbers, but lay x out each in its own way: there a number
        # belongs to a position. On a GPU they draw others in any case, and a mask that is laid out as x is saves time.
        on_cpu = x.device.type == "cpu"
        ones = torch.ones(x.shape, dtype=x.dtype, device=x.device) if on_cpu else torch.ones_like(x)
        return F.dropout(ones, self.rate)

    def apply_draw(self, x: Tensor, draw: Tensor) -> Tensor:
        return x * draw
