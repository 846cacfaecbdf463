"""What the figures share: colours that survive colour blindness, no clutter, written whole or not at all."""

from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only: never a window, and it works without a display

from matplotlib.figure import Figure

from sntg.files import write_bytes

# Okabe and Ito's palette, then two more hues for ten classes.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999", "#6A3D9A", "#8C564B"]


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=130, bbox_inches="tight")
    write_bytes(path, drawn.getvalue())
