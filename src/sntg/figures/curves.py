"""Training curves of one run: errors on the left, weighted loss terms on the right."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sntg.figures.style import COLOURS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ERRORS = {
    "error": "test error (reported)",
    "student_error": "student, test",
    "teacher_error": "teacher, training points",
}


def draw_curves(history: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Draws a run's metrics, as the loop records them, into a PNG file."""
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    _draw_errors(left, history)
    for colour, term in zip(COLOURS, history[0]["loss"], strict=False):
        points = [(r["epoch"], r["loss"][term] * r["weight"][term]) for r in history]
        right.plot(*zip(*points, strict=True), color=colour, label=term)
    right.set_yscale("symlog", linthresh=1e-6)
    right.set_xlabel("epoch")
    right.set_ylabel("loss term x weight")
    right.legend(frameon=False)
    figure.suptitle(title)
    save(figure, path)


def _draw_errors(axes: "Axes", history: Sequence[dict[str, Any]]) -> None:
    for colour, (key, label) in zip(COLOURS, ERRORS.items(), strict=False):
        points = [(r["epoch"], r[key]) for r in history if r[key] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=label)
    axes.set_xlabel("epoch")
    axes.set_ylabel("error (%)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
