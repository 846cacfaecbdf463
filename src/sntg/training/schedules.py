"""Ramps, and what each loss term weighs in each epoch. Epochs count from 0 and a value is constant within one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


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


@dataclass(frozen=True)
class Schedule:
    """The settings of one run that change with the epoch.

    w_max: the consistency's final weight before the label factor L/N, which `label_factor` already holds.
    graph_start, graph_ramp: the graph term may start later than the rest, with a ramp of its own.

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

    def lr(self, epoch: int) -> float:
        """The learning rate: ramped up at the beginning and down at the end."""
        return self.lr_max * ramp_up(epoch, self.ramp_up) * self._down(epoch)

    def beta1(self, epoch: int) -> float:
        """Adam's first momentum falls from 0.9 to 0.5 while the learning rate ramps down."""
        down = self._down(epoch)
        return down * 0.9 + (1.0 - down) * 0.5

    def w(self, epoch: int) -> float:
        """The consistency's weight; with a ramp, the first epoch has none: its targets mean nothing yet."""
        if self.ramp_up and epoch == 0:
            return 0.0
        return self.w_max * self.label_factor * ramp_up(epoch, self.ramp_up)

    def graph(self, epoch: int) -> float:
        """The graph term's own factor in [0, 1], for a late start."""
        if epoch < self.graph_start:
            return 0.0
        return ramp_up(epoch - self.graph_start, self.graph_ramp)

    def weights(self, epoch: int) -> Mapping[str, float]:
        """What each loss term weighs: CE + w cons + w ent H + w k R_S."""
        w = self.w(epoch)
        return {
            "supervised": 1.0,
            "consistency": w,
            "entropy": w * self.ent,
            "sntg": w * self.k * self.graph(epoch),
        }

    def _down(self, epoch: int) -> float:
        return ramp_down(epoch, self.epochs, self.ramp_down)
