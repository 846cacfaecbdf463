"""The fused kernels against plain PyTorch in float64: on a GPU where there is one, else in Triton's interpreter.

The interpreter runs kernels on a CPU, but is chosen for a whole process before Triton is imported. So one test here
runs this file again in a process of its own, with the interpreter and small shapes.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from sntg.models import fused, kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
SLOPE = 0.1
CLEAR = 1e-5  # pre-activations nearer to zero than this may fall on either side of it in float32

SMALL = [(1, 3, 32, 4, 4), (2, 3, 64, 6, 6), (2, 11, 32, 4, 8), (1, 5, 96, 2, 2)]  # 11 * 4 * 8: three uneven slices
REAL = [
    (2, 100, 128, 32, 32),
    (2, 100, 256, 16, 16),
    (2, 100, 512, 6, 6),
    (1, 128, 128, 32, 32),
    (1, 32, 256, 6, 6),
    (2, 7, 96, 10, 6),
]
needs_kernels = pytest.mark.skipif(
    not (kernels.AVAILABLE and (INTERPRETED or torch.cuda.is_available())),
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
)
each_shape = pytest.mark.parametrize("shape", SMALL if INTERPRETED else REAL, ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)


def channels_last(x):
    return x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def is_channels_last(x):
    return x.permute(0, 1, 3, 4, 2).is_contiguous()


def random_layer(shape, dtype=torch.float32, seed=0):
    """y, b and a dropout mask of half the height and width. Means are far from zero, so that forgetting them shows."""
    groups, n, C, H, W = shape
    generator = torch.Generator(DEVICE).manual_seed(seed)
    y = torch.randn(shape, generator=generator, device=DEVICE)
    y += 2 * torch.randn((groups, 1, C, 1, 1), generator=generator, device=DEVICE)
    b = torch.randn((groups, C), generator=generator, device=DEVICE)
    mask = 2 * torch.randint(2, (groups, n, C, H // 2, W // 2), generator=generator, device=DEVICE)
    return channels_last(y.to(dtype)).requires_grad_(), b.requires_grad_(), channels_last(mask.to(dtype))


def reference(y, b, mask=None):
    """(the layer, its mean, the pre-activation), in the precision of y."""
    mean = y.mean((1, 3, 4), keepdim=True)
    z = y - mean + b[:, None, :, None, None]
    a = F.leaky_relu(z, SLOPE)
    if mask is not None:
        a = F.max_pool2d(a.flatten(0, 1), 2).unflatten(0, y.shape[:2]) * mask
    return a, mean[:, 0, :, 0, 0], z


def layer(y, b, mask=None):
    return fused.centred_leaky(y, b, SLOPE) if mask is None else fused.centred_leaky_pooled(y, b, mask, SLOPE)


def gradients(a, y, b, seed=1):
    da = torch.randn(a.shape, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE)
    return torch.autograd.grad(a, (y, b), channels_last(da.to(y.dtype).to(a.dtype)))


def compare(y, b, mask=None):
    """Values, mean and gradients are those of the reference in float64, up to the rounding of y's dtype."""
    a, mean = layer(y, b, mask)
    dy, db = gradients(a, y, b)
    exact_y, exact_b = y.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    exact, exact_mean, z = reference(exact_y, exact_b, None if mask is None else mask.double())
    da = torch.randn(a.shape, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE).to(y.dtype)
    exact_dy, exact_db = torch.autograd.grad(exact, (exact_y, exact_b), da.double())

    assert (a.dtype, dy.dtype, mean.dtype, db.dtype) == (y.dtype, y.dtype, torch.float32, torch.float32)
    rounding = {"rtol": 1.01 * torch.finfo(y.dtype).eps, "atol": 1e-5}  # of a whole unit: the interpreter truncates
    summing = {"rtol": 1e-4, "atol": 1e-4 * (y[0].numel() / y.shape[2]) ** 0.5}
    torch.testing.assert_close(a.double(), exact, **rounding)
    torch.testing.assert_close(mean.double(), exact_mean, rtol=1e-5, atol=1e-5)
    clear = z.abs() > CLEAR
    torch.testing.assert_close(dy.double()[clear], exact_dy[clear], **rounding)
    torch.testing.assert_close(db.double(), exact_db, **summing)


@needs_kernels
@each_dtype
@each_shape
def test_values_and_gradients_are_those_of_float64(shape, dtype):
    y, b, _ = random_layer(shape, dtype)
    compare(y, b)


@needs_kernels
@each_dtype
@each_shape
def test_pooled_values_and_gradients_are_those_of_float64(shape, dtype):
    compare(*random_layer(shape, dtype))


