"""The GPU kernels behind `shifted.py`, in Triton: there is what they compute, here how.

They go over the images once. On the way they add up what the next convolution will want to know of its input: for each
of its taps, the sum over all pixels that the tap meets. Tap (i, j) of a convolution of SIZE x SIZE with PAD pixels of
padding meets the lines i - PAD, ..., and of each the pixels j - PAD, ..., as many as there are outputs. So a program
stays on one line, and knows for all images at once which pixels of it a tap meets. The grid is

    (blocks of COLUMNS channels, lines and slices of `slice_images` images, groups)

and a program walks through the images of its slice, a line of PIXELS pixels at a time. What it finds in its line it
writes down; `add_lines` puts lines and slices together, always in the same order: the bits repeat from run to run.

Arithmetic is in float32 whatever the tensors are. What is added up are the numbers as they are stored, rounded.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# (a kernel's arguments are pointers and Triton's values; no Python type describes them)

from __future__ import annotations  # `tl` is named in signatures, and may be missing

from sntg.models.grid import AVAILABLE, block, jit, kernel, program_columns, store_partial

if AVAILABLE:
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@jit
def met(tap, length, SIZE: tl.constexpr, PAD: tl.constexpr):
    """The first line, or pixel of a line, that a tap meets, and the one after the last."""
    return tl.maximum(tap - PAD, 0), tl.minimum(tap + PAD + 1 - SIZE, 0) + length


@jit
def begin(n, W, slice_images, slices, PIXELS: tl.constexpr):
    """The program's line, the pixels of its block, which of them are in the line, its first image and the one after its
    last."""
    pixels = tl.arange(0, PIXELS)
    first = tl.program_id(1) % slices * slice_images
    return tl.program_id(1) // slices, pixels, (pixels < W)[:, None], first, tl.minimum(first + slice_images, n)


@jit
def line_start(image, line, n, H, W):
    """The number, over all groups and images, of the pixel that a line of an image begins with."""
    return ((tl.program_id(2).to(tl.int64) * n + image) * H + line) * W


@jit
def store_taps(
    partial, total, W, C, SIZE: tl.constexpr, PAD: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr
):
    """partial[j, group, line and slice] = the sum over the pixels that taps (., j) meet."""
    pixels = tl.arange(0, PIXELS)
    for j in tl.static_range(SIZE):
        first, end = met(j, W, SIZE, PAD)
        seen = ((pixels >= first) & (pixels < end))[:, None]
        store_partial(partial, j, tl.sum(tl.where(seen, total, 0.0), 0), C, COLUMNS)


@kernel
def add_lines(
    partial, sums, H, C, slices, SIZE: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """sums[group, tap] = the sum over the lines that the tap meets, of all images. Grid: (columns, taps, groups)."""
    tap, group, columns = tl.program_id(1), tl.program_id(2), program_columns(COLUMNS)
    first, end = met(tap // SIZE, H, SIZE, PAD)
    partial += (tap % SIZE * tl.num_programs(2) + group) * H * slices * C
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(first * slices, end * slices, ROWS):
        rows = start + tl.arange(0, ROWS)
        total += tl.load(partial + block(rows, columns, C), mask=(rows < end * slices)[:, None], other=0.0)
    tl.store(sums + (group * tl.num_programs(1) + tap) * C + columns, tl.sum(total, 0))


@kernel
def shifted_leaky(
    partial, y, shift, a, slope, n, H, W, C, slice_images, slices,
    SIZE: tl.constexpr, PAD: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """a = leaky(y + shift), and the taps' sums of a."""
    line, pixels, inside, first, end = begin(n, W, slice_images, slices, PIXELS)
    columns = program_columns(COLUMNS)
    shifts = tl.load(shift + tl.program_id(2) * C + columns)[None, :]
    total = tl.zeros((PIXELS, COLUMNS), tl.float32)
    for image in tl.range(first, end, num_stages=STAGES):
        offsets = block(line_start(image, line, n, H, W) + pixels, columns, C)
        z = tl.load(y + offsets, mask=inside).to(tl.float32) + shifts
        values = tl.where(z > 0, z, slope * z).to(a.dtype.element_ty)
        tl.store(a + offsets, values, mask=inside)
        total += values.to(tl.float32)
    store_taps(partial, total, W, C, SIZE, PAD, PIXELS, COLUMNS)


@jit
def window_start(image, line, n, H, W, pixels):
    """The first of the four pixels (0 1 / 2 3) that each pooled pixel of a line of H x W ones is the largest of."""
    return line_start(image, 2 * line, n, 2 * H, 2 * W) + 2 * pixels


