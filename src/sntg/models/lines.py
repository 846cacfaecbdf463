"""How the kernels of `shifted_kernels.py`, which stay on a line of the images, are launched: by how many programs."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sntg.models.launch import NARROWEST, PROGRAMS, STAGES, WARPS, ceil_div, launch, power_of_two
from sntg.models.shifted_kernels import add_lines

# Launch parameters, beside those of `launch.py`. They depend on shapes alone, and so do the sums' bits.
HELD = 2048  # numbers that a program holds at a time of all it reads
UNDER_WAY = 2**15  # bytes that a program has under way at the most: lines wider than usual come one by one
HELD_BY_A_WARP = 1024
FEWEST_WARPS = 2  # of a program, and mostly all: at the end its threads add up a line for every tap, and few do so fast
FEWEST_IMAGES = 4  # in a slice; below this, adding up the slices costs more than the images
ADDED_ROWS = 256  # lines and slices that are added up at a time


class Lines(NamedTuple):
    """How the lines of every group's images are shared out among programs; `shifted_kernels.py` explains how."""

    grid: tuple[int, int, int]
    sizes: dict[str, int]

    @classmethod
    def over(cls, x: Tensor, reads: int) -> "Lines":
        """For kernels that walk through the lines of x, (groups, n, H, W, C), and hold `reads` as long for each.

        Enough slices to fill the GPU, but none of few images.
        """
        groups, n, H, W, C = x.shape
        if any(isinstance(size, torch.SymInt) for size in x.shape):  # a compiler leaves it open: nothing is to be known
            return cls((1, 1, 1), {"n": n, "H": H, "W": W, "C": C, "slices": 1})
        pixels, largest = power_of_two(W), C & -C  # the largest power of two that divides C
        columns = min(largest, max(NARROWEST, HELD // reads // pixels))
        under_way = pixels * columns * reads * x.element_size()
        slices = min(ceil_div(PROGRAMS, groups * H * (C // columns)), ceil_div(n, FEWEST_IMAGES))
        slice_images = ceil_div(n, slices)
        sizes = {
            "n": n,
            "H": H,
            "W": W,
            "C": C,
            "slice_images": slice_images,
            "slices": ceil_div(n, slice_images),
            "PIXELS": pixels,
            "COLUMNS": columns,
            "STAGES": max(1, min(STAGES, UNDER_WAY // under_way)),
            "num_warps": min(WARPS, max(FEWEST_WARPS, pixels * columns // HELD_BY_A_WARP)),
        }
        return cls((C // columns, H * sizes["slices"], groups), sizes)

    def sums(self, kernel: Any, taps: tuple[int, int], kinds: int, x: Tensor, *more: Any) -> Tensor:
        """Launches a kernel; what it finds in each line and slice, (kinds, groups, lines and slices, C)."""
        size, padding = taps
        rows = self.sizes["H"] * self.sizes["slices"]
        partial = torch.empty((kinds, x.shape[0], rows, self.sizes["C"]), dtype=torch.float32, device=x.device)
        launch(kernel, self.grid, (partial, x, *more), self.sizes | {"SIZE": size, "PAD": padding})
        return partial

    def add(self, partial: Tensor, taps: tuple[int, int]) -> Tensor:
        """The sums over all that each of the taps meets, (groups, taps, C)."""
        (_, groups, _, C), (size, padding) = partial.shape, taps
        sums = torch.empty((groups, size * size, C), dtype=torch.float32, device=partial.device)
        sizes = {name: self.sizes[name] for name in ("H", "C", "slices")}
        constants = {"SIZE": size, "PAD": padding, "ROWS": ADDED_ROWS, "COLUMNS": NARROWEST, "num_warps": WARPS}
        if size:
            launch(add_lines, (C // NARROWEST, size * size, groups), (partial, sums), sizes | constants)
        return sums