@needs_kernels
def test_the_gradient_at_zero_is_the_slopes():
    y = channels_last(torch.full((1, 2, 32, 4, 4), 3.0, device=DEVICE)).requires_grad_()
    b = torch.zeros(1, 32, device=DEVICE, requires_grad=True)
    da = torch.arange(y.numel(), device=DEVICE).reshape(y.shape).float()
    a, _ = fused.centred_leaky(y, b, SLOPE)
    dy, db = torch.autograd.grad(a, (y, b), da)
    assert (a == 0).all()
    torch.testing.assert_close(db, SLOPE * da.sum((1, 3, 4)))
    torch.testing.assert_close(dy, SLOPE * (da - da.mean((1, 3, 4), keepdim=True)))
    pooled, _ = fused.centred_leaky_pooled(y, b, torch.ones_like(da[..., ::2, ::2]), SLOPE)
    (db,) = torch.autograd.grad(pooled, b, da[..., ::2, ::2])
    torch.testing.assert_close(db, SLOPE * da[..., ::2, ::2].sum((1, 3, 4)))


@needs_kernels
@each_dtype
def test_the_first_of_equal_pixels_wins(dtype):
    y, b, mask = random_layer((2, 4, 32, 8, 8), dtype)
    y = channels_last(y.detach().round().clamp(0, 1)).requires_grad_()  # of two values: ties in almost every window
    compare(y, b, mask)


@needs_kernels
@pytest.mark.parametrize("pool", [False, True])
def test_groups_do_not_mix(pool):
    y, b, mask = random_layer((3, 5, 32, 4, 4))
    mask = mask if pool else None
    a, mean = layer(y, b, mask)
    dy, db = gradients(a, y, b)
    changed = y.detach().clone()
    changed[1] = 7.0
    changed.requires_grad_()
    other_a, other_mean = layer(changed, b, mask)
    other_dy, other_db = gradients(other_a, changed, b)
    for before, after in ((a, other_a), (mean, other_mean), (dy, other_dy), (db, other_db)):
        assert torch.equal(before[0], after[0])
        assert not torch.equal(before[1], after[1])
        assert torch.equal(before[2], after[2])


@needs_kernels
@pytest.mark.parametrize("pool", [False, True])
def test_results_are_channels_last_whatever_comes_in(pool):
    y, b, mask = random_layer((2, 3, 32, 4, 6))
    a, _ = layer(y, b, mask if pool else None)
    rows = y.detach().contiguous().requires_grad_()
    b_columns = b.detach().T.contiguous().T.requires_grad_()
    again, _ = layer(rows, b_columns, mask.contiguous() if pool else None)
    assert is_channels_last(a)
    assert torch.equal(a, again)
    da = torch.randn(a.shape, device=DEVICE)
    expected = torch.autograd.grad(a, (y, b), channels_last(da))
    found = torch.autograd.grad(again, (rows, b_columns), da)
    assert is_channels_last(expected[0])
    assert all(torch.equal(x, y) for x, y in zip(expected, found, strict=True))


@needs_kernels
def test_a_bias_shared_by_the_groups_gets_the_sum_of_their_gradients():
    y, b, _ = random_layer((2, 3, 32, 4, 4))
    own = b.detach()[:1].expand(2, -1).clone().requires_grad_()
    shared = b.detach()[0].clone().requires_grad_()
    a, _ = fused.centred_leaky(y, own, SLOPE)
    again, _ = fused.centred_leaky(y, shared.expand(2, -1), SLOPE)
    assert torch.equal(a, again)
    torch.testing.assert_close(gradients(again, y, shared)[1], gradients(a, y, own)[1].sum(0))


@needs_kernels
@pytest.mark.parametrize("pool", [False, True])
def test_no_gradient_flows_through_the_mean(pool):
    y, b, mask = random_layer((1, 3, 32, 4, 4))
    a, mean = layer(y, b, mask if pool else None)
    assert a.requires_grad
    assert not mean.requires_grad


@needs_kernels
@pytest.mark.parametrize("pool", [False, True])
def test_the_bits_repeat(pool):
    y, b, mask = random_layer(SMALL[2] if INTERPRETED else REAL[0], torch.bfloat16)
    passes = []
    for _ in range(2):
        a, mean = layer(y, b, mask if pool else None)
        passes.append((a, mean, *gradients(a, y, b)))
    assert all(torch.equal(x, y) for x, y in zip(*passes, strict=True))


