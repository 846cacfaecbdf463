"""The GPU kernels behind `fused.py`, in Triton: there is what they compute, here how, in `grid.py` on what grid.

A layer normalises the output y of its convolution over the rows of a group, and applies the leaky ReLU:

    z = (y - mean) * scale + b,     scale = g / sqrt(variance + eps),
    a = leaky(z).

With x^ = (y - mean) / sqrt(variance + eps) the derivative of z in y is the matrix

    B = scale * (1 - mean of - x^ * mean of x^ times),

which is symmetric. So the tangent of a layer, slope * (B t), and its gradient, B (slope * da), are one kernel: PUSH
says whether the slope, that of the leaky ReLU at z, comes after or before. Both need two sums over the group.

Arithmetic is in float32 whatever the tensors are.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# (a kernel's arguments are pointers and Triton's values; no Python type describes them)

from __future__ import annotations  # `tl` is named in signatures, and may be missing

from sntg.models.grid import (
    AVAILABLE,
    add_moments,
    add_partials,
    batch_groups,
    block,
    corner,
    from_the_end,
    jit,
    kernel,
    load_kind,
    program_columns,
    slice_ends,
    store_once,
    store_partial,
)

if AVAILABLE:
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@kernel
def moments(
    partial, y, M, C, slice_rows,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """partial[:, group, slice] = the mean of y over the slice's rows, and its summed squared deviation.

    What is added up is y minus the slice's first row: the squares of a y that varies little, far from zero,
    would leave nothing of the variance when the mean's is taken off.
    """
    columns = program_columns(COLUMNS)
    y += tl.program_id(2).to(tl.int64) * M * C
    first, end = slice_ends(slice_rows, M)
    pivot = tl.load(y + first * C + columns).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(first, end, ROWS, num_stages=STAGES):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        values = tl.load(y + block(rows, columns, C), mask=inside, other=0.0).to(tl.float32)
        values = tl.where(inside, values - pivot[None, :], 0.0)
        squares += values * values
        total += values
    n = (end - first).to(tl.float32)
    off = tl.sum(total, 0) / n
    store_partial(partial, 0, pivot + off, C, COLUMNS)
    store_partial(partial, 1, tl.sum(squares, 0) - n * off * off, C, COLUMNS)


@jit
def begin_layer(
    partial, g, b, channels, g_group, g_channel, b_group, b_channel, eps, M, C, slices, first,
    COLUMNS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """scale and shift of each channel's z = scale * y + shift, as rows: no more, for a thread holds eight channels'.

    What derivatives need is kept in `channels`: mean, variance, 1 / deviation, scale and shift.
    """
    group, columns = tl.program_id(2).to(tl.int64), program_columns(COLUMNS)
    mean, variance = add_moments(partial, M, C, slices, first, COLUMNS, MOST)
    bias = tl.load(b + group * b_group + columns * b_channel)
    gain = tl.load(g + group * g_group + columns * g_channel)
    inverse = 1 / tl.sqrt(variance + eps)
    scale = gain * inverse
    shift = bias - mean * scale
    store_once(channels, 0, mean, C, COLUMNS)
    store_once(channels, 1, variance, C, COLUMNS)
    store_once(channels, 2, inverse, C, COLUMNS)
    store_once(channels, 3, scale, C, COLUMNS)
    store_once(channels, 4, shift, C, COLUMNS)
    return scale[None, :], shift[None, :]


@kernel
def normalised_leaky(
    partial, y, g, b, a, channels, g_group, g_channel, b_group, b_channel, slope, eps, M, C, slice_rows, slices, first,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """a = leaky(z)."""
    scale, shift = begin_layer(
        partial, g, b, channels, g_group, g_channel, b_group, b_channel, eps, M, C, slices, first, COLUMNS, MOST
    )
    group = tl.program_id(2).to(tl.int64)
    first, end = slice_ends(slice_rows, M)
    for step in tl.range(0, end - first, ROWS, num_stages=STAGES):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        z = tl.load(y + offsets, mask=inside).to(tl.float32) * scale + shift
        tl.store(a + offsets, tl.where(z > 0, z, slope * z), mask=inside)


@kernel
def normalised_leaky_pooled(
    partial, y, g, b, mask, pooled, code, channels, g_group, g_channel, b_group, b_channel, slope, eps,
    M, C, slice_rows, slices, first,
    W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """pooled = max(leaky(z)) * mask; code = which pixel won (0 to 3) + 4 if its z was above zero.

    M counts pooled rows. The leaky ReLU is increasing, so the largest z wins (not the largest y: g may be negative); a
    strict comparison leaves a tie to the first.
    """
    scale, shift = begin_layer(
        partial, g, b, channels, g_group, g_channel, b_group, b_channel, eps,
        4 * M, C, slices, first, COLUMNS, MOST,
    )  # fmt: skip
    group, columns = tl.program_id(2).to(tl.int64), program_columns(COLUMNS)
    y += group * 4 * M * C
    first, end = slice_ends(slice_rows, M)
    for step in tl.range(0, end - first, ROWS, num_stages=STAGES):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        largest = tl.load(y + block(corner(rows, 0, W), columns, C), mask=inside).to(tl.float32) * scale
        winner = tl.zeros((ROWS, COLUMNS), tl.int32)
        for k in tl.static_range(1, 4):
            value = tl.load(y + block(corner(rows, k, W), columns, C), mask=inside).to(tl.float32) * scale
            winner = tl.where(value > largest, k, winner)
            largest = tl.maximum(value, largest, propagate_nan=tl.PropagateNan.ALL)  # as PyTorch's pooling does
        z = largest + shift
        offsets = group * M * C + block(rows, columns, C)
        kept = tl.load(mask + offsets, mask=inside).to(tl.float32)
        tl.store(pooled + offsets, tl.where(z > 0, z, slope * z) * kept, mask=inside)
        tl.store(code + offsets, tl.where(z > 0, winner + 4, winner).to(tl.uint8), mask=inside)


@jit
def load_line(channels, C, COLUMNS: tl.constexpr):
    """scale and shift of each channel, as rows."""
    return load_kind(channels, 3, C, COLUMNS)[None, :], load_kind(channels, 4, C, COLUMNS)[None, :]


@jit
def sloped(values, y, scale, shift, slope):
    """The values times the leaky ReLU's slope at z."""
    return tl.where(y * scale + shift > 0, values, slope * values)


