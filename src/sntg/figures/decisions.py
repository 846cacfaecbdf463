"""The paper's figure of the synthetic sets: predicted classes in colour, labelled points as crosses, the boundary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sntg.figures.style import COLOURS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = 400  # points along each side of the mesh the boundary is traced on


@dataclass(frozen=True)
class Decisions:
    """One panel: points (N, 2), the labelled ones (L, 2), and the classifier that colours the plane."""

    title: str
    points: np.ndarray
    labelled: np.ndarray
    classify: Callable[[np.ndarray], np.ndarray]


def draw_decisions(panels: Sequence[Decisions], path: Path) -> None:
    """Draws the panels side by side into a PNG file."""
    figure = new_figure(5.2 * len(panels), 4.6)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    save(figure, path)


def _draw(axes: "Axes", panel: Decisions) -> None:
    low, high = panel.points.min(0) - 0.25, panel.points.max(0) + 0.25
    x, y = np.meshgrid(np.linspace(low[0], high[0], GRID), np.linspace(low[1], high[1], GRID))
    plane = panel.classify(np.stack([x.ravel(), y.ravel()], 1)).reshape(x.shape)
    predicted = panel.classify(panel.points)
    for c in range(int(plane.max()) + 1):
        colour = COLOURS[c % len(COLOURS)]
        axes.contourf(x, y, (plane == c).astype(float), levels=[0.5, 1.5], colors=[colour], alpha=0.12)
        axes.contour(x, y, (plane == c).astype(float), levels=[0.5], colors=["#444444"], linewidths=0.7)
        mine = panel.points[predicted == c]
        axes.scatter(mine[:, 0], mine[:, 1], s=3, color=colour, linewidths=0)
    axes.scatter(panel.labelled[:, 0], panel.labelled[:, 1], s=70, marker="x", color="black", linewidths=2.2, zorder=3)
    axes.set_title(panel.title)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal")