@needs_kernels
@pytest.mark.parametrize("backend", ["aot_eager"] if INTERPRETED else ["aot_eager", "inductor"])
def test_a_compiled_network_does_what_the_network_does(backend):
    """Two groups of images through convolution, layer, convolution, pooled layer, forward and backward."""
    _, b, mask = random_layer((2, 3, 32, 6, 6))
    images = torch.randn(6, 32, 6, 6, device=DEVICE).to(memory_format=torch.channels_last).requires_grad_()
    weight = (torch.randn(32, 32, 3, 3, device=DEVICE) / 17).to(memory_format=torch.channels_last).requires_grad_()

    def network(x):
        y = F.conv2d(x, weight, padding=1).unflatten(0, (2, 3))
        a, first = fused.centred_leaky(y, b, SLOPE)
        y = F.conv2d(a.flatten(0, 1), weight, padding=1).unflatten(0, (2, 3))
        p, second = fused.centred_leaky_pooled(y, b, mask, SLOPE)
        return p.square().sum(), first, second

    def passes(function):
        loss, first, second = function(images)
        return loss, first, second, *torch.autograd.grad(loss, (images, weight, b))

    found = passes(torch.compile(network, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, passes(network), rtol=1e-3, atol=1e-3)


@needs_kernels
def test_the_operators_keep_pytorchs_rules():
    """Their fakes have the shapes and strides of the results, and gradients are the same traced and not."""
    y, b, mask = random_layer((2, 2, 32, 4, 4))
    a, _ = fused.centred_leaky(y, b, SLOPE)
    p, _, code = torch.ops.sntg.centred_leaky_pooled(y, b, mask, SLOPE)
    torch.library.opcheck(fused.leaky, (y, b, SLOPE))
    torch.library.opcheck(fused.pooled, (y, b, mask, SLOPE))
    torch.library.opcheck(fused.leaky_backward, (a.detach(), a.detach(), SLOPE))
    torch.library.opcheck(fused.pooled_backward, (p.detach(), mask, code, SLOPE))


@needs_kernels
@pytest.mark.skipif(INTERPRETED, reason="too large for the interpreter")
def test_offsets_beyond_32_bits():
    """2,200 images of 32 x 32 with 1024 channels: 2.3e9 numbers in a group, of which the last are looked at."""
    if torch.cuda.get_device_properties(0).total_memory < 32 * 2**30:
        pytest.skip("needs 32 GiB on the GPU")
    y = torch.empty(1, 2200, 32, 32, 1024, dtype=torch.bfloat16, device=DEVICE).normal_().permute(0, 1, 4, 2, 3)
    b = torch.zeros(1, 1024, device=DEVICE)
    a, mean = fused.centred_leaky(y, b, SLOPE)
    last = F.leaky_relu(y[:, -1].float() - mean[..., None, None], SLOPE)
    torch.testing.assert_close(a[:, -1].float(), last, rtol=1e-2, atol=1e-2)
    p, _ = fused.centred_leaky_pooled(y, b, torch.ones_like(a[..., :16, :16]), SLOPE)
    torch.testing.assert_close(p[:, -1].float(), F.max_pool2d(last, 2), rtol=1e-2, atol=1e-2)


def test_images_elsewhere_than_on_a_gpu_are_not_fused():
    assert not fused.can_fuse(torch.zeros(2, 3, 32, 4, 4), 32)


@pytest.mark.parametrize(
    ("dtype", "channels", "fits"),
    [
        (torch.bfloat16, 32, True),
        (torch.float16, 96, True),
        (torch.float32, 128, True),
        (torch.float64, 32, False),  # the kernels compute in float32
        (torch.bfloat16, 48, False),
    ],
    ids=str,
)
def test_which_images_on_a_gpu_are_fused(dtype, channels, fits):
    with FakeTensorMode():
        x = torch.empty(2, 3, 32, 4, 4, dtype=dtype, device="cuda")
        assert fused.can_fuse(x, channels) == (fits and kernels.AVAILABLE)


@pytest.mark.parametrize("reads", [1, 2, 4])
@each_dtype
@pytest.mark.parametrize("shape", SMALL + REAL, ids=str)
def test_every_row_has_a_program_and_every_program_a_row(shape, dtype, reads):
    groups, n, C, H, W = shape
    launch = fused.Launch.over(torch.empty((groups, n, H, W, C), dtype=dtype, device="meta"), reads)
    across, slices, depth = launch.grid
    sizes = launch.sizes
    assert (across * sizes["COLUMNS"], depth, sizes["M"]) == (C, groups, n * H * W)
    assert (slices - 1) * sizes["slice_rows"] < sizes["M"] <= slices * sizes["slice_rows"]
    assert slices <= fused.MOST_SLICES
    for block in (sizes["ROWS"], sizes["COLUMNS"]):
        assert block & (block - 1) == 0  # Triton's blocks are powers of two


def release(module):
    return tuple(int(number) for number in module.__version__.split(".")[:2])


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's run")
def test_all_of_this_in_the_interpreter():
    triton = pytest.importorskip("triton")
    if release(triton) < (3, 7) and release(np) >= (2, 4):
        pytest.skip("Triton's interpreter runs with NumPy 2.4 from Triton 3.7 on")
    command = [sys.executable, "-m", "pytest", "--noconftest", "--quiet", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