@jit
def store_sums(partial, of_t, of_yt, channels, C, COLUMNS: tl.constexpr):
    """Stores the slice's sums of t and of x^ t = (y - mean) t / deviation, from those of t and y t."""
    store_partial(partial, 0, of_t, C, COLUMNS)
    centred = of_yt - load_kind(channels, 0, C, COLUMNS) * of_t
    store_partial(partial, 1, centred * load_kind(channels, 2, C, COLUMNS), C, COLUMNS)


@kernel
def linear_sums(
    partial, t, y, channels, slope, M, C, slice_rows,
    PUSH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """partial[:, group, slice] = the sums of t and of x^ t over the slice's rows; slope * t if not PUSH."""
    scale, shift = load_line(channels, C, COLUMNS)
    group = tl.program_id(2).to(tl.int64)
    first, end = slice_ends(slice_rows, M)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    along = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(first, end, ROWS, num_stages=STAGES):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        values = tl.load(t + offsets, mask=inside, other=0.0).to(tl.float32)
        saw = tl.load(y + offsets, mask=inside, other=0.0).to(tl.float32)
        if not PUSH:
            values = sloped(values, saw, scale, shift, slope)
        total += values
        along += values * saw
    store_sums(partial, tl.sum(total, 0), tl.sum(along, 0), channels, C, COLUMNS)


@jit
def begin_linear(partial, channels, sums, M, C, slices, first, COLUMNS: tl.constexpr, MOST: tl.constexpr):
    """scale and shift of z, lean and rest of B t = scale * t + lean * y + rest, all as rows.

    Stores the sums, an equal share for each of the batch's groups.
    """
    scale, shift = load_line(channels, C, COLUMNS)
    _, count = batch_groups(first)
    rows = count * M
    total = add_partials(partial, 0, C, slices, first, COLUMNS, MOST)
    along = add_partials(partial, 1, C, slices, first, COLUMNS, MOST)
    store_once(sums, 0, total / count, C, COLUMNS)
    store_once(sums, 1, along / count, C, COLUMNS)
    lean = (-along / rows * load_kind(channels, 2, C, COLUMNS))[None, :] * scale
    rest = (-total / rows)[None, :] * scale - lean * load_kind(channels, 0, C, COLUMNS)[None, :]
    return scale, shift, lean, rest


@jit
def through_b(t, y, scale, lean, rest):
    """B t."""
    return t * scale + (y * lean + rest)


@kernel
def linear(
    partial, t, y, channels, result, sums, slope, M, C, slice_rows, slices, first,
    PUSH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """result = slope * (B t) if PUSH, else B (slope * t); then `sums` are the gradients of b and g."""
    scale, shift, lean, rest = begin_linear(partial, channels, sums, M, C, slices, first, COLUMNS, MOST)
    group = tl.program_id(2).to(tl.int64)
    first, end = slice_ends(slice_rows, M)
    for step in tl.range(0, end - first, ROWS, num_stages=STAGES):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        values = tl.load(t + offsets, mask=inside, other=0.0).to(tl.float32)
        saw = tl.load(y + offsets, mask=inside, other=0.0).to(tl.float32)
        if PUSH:
            values = sloped(through_b(values, saw, scale, lean, rest), saw, scale, shift, slope)
        else:
            values = through_b(sloped(values, saw, scale, shift, slope), saw, scale, lean, rest)
        tl.store(result + offsets, values, mask=inside)


@jit
def winner_of(images, won, rows, inside, C, W: tl.constexpr, COLUMNS: tl.constexpr):
    """What the winner of each window has in the images. (All four are read: neighbouring channels differ.)"""
    columns = program_columns(COLUMNS)
    winner = tl.load(images + block(corner(rows, 0, W), columns, C), mask=inside, other=0.0).to(tl.float32)
    for k in tl.static_range(1, 4):
        value = tl.load(images + block(corner(rows, k, W), columns, C), mask=inside, other=0.0).to(tl.float32)
        winner = tl.where(won % 4 == k, value, winner)
    return winner


@kernel
def pooled_push(
    partial, t, y, mask, code, channels, result, sums, slope, M, C, slice_rows, slices, first,
    W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """result = slope * (B t) * mask of each window's winner. M counts pooled rows."""
    scale, _, lean, rest = begin_linear(partial, channels, sums, 4 * M, C, slices, first, COLUMNS, MOST)
    group = tl.program_id(2).to(tl.int64)
    t += group * 4 * M * C
    y += group * 4 * M * C
    first, end = slice_ends(slice_rows, M)
    for step in tl.range(0, end - first, ROWS, num_stages=STAGES):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        won = tl.load(code + offsets, mask=inside, other=0)
        values = winner_of(t, won, rows, inside, C, W, COLUMNS)
        saw = winner_of(y, won, rows, inside, C, W, COLUMNS)
        values = through_b(values, saw, scale, lean, rest)
        values *= tl.load(mask + offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + offsets, tl.where(won >= 4, values, slope * values), mask=inside)


@jit
def pooled_gradient(dp, mask, won, offsets, inside, slope):
    """dz of each window's winner from dp, the gradient of pooled = leaky(z) * mask."""
    kept = tl.load(mask + offsets, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(dp + offsets, mask=inside, other=0.0).to(tl.float32) * kept
    return tl.where(won >= 4, gradient, slope * gradient)


@kernel
def pooled_pull_sums(
    partial, dp, y, mask, code, channels, slope, M, C, slice_rows,
    W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """partial[:, group, slice] = the sum of dz over the slice's pooled rows (only winners have any) and of x^ dz."""
    group = tl.program_id(2).to(tl.int64)
    y += group * 4 * M * C
    first, end = slice_ends(slice_rows, M)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    along = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(first, end, ROWS, num_stages=STAGES):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, program_columns(COLUMNS), C)
        won = tl.load(code + offsets, mask=inside, other=0)
        dz = pooled_gradient(dp, mask, won, offsets, inside, slope)
        total += dz
        along += dz * winner_of(y, won, rows, inside, C, W, COLUMNS)
    store_sums(partial, tl.sum(total, 0), tl.sum(along, 0), channels, C, COLUMNS)


@kernel
def pooled_pull(
    partial, dp, y, mask, code, channels, dy, sums, slope, M, C, slice_rows, slices, first,
    W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """dy = B dz, where only the winner of each window has a dz; `sums` are the gradients of b and g."""
    scale, _, lean, rest = begin_linear(partial, channels, sums, 4 * M, C, slices, first, COLUMNS, MOST)
    group, columns = tl.program_id(2).to(tl.int64), program_columns(COLUMNS)
    dy += group * 4 * M * C
    y += group * 4 * M * C
    first, end = slice_ends(slice_rows, M)
    for step in tl.range(0, end - first, ROWS, num_stages=STAGES):
        rows = from_the_end(step, first, end, ROWS) + tl.arange(0, ROWS)
        inside = (rows < end)[:, None]
        offsets = group * M * C + block(rows, columns, C)
        won = tl.load(code + offsets, mask=inside, other=0)
        dz = pooled_gradient(dp, mask, won, offsets, inside, slope)
        for k in tl.static_range(4):
            corners = block(corner(rows, k, W), columns, C)
            saw = tl.load(y + corners, mask=inside, other=0.0).to(tl.float32)
            values = through_b(tl.where(won % 4 == k, dz, 0.0), saw, scale, lean, rest)
            tl.store(dy + corners, values, mask=inside)
