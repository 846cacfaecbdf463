"""The kernels of mean-only layers against plain PyTorch in float64: on a GPU, else in Triton's interpreter.

The interpreter runs kernels on a CPU, but is chosen for a whole process before Triton is imported. So one test here
runs this file again in a process of its own, with the interpreter and small shapes.
"""

from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from channels_last import channels_last, cotangent, is_channels_last
from interpreter import DEVICE, INTERPRETED, needs_kernels, run_in_interpreter

from sntg.models import NORMALISATIONS, SmallNet, convolutions, shifted, stack, two_batches, use_precision
from sntg.models.means import NO_TAPS, Taps, tap_sums

SLOPE = 0.1
CLEAR = 1e-5  # pre-activations nearer to zero than this may fall on either side of it in float32

SMALL = [(1, 3, 64, 4, 4), (2, 9, 32, 2, 10), (1, 5, 96, 4, 2)]
REAL = [
    (2, 100, 128, 32, 32),
    (2, 100, 256, 16, 16),
    (1, 100, 512, 6, 6),
    (2, 33, 96, 28, 28),
    (2, 7, 32, 10, 130),
]
each_shape = pytest.mark.parametrize("shape", SMALL if INTERPRETED else REAL, ids=str)
SAME = Taps(3, 1)
each_taps = pytest.mark.parametrize("taps", [SAME, Taps(3, 0), Taps(1, 0), Taps(5, 2), NO_TAPS], ids=str)
each_pool = pytest.mark.parametrize("pool", [False, True], ids=["", "pooled"])
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)


