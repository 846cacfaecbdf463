"""What the schedules say of every step of an epoch, laid out on the device: a step looks its own line up there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sntg.training.adam import bias_correction
from sntg.training.schedules import Schedule


@dataclass(frozen=True)
class Values:
    """One step's line: momenta shared by the stack, and tensors with one value a run. `rate` is lr, bias-corrected."""

    beta1: Tensor
    beta2: Tensor
    ema: Tensor
    rate: Tensor
    weights: dict[str, Tensor]


class Timetable:
    """The lines of the epoch at hand, (steps, columns, runs) in float64, and a place that every step moves on.

    Nothing but `load` involves the host, and it is called once an epoch.

    >>> table = Timetable([Schedule(epochs=2, lr_max=0.1, w_max=1.0, ramp_up=0)], ("supervised", "sntg"), steps=3)
    >>> table.load(step=0)
    >>> table.next().weights["supervised"]
    tensor([1.], dtype=torch.float64)
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        terms: Sequence[str],
        steps: int,
        stepwise: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.schedules = schedules
        self.terms = tuple(terms)
        self.steps = steps
        self.stepwise = stepwise
        self.lines = torch.zeros(steps, 4 + len(self.terms), len(schedules), dtype=torch.float64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.loaded: int | None = None

    def moment(self, step: int) -> float:
        """The epoch, or the fraction of it where ramps move with every step, that a step is in."""
        return step / self.steps if self.stepwise else step // self.steps

    def load(self, step: int) -> None:
        """Makes `step` (from 0) the next one."""
        epoch = step // self.steps
        if self.loaded != epoch:
            self.lines.copy_(torch.from_numpy(self._epoch(epoch)))
            self.loaded = epoch
        self.place.fill_(step % self.steps)

    def next(self) -> Values:
        """The next step's line."""
        beta1, beta2, ema, rate, *weights = self.lines.index_select(0, self.place)[0].unbind()
        self.place.add_(1).remainder_(self.steps)  # a trial step may come after the epoch's last
        return Values(beta1[0], beta2[0], ema[0], rate, dict(zip(self.terms, weights, strict=True)))

    def _epoch(self, epoch: int) -> np.ndarray:
        lines = np.empty(self.lines.shape)
        first = epoch * self.steps
        for i in range(self.steps):
            if i == 0 or self.stepwise:
                line = self._line(self.moment(first + i))
            lines[i] = line
            lines[i, 3] *= bias_correction(line[0, 0], line[1, 0], first + i + 1)
        return lines

    def _line(self, moment: float) -> np.ndarray:
        """Column by column, for each run; the runs of a stack share the first three."""
        shared = self.schedules[0]
        ema, beta2 = shared.momenta(moment)
        weights = [s.weights(moment) for s in self.schedules]
        columns = [[value] * len(self.schedules) for value in (shared.beta1(moment), beta2, ema)]
        columns.append([s.lr(moment) for s in self.schedules])
        return np.array(columns + [[w[term] for w in weights] for term in self.terms])
