"""Ramps, and what each loss term weighs at each moment of a run.

Time is counted in epochs, from 0. In the Pi model's recipe a value is constant within an epoch; in Mean Teacher's and
VAT's it changes with every step, and the epoch is then a fraction.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

DECAYS = ("gauss", "linear")


def ramp_up(epoch: float, length: float) -> float:
    """exp(-5 (1 - e/length)^2) for the first `length` epochs, then 1.

    >>> ramp_up(80, 80), round(ramp_up(0, 80), 4)
    (1.0, 0.0067)
    """
    if epoch >= length:
        return 1.0
    return math.exp(-5.0 * (1.0 - max(0.0, epoch) / length) ** 2)


def ramp_down(epoch: float, epochs: int, length: float) -> float:
    """1 until the last `length` epochs, then exp(-12.5 ((e - start) / length)^2).

    >>> ramp_down(249, 300, 50), round(ramp_down(275, 300, 50), 4)
    (1.0, 0.0439)
    """
    start = epochs - length
    if length <= 0 or epoch < start:
        return 1.0
    return math.exp(-12.5 * ((epoch - start) / length) ** 2)


def linear_decay(epoch: float, epochs: int, length: float) -> float:
    """1 until the last `length` epochs, then in a straight line to 0.

    >>> linear_decay(460, 500, 40), linear_decay(480, 500, 40), linear_decay(500, 500, 40)
    (1.0, 0.5, 0.0)
    """
    return min(1.0, max(0.0, (epochs - epoch) / length)) if length > 0 else 1.0


@dataclass(frozen=True)
class Schedule:
    """The settings of one run that change with time.

    w_max: the consistency's final weight before the label factor L/N, which `label_factor` already holds.
    skip_first: the first epoch has no consistency, if there is a ramp: its targets mean nothing yet.
    decay: how the learning rate ends. With "gauss" beta1 falls from 0.9 to 0.5 beside it, with "linear" it jumps there.
    graph_start, graph_ramp: the graph term may start later than the rest, with a ramp of its own.
    early_momentum, early_epochs: what stands in for the weight average's and Adam's second momentum in the beginning.

    >>> Schedule(epochs=300, lr_max=3e-3, w_max=100.0, label_factor=0.08).weights(100)["consistency"]
    8.0
    """

    epochs: int
    lr_max: float
    w_max: float
    label_factor: float = 1.0
    k: float = 0.4
    ent: float = 1.0
    ramp_up: int = 80
    ramp_down: int = 50
    graph_start: int = 0
    graph_ramp: int = 0
    decay: str = "gauss"
    skip_first: bool = True
    ema: float = 0.999
    beta2: float = 0.999
    early_momentum: float = 0.0
    early_epochs: int = 0

    def lr(self, epoch: float) -> float:
        """The learning rate: ramped up at the beginning and down at the end."""
        fall = ramp_down if self.decay == "gauss" else linear_decay
        return self.lr_max * ramp_up(epoch, self.ramp_up) * fall(epoch, self.epochs, self.ramp_down)

    def beta1(self, epoch: float) -> float:
        """Adam's first momentum: 0.9, and 0.5 in the end."""
        if self.decay == "linear":
            return 0.9 if epoch < self.epochs - self.ramp_down else 0.5
        down = ramp_down(epoch, self.epochs, self.ramp_down)
        return down * 0.9 + (1.0 - down) * 0.5

    def momenta(self, epoch: float) -> tuple[float, float]:
        """The momenta of the weight average and of Adam's second moment."""
        if epoch < self.early_epochs:
            return self.early_momentum, self.early_momentum
        return self.ema, self.beta2

    def w(self, epoch: float) -> float:
        """The consistency's weight."""
        if self.skip_first and self.ramp_up and epoch < 1:
            return 0.0
        return self.w_max * self.label_factor * ramp_up(epoch, self.ramp_up)

    def graph(self, epoch: float) -> float:
        """The graph term's own factor in [0, 1], for a late start."""
        if epoch < self.graph_start:
            return 0.0
        return ramp_up(epoch - self.graph_start, self.graph_ramp)

    def weights(self, epoch: float) -> Mapping[str, float]:
        """What each loss term weighs: CE + w cons + w ent H + w k R_S."""
        w = self.w(epoch)
        return {
            "supervised": 1.0,
            "consistency": w,
            "entropy": w * self.ent,
            "sntg": w * self.k * self.graph(epoch),
        }