def random_layer(shape, dtype=torch.float32, pool=False, seed=0):
    """y, the shift, and where it is pooled a dropout mask of half the height and width."""
    groups, n, C, H, W = shape
    generator = torch.Generator(DEVICE).manual_seed(seed)
    y = torch.randn(shape, generator=generator, device=DEVICE) + 0.3
    shift = torch.randn(groups, C, generator=generator, device=DEVICE).requires_grad_()
    mask = 2 * torch.randint(2, (groups, n, C, H // 2, W // 2), generator=generator, device=DEVICE)
    return channels_last(y.to(dtype)).requires_grad_(), shift, channels_last(mask.to(dtype)) if pool else None


def layer(y, shift, mask=None, taps=SAME):
    if mask is None:
        return shifted.shifted_leaky(y, shift, SLOPE, taps)
    return shifted.shifted_leaky_pooled(y, shift, mask, SLOPE, taps)


def reference(y, shift, mask=None):
    """(the layer, which outputs are surely on the right side of zero and have the right winner)."""
    z = y + shift[:, None, :, None, None]
    a, sure = F.leaky_relu(z, SLOPE), z.abs() > CLEAR
    if mask is None:
        return a, sure
    windows, sure = (t.detach().unfold(-2, 2, 2).unfold(-2, 2, 2).flatten(-2) for t in (z, sure))
    first, second = windows.topk(2, -1).values.unbind(-1)
    sure = sure.all(-1) & ((first - second > CLEAR) | (first == second))
    return F.max_pool2d(a.flatten(0, 1), 2).unflatten(0, y.shape[:2]) * mask, sure


def spread(d_sums, like, taps):
    """The gradient of images from that of their sums: each pixel has that of every tap that meets it."""
    H, W = like.shape[-2:]
    lines, pixels = (taps.met(length, like.device).double() for length in (H, W))
    by_tap = d_sums.double().unflatten(1, (taps.size, taps.size))
    return torch.einsum("gijc,ih,jw->gchw", by_tap, lines, pixels)[:, None]


def compare(shape, taps, dtype, pool):
    """Values, sums and gradients are those of the reference in float64, up to y's rounding."""
    y, shift, mask = random_layer(shape, dtype, pool)
    done = layer(y, shift, mask, taps)
    exact_y, exact_shift = (t.detach().double().requires_grad_() for t in (y, shift))
    a, sure = reference(exact_y, exact_shift, None if mask is None else mask.double())
    many = (a[0].numel() / a.shape[2]) ** 0.5
    rounding = 1.01 * torch.finfo(dtype).eps  # of a whole unit: the interpreter truncates
    assert done.output.dtype == dtype
    assert (done.sums.shape, done.sums.dtype) == ((shape[0], taps.size**2, shape[2]), torch.float32)
    torch.testing.assert_close(done.output.double(), a, rtol=rounding, atol=1e-5)
    torch.testing.assert_close(done.sums, tap_sums(done.output, taps), rtol=1e-5, atol=1e-5 * many)  # as rounded

    da, d_sums = cotangent(a, dtype), torch.randn_like(done.sums)
    dy, d_shift = torch.autograd.grad([*done], [y, shift], [da, d_sums])
    through = da.double() + spread(d_sums, a, taps)
    exact_dy, exact_missed = (
        torch.autograd.grad(a, exact_y, gradient, retain_graph=True)[0]
        for gradient in (through * sure, through * ~sure)
    )
    doubtful = F.max_pool2d((exact_missed != 0).double().flatten(0, 1), 2, 1, 1) if pool else exact_missed != 0
    clear = ~doubtful.bool().unflatten(0, y.shape[:2])[..., :-1, :-1] if pool else ~doubtful
    assert clear.double().mean() > 0.99
    size = 1 + float(exact_dy.abs().max())
    torch.testing.assert_close(dy.double()[clear], exact_dy[clear], rtol=rounding, atol=1e-5 * size)
    torch.testing.assert_close(d_shift.double(), dy.double().sum((1, 3, 4)), rtol=1e-5, atol=1e-5 * many * size)


@needs_kernels
@each_pool
@each_dtype
@each_shape
def test_values_sums_and_gradients_are_those_of_float64(shape, dtype, pool):
    compare(shape, SAME, dtype, pool)


@needs_kernels
@each_pool
@each_taps
def test_the_sums_are_those_that_the_next_convolution_wants(taps, pool):
    compare((2, 3, 32, 10, 14), taps, torch.float32, pool)


@needs_kernels
@each_pool
def test_a_window_of_equal_pixels_gives_its_gradient_to_the_first(pool):
    y, shift, _ = random_layer((1, 2, 32, 4, 4))
    y = channels_last(torch.zeros_like(y)).requires_grad_()
    mask = channels_last(torch.ones(1, 2, 32, 2, 2, device=DEVICE)) if pool else None
    done = layer(y, torch.ones_like(shift), mask, NO_TAPS)
    (dy,) = torch.autograd.grad(done.output.sum(), y)
    first = torch.zeros(4, 4, device=DEVICE)
    first[::2, ::2] = 1
    assert torch.equal(dy[0, 0, 0], first if pool else torch.ones_like(first))


@needs_kernels
@each_pool
def test_the_gradient_at_zero_is_the_slopes(pool):
    y, shift, mask = random_layer((1, 2, 32, 4, 4), pool=pool)
    y = channels_last(torch.full_like(y, 3.0)).requires_grad_()
    shift = torch.full_like(shift, -3.0).requires_grad_()
    done = layer(y, shift, mask)
    assert (done.output == 0).all()
    da = cotangent(done.output, y.dtype)
    (d_shift,) = torch.autograd.grad(done.output, shift, da)
    torch.testing.assert_close(d_shift, SLOPE * (da * mask if pool else da).sum((1, 3, 4)))


@needs_kernels
def test_what_is_not_a_number_is_not_pooled_away():
    y, shift, mask = random_layer((1, 2, 32, 4, 4), pool=True)
    y = y.detach().clone()
    y[0, 0, 0, 1, 1] = float("nan")
    mask = channels_last(torch.ones_like(mask))
    done = layer(channels_last(y), shift, mask)
    assert done.output[0, 0, 0].isnan().tolist() == [[True, False], [False, False]]
    assert done.sums[0, 4, 0].isnan()


@needs_kernels
@each_pool
def test_groups_do_not_mix(pool):
    y, shift, mask = random_layer((3, 5, 32, 4, 4), pool=pool)
    changed = y.detach().clone()
    changed[1] = changed[1].square() + 7.0
    results = []
    for images in (y, channels_last(changed).requires_grad_()):
        done = layer(images, shift, mask)
        da, d_sums = cotangent(done.output, y.dtype), torch.ones_like(done.sums).cumsum(0)
        results.append((*done, *torch.autograd.grad([*done], [images, shift], [da, d_sums])))
    for before, after in zip(*results, strict=True):
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[2], after[2])
        assert not torch.equal(before[1], after[1])


@needs_kernels
@each_pool
def test_results_are_channels_last_whatever_comes_in(pool):
    y, shift, mask = random_layer((2, 3, 32, 4, 6), pool=pool)
    by_rows, by_columns = y.detach().contiguous().requires_grad_(), shift.detach().T.contiguous().T.requires_grad_()
    results = []
    for inputs in ((y, shift, mask), (by_rows, by_columns, None if mask is None else mask.contiguous())):
        done = layer(*inputs)
        da, d_sums = torch.ones_like(done.output).cumsum(-1), torch.ones_like(done.sums).cumsum(-1)
        if inputs[0] is by_rows:
            da, d_sums = da.contiguous(), d_sums.transpose(1, 2).contiguous().transpose(1, 2)
        dy, d_shift = torch.autograd.grad([*done], inputs[:2], [da, d_sums])
        assert is_channels_last(done.output)
        assert is_channels_last(dy)
        results.append((*done, dy, d_shift))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@needs_kernels
@each_pool
def test_the_bits_repeat(pool):
    y, shift, mask = random_layer(SMALL[1] if INTERPRETED else REAL[0], torch.bfloat16, pool)
    passes = []
    for _ in range(2):
        done = layer(y, shift, mask)
        da, d_sums = cotangent(done.output, y.dtype), torch.ones_like(done.sums)
        passes.append((*done, *torch.autograd.grad([*done], [y, shift], [da, d_sums])))
    assert all(torch.equal(one, other) for one, other in zip(*passes, strict=True))


@needs_kernels
@pytest.mark.parametrize("taps", [SAME, NO_TAPS], ids=str)
def test_the_operators_keep_pytorchs_rules(taps):
    """Their fakes have the shapes and strides of the results, and gradients are the same traced and not."""
    y, shift, mask = random_layer((2, 2, 32, 4, 4), pool=True)
    with torch.no_grad():
        a, sums = torch.ops.sntg.shifted_leaky(y, shift, SLOPE, *taps)
        p, _, code = torch.ops.sntg.shifted_leaky_pooled(y, shift, mask, SLOPE, *taps)
    torch.library.opcheck(shifted.leaky, (y, shift, SLOPE, *taps))
    torch.library.opcheck(shifted.pooled, (y, shift, mask, SLOPE, *taps))
    torch.library.opcheck(shifted.leaky_gradient, (a, sums, a, SLOPE, *taps))
    torch.library.opcheck(shifted.pooled_gradient, (p, sums, mask, code, SLOPE, *taps))


@needs_kernels
@each_dtype
@each_shape
@each_pool
def test_in_evaluation_the_leaky_relu_is_taken_of_the_images_plus_a_bias(shape, dtype, pool):
    y, b = (t.detach() for t in random_layer(shape, dtype)[:2])
    expected = F.leaky_relu(y.double() + b.double()[:, None, :, None, None], SLOPE)
    if pool:
        expected = F.max_pool2d(expected.flatten(0, 1), 2).unflatten(0, y.shape[:2])
    found = shifted.biased_leaky_pooled(y, b, SLOPE) if pool else shifted.biased_leaky(y, b, SLOPE)
    assert found.dtype == dtype
    assert is_channels_last(found)
    assert (found.data_ptr() == y.data_ptr()) == (not pool)  # no memory is taken where none is needed
    torch.testing.assert_close(found.double(), expected, rtol=1.01 * torch.finfo(dtype).eps, atol=1e-6)


@needs_kernels
@pytest.mark.skipif(INTERPRETED, reason="too large for the interpreter")
def test_offsets_beyond_32_bits():
    """2,200 images of 32 x 32 with 1024 channels: 2.3e9 numbers in a group, of which the last are looked at."""
    if torch.cuda.get_device_properties(0).total_memory < 32 * 2**30:
        pytest.skip("needs 32 GiB on the GPU")
    y = torch.empty(1, 2200, 32, 32, 1024, dtype=torch.bfloat16, device=DEVICE).normal_().permute(0, 1, 4, 2, 3)
    b = torch.zeros(1, 1024, device=DEVICE)
    last = F.leaky_relu(y[:, -1].float(), SLOPE)
    a = layer(y, b, taps=NO_TAPS).output
    torch.testing.assert_close(a[:, -1].float(), last, rtol=1e-2, atol=1e-2)
    p = layer(y, b, torch.ones_like(a[..., :16, :16]), NO_TAPS).output
    torch.testing.assert_close(p[:, -1].float(), F.max_pool2d(last, 2), rtol=1e-2, atol=1e-2)


# --- a network -------------------------------------------------------------------------------------------------------


@pytest.fixture
def everywhere(monkeypatch):
    """In the interpreter the kernels apply to images on a CPU too; products are those of float32."""
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if INTERPRETED:
        monkeypatch.setattr(convolutions, "can_fuse", lambda x, channels: channels % 32 == 0)


def watched(name):
    return mock.patch.object(convolutions, name, wraps=getattr(convolutions, name))


def one_pass(net, x):
    """Logits, features, gradients of something of both, and the running means, which go on from where they began."""
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    net.zero_grad()
    out = net(x)
    (out.logits.square().sum() + out.features.cumsum(-1).sin().sum()).backward()
    found = [*out, *(p.grad for p in net.parameters()), *(b.clone() for b in net.buffers())]
    for name, buffer in net.named_buffers():
        buffer.copy_(before[name])
    return found


@needs_kernels
@pytest.mark.parametrize(("leading", "size"), [((3,), (16, 20)), ((1, 2, 3), (16, 16)), ((2, 3), (18, 18))], ids=str)
def test_a_network_with_kernels_does_what_it_does_without(leading, size, everywhere):
    """Of 18 x 18 pixels the second pooling would halve 7: that is left to PyTorch, and so are the sums behind it."""
    net = SmallNet((3, *size), 4, noise=0.0, dropout=0.0).float().to(DEVICE).train()
    net = stack([net]) if len(leading) == 3 else net
    for name, parameter in net.named_parameters():
        if name.endswith((".g", ".b")):
            parameter.data += torch.empty_like(parameter).uniform_(-0.4, 0.4)
    x = torch.randn(*leading, 3, *size, device=DEVICE)
    plain = one_pass(net, x)
    use_precision(net, "tf32", fused=True)  # float32 on a CPU, and in the memory layout of the kernels
    with watched("shifted_leaky") as kernel, watched("tap_sums") as added_up:
        found = one_pass(net, x)
    odd = size == (18, 18)
    assert kernel.call_count == 3 + odd
    assert (
        added_up.call_count == 1 + odd
    )  # of the data, and of what PyTorch has pooled: else the layer before left them
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * (1 + float(other.detach().abs().max())))


