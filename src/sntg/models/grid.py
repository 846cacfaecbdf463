"""How the GPU kernels of `kernels.py` share out an image tensor among programs, and add up over all of it.

An image tensor in channels-last memory is, group by group, a row-major matrix: one row a pixel, one column a channel.
Every kernel runs on a grid of programs

    (blocks of COLUMNS channels, slices of `slice_rows` rows, groups)

and a program walks down its slice, ROWS rows at a time. What depends on a whole group takes two kernels: the first
writes a partial result for each slice, and the second puts them together at its start. Every program does that in the
same order and nothing is added atomically: the bits repeat from run to run.

Partial results are (kinds, groups, slices, C) and what they come to is (kinds, groups, C): a kind is a sum, or a mean.
A group is a batch by itself, or the groups are those of two batches: the FIRST groups of one, the others of another.
Row numbers are int64, so offsets may exceed 2^31.

What makes a function a kernel, and a few offsets, the kernels of mean-only layers take from here, too.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# (a kernel's arguments are pointers and Triton's values; no Python type describes them)

from __future__ import annotations  # `tl` is named in signatures, and may be missing

from inspect import signature

try:
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from triton import jit as jit
except ImportError:
    AVAILABLE = False

    def jit(kernel):
        """Without Triton the kernels stay plain functions, which nobody calls."""
        return kernel
else:
    AVAILABLE = True

SIZES = {"M", "slice_rows", "slices", "first", "n", "H", "W", "slice_images", "groups", "pixels"}


def kernel(function):
    """A kernel: what the grid launches. It is not compiled anew for sizes that are multiples of 16, as Triton would."""
    found = [name for name, p in signature(function).parameters.items() if name in SIZES and p.annotation is p.empty]
    return jit(function, do_not_specialize=found) if AVAILABLE else function


@jit
def block(rows, columns, C):
    """The offsets of a block of a group's matrix: in int64 wherever `rows` are."""
    return rows[:, None] * C + columns[None, :]


@jit
def slice_ends(slice_rows, M):
    """The first row of the program's slice and the one after its last."""
    first = tl.program_id(1).to(tl.int64) * slice_rows
    return first, tl.minimum(first + slice_rows, M)


@jit
def from_the_end(step, first, end, ROWS: tl.constexpr):
    """The first row of the block that lies as far before the slice's last one as `step` is from 0.

    The sums were taken down the slice just before, so what was read last may still be in the cache.
    """
    return first + (tl.cdiv(end - first, ROWS) - 1) * ROWS - step


@jit
def program_columns(COLUMNS: tl.constexpr):
    return tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)


@jit
def corner(pooled_rows, k: tl.constexpr, W: tl.constexpr):
    """The row of pixel k (0 1 / 2 3) of each pooled pixel's window.

    Pooled pixel r lies in pooled line q = r // (W/2), over all images; lines 2q and 2q + 1 hold its window, which
    begins at pixel (2q) W + 2 (r - q W/2) = 2r + qW.
    """
    return 2 * pooled_rows + (pooled_rows // (W // 2)) * W + (k // 2) * W + k % 2


@jit
def store_partial(partial, kind: tl.constexpr, values, C, COLUMNS: tl.constexpr):
    """Stores what the program found in its slice."""
    row = (kind * tl.num_programs(2) + tl.program_id(2)) * tl.num_programs(1) + tl.program_id(1)
    tl.store(partial + row * C + program_columns(COLUMNS), values)


@jit
def batch_groups(first):
    """The batch that the program's group belongs to: where its groups begin, and how many they are."""
    group, groups = tl.program_id(2), tl.num_programs(2)
    start = tl.where(first == 0, group, tl.where(group < first, 0, first))
    count = tl.where(first == 0, 1, tl.where(group < first, first, groups - first))
    return start, count


@jit
def load_partials(partial, kind: tl.constexpr, C, slices, first, COLUMNS: tl.constexpr, MOST: tl.constexpr):
    """What was found in each slice of the batch, 0 in the rest of MOST: Triton's blocks have fixed sizes."""
    numbers = tl.arange(0, MOST)
    start, count = batch_groups(first)
    rows = (kind * tl.num_programs(2) + start) * slices + numbers
    inside = (numbers < count * slices)[:, None]
    return tl.load(partial + block(rows, program_columns(COLUMNS), C), mask=inside, other=0.0)


@jit
def add_partials(partial, kind: tl.constexpr, C, slices, first, COLUMNS: tl.constexpr, MOST: tl.constexpr):
    """The sum over the whole batch, from those of its slices."""
    return tl.sum(load_partials(partial, kind, C, slices, first, COLUMNS, MOST), 0)


@jit
def add_moments(partial, M, C, slices, first, COLUMNS: tl.constexpr, MOST: tl.constexpr):
    """The mean and the variance over the batch, M rows a group, from the means of its slices and the sums of their
    squared deviations: the deviations of the means come on top (Chan, Golub & LeVeque, 1979).

    What is added up is how far the means lie from the first one, which is known at once: no sum waits for another.
    """
    start, count = batch_groups(first)
    numbers = tl.arange(0, MOST)
    slice_rows = tl.cdiv(M, slices)
    n = tl.maximum(tl.minimum(slice_rows, M - numbers % slices * slice_rows), 0)  # rows in each slice
    n = tl.where(numbers < count * slices, n, 0).to(tl.float32)[:, None]
    pivot = tl.load(partial + start * slices * C + program_columns(COLUMNS))
    off = load_partials(partial, 0, C, slices, first, COLUMNS, MOST) - pivot[None, :]
    total, rows = tl.sum(n * off, 0), count * M
    squares = tl.sum(load_partials(partial, 1, C, slices, first, COLUMNS, MOST) + n * off * off, 0)
    variance = tl.maximum(squares - total * total / rows, 0.0) / rows
    return pivot + total / rows, variance


@jit
def store_once(result, kind: tl.constexpr, values, C, COLUMNS: tl.constexpr):
    """Every slice's program knows what the batch's slices come to; the first slice's stores it for its group."""
    if tl.program_id(1) == 0:
        tl.store(result + (kind * tl.num_programs(2) + tl.program_id(2)) * C + program_columns(COLUMNS), values)


@jit
def load_kind(result, kind: tl.constexpr, C, COLUMNS: tl.constexpr):
    """What `store_once` stored."""
    return tl.load(result + (kind * tl.num_programs(2) + tl.program_id(2)) * C + program_columns(COLUMNS))
