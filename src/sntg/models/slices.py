"""How the kernels of `kernels.py`, which take images for a matrix of pixels, are launched: by how many programs."""

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sntg.models.launch import NARROWEST, PROGRAMS, STAGES, WARPS, ceil_div, launch, power_of_two

# Launch parameters, beside those of `launch.py`. They depend on shapes alone, and so do the sums' bits.
BLOCK_BYTES = 2**14  # that a program moves at a time
FEWEST_ROWS = 128  # in a slice; below this, adding up the slices costs more than the rows
MOST_SLICES = 128  # of the rows of a batch, for the same reason


class Slices(NamedTuple):
    """How the rows of every group are shared out among programs; `grid.py` explains how."""

    grid: tuple[int, int, int]
    sizes: dict[str, int]
    first: int

    @classmethod
    def over(cls, x: Tensor, reads: int, first: int = 0) -> "Slices":
        """For kernels that walk over the rows of x, (groups, n, H, W, C), and hold `reads` rows as wide for each.

        Enough slices to fill the GPU, but none of few rows.
        """
        groups, rows, C = x.shape[0], prod(x.shape[1:4]), x.shape[4]
        if any(isinstance(size, torch.SymInt) for size in x.shape):  # a compiler leaves it open: nothing is to be known
            return cls((1, 1, 1), {"M": rows, "C": C}, first)
        columns = 2 * NARROWEST if C % (2 * NARROWEST) == 0 else NARROWEST
        across = C // columns
        most = MOST_SLICES // largest_batch(groups, first)
        slices = min(most, ceil_div(PROGRAMS, groups * across), ceil_div(rows, FEWEST_ROWS))
        slice_rows = ceil_div(rows, slices)
        block_rows = BLOCK_BYTES // (reads * columns * x.element_size())
        sizes = {
            "M": rows,
            "slice_rows": slice_rows,
            "C": C,
            "ROWS": min(block_rows, power_of_two(slice_rows)),
            "COLUMNS": columns,
            "STAGES": STAGES,
            "num_warps": WARPS,
        }
        return cls((across, ceil_div(rows, slice_rows), groups), sizes, first)

    def sums(self, kernel: Any, kinds: int, x: Tensor, *more: Any, **constants: Any) -> Tensor:
        """What a kernel finds in each slice, (kinds, groups, slices, C)."""
        _, slices, groups = self.grid
        partial = torch.empty((kinds, groups, slices, self.sizes["C"]), dtype=torch.float32, device=x.device)
        self.run(kernel, partial, x, *more, **constants)
        return partial

    def finish(self, kernel: Any, partial: Tensor, *more: Any, **constants: Any) -> None:
        """Runs the kernel that begins with putting the slices together."""
        self.run(kernel, partial, *more, slices=partial.shape[2], first=self.first, MOST=MOST_SLICES, **constants)

    def run(self, kernel: Any, partial: Tensor, *more: Any, **constants: Any) -> None:
        """Launches a kernel."""
        launch(kernel, self.grid, (partial, *more), self.sizes | constants)


def largest_batch(groups: int, first: int) -> int:
    """How many groups it has."""
    return max(first, groups - first) if first else 1