@needs_kernels
@pytest.mark.parametrize("backend", ["aot_eager"] if INTERPRETED else ["aot_eager", "inductor"])
def test_a_compiled_network_does_what_the_network_does(backend, everywhere):
    net = use_precision(SmallNet((3, 16, 16), 4, noise=0.0, dropout=0.0).float().to(DEVICE).train(), "tf32", fused=True)
    x = torch.randn(2, 3, 3, 16, 16, device=DEVICE)
    expected = one_pass(net, x)
    net.forward = torch.compile(net.forward, backend=backend, fullgraph=True)
    for one, other in zip(one_pass(net, x), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * (1 + float(other.detach().abs().max())))


@needs_kernels
@pytest.mark.parametrize("what", ["two batches", "several runs"])
def test_what_the_kernels_do_not_know_is_left_to_pytorch(what, everywhere):
    net = SmallNet((3, 16, 16), 4, noise=0.0, dropout=0.0).float().to(DEVICE).train()
    net = use_precision(stack([net, net]) if what == "several runs" else net, "tf32", fused=True)
    x = torch.randn(*([2] if what == "several runs" else []), 6, 3, 16, 16, device=DEVICE)
    batches = two_batches(net, 4) if what == "two batches" else nullcontext()
    with batches, watched("shifted_leaky") as kernel:
        net(x)
    assert kernel.call_count == 0


