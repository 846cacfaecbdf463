"""The GPU kernels behind `means.py`, in Triton: there is what they compute, here how.

V lies in memory as (outputs, C, TAPS). What a convolution reads, on the tensor cores, is (outputs, TAPS, C) in the
run's precision: a row of K = TAPS * C numbers for each output, and zeros up to `length`. The sums of a group are a row
of that order, too. A program has one row, whole, and adds up in a fixed order: the bits repeat from run to run.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# (a kernel's arguments are pointers and Triton's values; no Python type describes them)

from __future__ import annotations  # `tl` is named in signatures, and may be missing

from sntg.models.grid import AVAILABLE, block, kernel, program_columns

if AVAILABLE:
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@kernel
def mean_only_layer(
    V, g, b, sums, weight, shift, mean, norms, C, groups, pixels, length, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    """weight = g V / ||V||; of each group the mean, the rounded weight times its sums, and shift = b - mean."""
    output, outputs, K = tl.program_id(0), tl.num_programs(0), TAPS * C
    places = tl.arange(0, BLOCK)
    inside = places < K
    v = tl.load(V + output * K + places % C * TAPS + places // C, mask=inside, other=0.0)
    norm = tl.sqrt(tl.sum(v * v, 0))
    row = (v * (tl.load(g + output) / norm)).to(weight.dtype.element_ty)
    tl.store(norms + output, norm)
    tl.store(weight + output * length + places, row, mask=places < length)
    bias = tl.load(b + output)
    for group in range(groups):
        met = tl.load(sums + group * K + places, mask=inside, other=0.0)
        value = tl.sum(row.to(tl.float32) * met, 0) / pixels
        tl.store(mean + group * outputs + output, value)
        tl.store(shift + group * outputs + output, bias - value)


@kernel
def parameters_gradient(
    d_weight, d_shift, V, g, sums, norms, dV, dg, db, C, groups, pixels, length,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dV, dg and db. The weight has a gradient of its own, and from each group's mean its share in it, the sums.

    Here a program's numbers are in V's order, so that dV is written as it lies in memory.
    """
    output, outputs, K = tl.program_id(0), tl.num_programs(0), TAPS * C
    numbers = tl.arange(0, BLOCK)
    inside = numbers < K
    places = numbers % TAPS * C + numbers // TAPS
    gradient = tl.load(d_weight + output * length + places, mask=inside, other=0.0).to(tl.float32)
    of_bias = 0.0
    for group in range(groups):
        of_shift = tl.load(d_shift + group * outputs + output)
        gradient -= of_shift / pixels * tl.load(sums + group * K + places, mask=inside, other=0.0)
        of_bias += of_shift
    tl.store(db + output, of_bias)
    norm = tl.load(norms + output)
    direction = tl.load(V + output * K + numbers, mask=inside, other=0.0) / norm
    along = tl.sum(gradient * direction, 0)
    tl.store(dg + output, along)
    across = tl.load(g + output) / norm * (gradient - along * direction)
    tl.store(dV + output * K + numbers, across, mask=inside)


@kernel
def sums_gradient(d_shift, weight, d_sums, outputs, K, length, pixels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """d_sums[group], each output's weight times minus the gradient of its shift. Programs: (columns, groups)."""
    columns, group = program_columns(COLUMNS), tl.program_id(1)
    inside = columns < K
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, outputs, ROWS):
        rows = start + tl.arange(0, ROWS)
        there = rows < outputs
        of_weight = tl.load(weight + block(rows, columns, length), mask=there[:, None] & inside[None, :], other=0.0)
        of_shift = tl.load(d_shift + group * outputs + rows, mask=there, other=0.0)
        total -= of_weight.to(tl.float32) * of_shift[:, None]
    tl.store(d_sums + group * K + columns, tl.sum(total, 0) / pixels, mask=inside)