@kernel
def shifted_leaky_pooled(
    partial, y, shift, mask, pooled, code, slope, n, H, W, C, slice_images, slices,
    SIZE: tl.constexpr, PAD: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """pooled = max(leaky(y + shift)) * mask, and the taps' sums of it; code = which pixel won (0 to 3) + 4 if it was
    above zero. H and W count pooled lines and pixels. The first of equal pixels wins."""
    line, pixels, inside, first, end = begin(n, W, slice_images, slices, PIXELS)
    columns = program_columns(COLUMNS)
    shifts = tl.load(shift + tl.program_id(2) * C + columns)[None, :]
    total = tl.zeros((PIXELS, COLUMNS), tl.float32)
    for image in tl.range(first, end, num_stages=STAGES):
        corner = window_start(image, line, n, H, W, pixels)
        largest = tl.load(y + block(corner, columns, C), mask=inside).to(tl.float32)
        winner = tl.zeros((PIXELS, COLUMNS), tl.int32)
        for k in tl.static_range(1, 4):
            at = block(corner + k // 2 * 2 * W + k % 2, columns, C)
            value = tl.load(y + at, mask=inside).to(tl.float32)
            winner = tl.where(value > largest, k, winner)
            largest = tl.maximum(value, largest, propagate_nan=tl.PropagateNan.ALL)  # as PyTorch's pooling does
        z = largest + shifts
        offsets = block(line_start(image, line, n, H, W) + pixels, columns, C)
        kept = tl.load(mask + offsets, mask=inside).to(tl.float32)
        values = (tl.where(z > 0, z, slope * z) * kept).to(pooled.dtype.element_ty)
        tl.store(pooled + offsets, values, mask=inside)
        tl.store(code + offsets, tl.where(z > 0, winner + 4, winner).to(tl.uint8), mask=inside)
        total += values.to(tl.float32)
    store_taps(partial, total, W, C, SIZE, PAD, PIXELS, COLUMNS)


@jit
def from_taps(
    d_sums, line, H, W, C, SIZE: tl.constexpr, PAD: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr
):
    """What the gradients of the taps' sums give to each pixel of a line: those of all taps that meet it."""
    columns, pixels = program_columns(COLUMNS), tl.arange(0, PIXELS)
    d_sums += tl.program_id(2) * SIZE * SIZE * C + columns
    given = tl.zeros((PIXELS, COLUMNS), tl.float32)
    for j in tl.static_range(SIZE):
        along = tl.zeros((COLUMNS,), tl.float32)
        for i in tl.static_range(SIZE):
            first, end = met(i, H, SIZE, PAD)
            gradient = tl.load(d_sums + (i * SIZE + j) * C)
            along += tl.where((line >= first) & (line < end), gradient, 0.0)
        first, end = met(j, W, SIZE, PAD)
        given += tl.where(((pixels >= first) & (pixels < end))[:, None], along[None, :], 0.0)
    return given


@kernel
def leaky_gradient(
    partial, da, d_sums, a, dy, slope, n, H, W, C, slice_images, slices,
    SIZE: tl.constexpr, PAD: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dy from the gradients of a and of its taps' sums; partial[0] = its sum, the gradient of the shift."""
    line, pixels, inside, first, end = begin(n, W, slice_images, slices, PIXELS)
    columns = program_columns(COLUMNS)
    given = from_taps(d_sums, line, H, W, C, SIZE, PAD, PIXELS, COLUMNS)
    total = tl.zeros((PIXELS, COLUMNS), tl.float32)
    for image in tl.range(first, end, num_stages=STAGES):
        offsets = block(line_start(image, line, n, H, W) + pixels, columns, C)
        gradient = tl.load(da + offsets, mask=inside).to(tl.float32) + given
        above = tl.load(a + offsets, mask=inside).to(tl.float32) > 0
        values = tl.where(above, gradient, slope * gradient).to(dy.dtype.element_ty)
        tl.store(dy + offsets, values, mask=inside)
        total += values.to(tl.float32)
    store_taps(partial, total, W, C, 1, 0, PIXELS, COLUMNS)


@kernel
def pooled_gradient(
    partial, dp, d_sums, mask, code, dy, slope, n, H, W, C, slice_images, slices,
    SIZE: tl.constexpr, PAD: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same behind a pooling: each window's winner has the gradient, the other three have none."""
    line, pixels, inside, first, end = begin(n, W, slice_images, slices, PIXELS)
    columns = program_columns(COLUMNS)
    given = from_taps(d_sums, line, H, W, C, SIZE, PAD, PIXELS, COLUMNS)
    total = tl.zeros((PIXELS, COLUMNS), tl.float32)
    for image in tl.range(first, end, num_stages=STAGES):
        offsets = block(line_start(image, line, n, H, W) + pixels, columns, C)
        gradient = tl.load(dp + offsets, mask=inside).to(tl.float32) + given
        gradient *= tl.load(mask + offsets, mask=inside).to(tl.float32)
        won = tl.load(code + offsets, mask=inside)
        values = tl.where(won >= 4, gradient, slope * gradient).to(dy.dtype.element_ty)
        corner = window_start(image, line, n, H, W, pixels)
        for k in tl.static_range(4):
            at = block(corner + k // 2 * 2 * W + k % 2, columns, C)
            tl.store(dy + at, tl.where(won % 4 == k, values, 0.0), mask=inside)
        total += values.to(tl.float32)
    store_taps(partial, total, W, C, 1, 0, PIXELS, COLUMNS)