@needs_kernels
def test_its_derivative_is_left_to_pytorch(everywhere):
    net = use_precision(SmallNet((3, 16, 16), 4).float().to(DEVICE).train(), "tf32", fused=True)
    assert net.linearised(torch.randn(6, 3, 16, 16, device=DEVICE))[1] is None


@needs_kernels
@pytest.mark.parametrize("leading", [(2,), (2, 1)], ids=str)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_a_network_is_evaluated_through_the_kernels_where_nobody_wants_a_gradient(normalisation, leading, everywhere):
    net = SmallNet((3, 16, 16), 4, normalisation=normalisation).float().to(DEVICE)
    x = torch.randn(*leading, 3, 16, 16, device=DEVICE)
    net.train()(x)
    for name, tensor in net.state_dict().items():
        if not name.endswith((".V", ".std")):
            tensor += torch.rand_like(tensor)
    plain = net.eval()(x)
    use_precision(net, "tf32", fused=True)
    with watched("biased_leaky") as kernel:
        with torch.no_grad():
            torch.testing.assert_close(net(x), plain, rtol=1e-4, atol=1e-4)
        assert kernel.call_count == 3
        net(x).logits.sum().backward()
        assert kernel.call_count == 3
    assert all(p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's run")
def test_all_of_this_in_the_interpreter():
    run_in_interpreter(__file__)
