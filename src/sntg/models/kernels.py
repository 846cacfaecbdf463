"""The GPU kernels behind `fused.py`, in Triton: read there first what they compute, here how.

An image tensor in channels-last memory is, group by group, a row-major matrix: one row a pixel, one column a channel.
Every kernel runs on a grid of programs

    (blocks of COLUMNS channels, slices of `slice_rows` rows, groups)

and a program walks down its slice, ROWS rows at a time. A batch mean is needed before the first output can be written,
so each pass is two kernels: `*_sums` writes one partial sum for each slice, and the other adds the partials up at its
start. Every program adds them in the same order and nothing is added atomically: the bits repeat from run to run.

Arithmetic is in float32 whatever the tensors are. Row numbers are int64, so offsets may exceed 2^31.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# (a kernel's arguments are pointers and Triton's values; no Python type describes them)

from __future__ import annotations  # `tl` is named in signatures, and may be missing

try:
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from triton import jit
except ImportError:
    AVAILABLE = False

    def jit(kernel):
        """Without Triton the kernels stay plain functions, which nobody calls."""
        return kernel
else:
    AVAILABLE = True


@jit
def block(rows, columns, C: tl.constexpr):
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
def store_partial(partial, total, C: tl.constexpr, COLUMNS: tl.constexpr):
    """Adds up a program's block of sums over its rows, and stores them as its slice's partial."""
    row = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    tl.store(partial + row * C + program_columns(COLUMNS), tl.sum(total, 0))


@jit
def add_partials(partial, C: tl.constexpr, COLUMNS: tl.constexpr, SLICES: tl.constexpr, SLICES_P2: tl.constexpr):
    """The sums over a whole group, from the partials of its SLICES; Triton's blocks are powers of two, so SLICES_P2."""
    slices = tl.arange(0, SLICES_P2)
    offsets = block(tl.program_id(2) * SLICES + slices, program_columns(COLUMNS), C)
    return tl.sum(tl.load(partial + offsets, mask=(slices < SLICES)[:, None], other=0.0), 0)


@jit
def store_once(result, values, C: tl.constexpr, COLUMNS: tl.constexpr):
    """Every slice's program knows the group's sums; the first slice's stores them."""
    if tl.program_id(1) == 0:
        tl.store(result + tl.program_id(2) * C + program_columns(COLUMNS), values)


