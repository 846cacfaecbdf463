"""What the figures share: colours that survive colour blindness, no clutter, written whole or not at all.

Matplotlib takes half a second to load, so it is loaded when something is drawn: most commands draw nothing.
"""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from sntg.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, then two more hues for ten classes.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999", "#6A3D9A", "#8C564B"]


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of that size in inches. Nobody shows it: it works without a display.

    >>> new_figure(4.0, 3.0).axes
    []
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> None:
    """Writes a PNG."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=130, bbox_inches="tight")
    write_bytes(path, drawn.getvalue())