@jit
def corner(pooled_rows, k: tl.constexpr, W: tl.constexpr):
    """The row of pixel k (0 1 / 2 3) of each pooled pixel's window.

    Pooled pixel r lies in pooled line q = r // (W/2), over all images; lines 2q and 2q + 1 hold its window, which
    begins at pixel (2q) W + 2 (r - q W/2) = 2r + qW.
    """
    return 2 * pooled_rows + (pooled_rows // (W // 2)) * W + (k // 2) * W + k % 2


@jit
def row_sums(partial, y, M, slice_rows, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """partial[group, slice] = the sum of y over the slice's rows."""
    y += tl.program_id(2).to(tl.int64) * M * C
    first, end = slice_ends(slice_rows, M)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        values = tl.load(y + block(rows, program_columns(COLUMNS), C), mask=(rows < end)[:, None], other=0.0)
        total += values.to(tl.float32)
    store_partial(partial, total, C, COLUMNS)


@jit
def centred_leaky(
    partial, y, b, a, mean, group_stride, channel_stride, slope, M, slice_rows,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICES: tl.constexpr, SLICES_P2: tl.constexpr,
):  # fmt: skip
    """a = leaky(y - mean + b)."""
    group = tl.program_id(2).to(tl.int64)
    centre = add_partials(partial, C, COLUMNS, SLICES, SLICES_P2) / M
    store_once(mean, centre, C, COLUMNS)
    bias = tl.load(b + group * group_stride + program_columns(COLUMNS) * channel_stride)
    shift = (bias - centre)[None, :]
    first, end = slice_ends(slice_rows, M)
    for step in range(0, end - first, ROWS):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        z = tl.load(y + offsets, mask=inside).to(tl.float32) + shift
        tl.store(a + offsets, tl.where(z > 0, z, slope * z), mask=inside)


@jit
def leaky_gradient(da, a, offsets, inside, slope):
    """dz of a = leaky(z) from da. The slope is positive, so a tells z's sign."""
    gradient = tl.load(da + offsets, mask=inside, other=0.0).to(tl.float32)
    return tl.where(tl.load(a + offsets, mask=inside, other=0.0) > 0, gradient, slope * gradient)


@jit
def gradient_sums(
    partial, da, a, slope, M, slice_rows,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """partial[group, slice] = the sum of dz over the slice's rows."""
    group = tl.program_id(2).to(tl.int64)
    first, end = slice_ends(slice_rows, M)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        total += leaky_gradient(da, a, offsets, (rows < end)[:, None], slope)
    store_partial(partial, total, C, COLUMNS)


@jit
def gradient(
    partial, da, a, dy, db, slope, M, slice_rows,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICES: tl.constexpr, SLICES_P2: tl.constexpr,
):  # fmt: skip
    """dy = dz - mean of dz, for y reaches every output of its group through the mean; db = sum of dz."""
    group = tl.program_id(2).to(tl.int64)
    total = add_partials(partial, C, COLUMNS, SLICES, SLICES_P2)
    store_once(db, total, C, COLUMNS)
    centre = (total / M)[None, :]
    first, end = slice_ends(slice_rows, M)
    for step in range(0, end - first, ROWS):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        tl.store(dy + offsets, leaky_gradient(da, a, offsets, inside, slope) - centre, mask=inside)


@jit
def centred_leaky_pooled(
    partial, y, b, mask, pooled, code, mean, group_stride, channel_stride, slope, M, slice_rows,
    W: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICES: tl.constexpr, SLICES_P2: tl.constexpr,
):  # fmt: skip
    """pooled = max(leaky(y - mean + b)) * mask; code = which pixel won (0 to 3) + 4 if it was above zero.

    M counts pooled rows. What is added to y is the same for a whole channel and the leaky ReLU is increasing, so the
    largest y wins; a strict comparison leaves a tie to the first. (A NaN in y makes its channel's mean and so all of
    the channel NaN, whoever wins.)
    """
    group = tl.program_id(2).to(tl.int64)
    columns = program_columns(COLUMNS)
    centre = add_partials(partial, C, COLUMNS, SLICES, SLICES_P2) / (4 * M)
    store_once(mean, centre, C, COLUMNS)
    shift = (tl.load(b + group * group_stride + columns * channel_stride) - centre)[None, :]
    y += group * 4 * M * C
    first, end = slice_ends(slice_rows, M)
    for step in range(0, end - first, ROWS):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        largest = tl.load(y + block(corner(rows, 0, W), columns, C), mask=inside).to(tl.float32)
        winner = tl.zeros((ROWS, COLUMNS), tl.int32)
        for k in tl.static_range(1, 4):
            value = tl.load(y + block(corner(rows, k, W), columns, C), mask=inside).to(tl.float32)
            winner = tl.where(value > largest, k, winner)
            largest = tl.maximum(value, largest)
        z = largest + shift
        offsets = group * M * C + block(rows, columns, C)
        kept = tl.load(mask + offsets, mask=inside).to(tl.float32)
        tl.store(pooled + offsets, tl.where(z > 0, z, slope * z) * kept, mask=inside)
        tl.store(code + offsets, tl.where(z > 0, winner + 4, winner).to(tl.uint8), mask=inside)


@jit
def pooled_gradient(dp, mask, won, offsets, inside, slope):
    """dz of each window's winner from dp, the gradient of pooled = leaky(z) * mask."""
    kept = tl.load(mask + offsets, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(dp + offsets, mask=inside, other=0.0).to(tl.float32) * kept
    return tl.where(won >= 4, gradient, slope * gradient)


@jit
def pooled_gradient_sums(
    partial, dp, mask, code, slope, M, slice_rows,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """partial[group, slice] = the sum of dz over the slice's pooled rows: only winners have any."""
    group = tl.program_id(2).to(tl.int64)
    first, end = slice_ends(slice_rows, M)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        won = tl.load(code + offsets, mask=inside, other=0)
        total += pooled_gradient(dp, mask, won, offsets, inside, slope)
    store_partial(partial, total, C, COLUMNS)


@jit
def gradient_pooled(
    partial, dp, mask, code, dy, db, slope, M, slice_rows,
    W: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLICES: tl.constexpr, SLICES_P2: tl.constexpr,
):  # fmt: skip
    """dy = dz - mean of dz at each window's winner and - mean of dz at its other pixels; db = sum of dz."""
    group = tl.program_id(2).to(tl.int64)
    columns = program_columns(COLUMNS)
    total = add_partials(partial, C, COLUMNS, SLICES, SLICES_P2)
    store_once(db, total, C, COLUMNS)
    centre = (total / (4 * M))[None, :]
    dy += group * 4 * M * C
    first, end = slice_ends(slice_rows, M)
    for step in range(0, end - first, ROWS):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, columns, C)
        won = tl.load(code + offsets, mask=inside, other=0)
        dz = pooled_gradient(dp, mask, won, offsets, inside, slope)
        for k in tl.static_range(4):
            share = tl.where(won % 4 == k, dz, 0.0)
            tl.store(dy + block(corner(rows, k, W), columns, C), share - centre, mask=inside)
