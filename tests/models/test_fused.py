"""The kernels of full batch normalisation against plain PyTorch in float64.

They run on a GPU where there is one, else in Triton's interpreter. The interpreter runs kernels on a CPU, but is chosen
for a whole process before Triton is imported. So one test here runs this file again in a process of its own, with the
interpreter and small shapes.
"""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from channels_last import channels_last, cotangent, is_channels_last
from interpreter import DEVICE, INTERPRETED, needs_kernels, run_in_interpreter

from sntg.models import SmallNet, convolutions, fused, two_batches, use_precision

SLOPE, EPS = 0.1, 1e-6
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
each_shape = pytest.mark.parametrize("shape", SMALL if INTERPRETED else REAL, ids=str)
each_kind = pytest.mark.parametrize("pool", [False, True], ids=["plain", "pooled"])
each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)


def random_layer(shape, dtype=torch.float32, pool=False, seed=0):
    """y, g, b and a dropout mask of half the height and width. Means are far from zero, so that forgetting them shows,
    and g has both signs; the mask is None where nothing is pooled."""
    groups, n, C, H, W = shape
    generator = torch.Generator(DEVICE).manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator, device=DEVICE)  # noqa: E731
    y = draw(*shape) * (0.2 + draw(groups, 1, C, 1, 1).abs()) + 2 * draw(groups, 1, C, 1, 1)
    g, b = draw(groups, C).requires_grad_(), draw(groups, C).requires_grad_()
    mask = 2 * torch.randint(2, (groups, n, C, H // 2, W // 2), generator=generator, device=DEVICE)
    y, mask = channels_last(y.to(dtype)).requires_grad_(), channels_last(mask.to(dtype))
    return y, g, b, mask if pool else None


def reference(y, g, b, mask=None):
    """(the layer, its mean and variance, the pre-activation), in the precision of y."""
    mean = y.mean((1, 3, 4), keepdim=True)
    variance = (y - mean).square().mean((1, 3, 4), keepdim=True)
    g, b = (p[:, None, :, None, None] for p in (g, b))
    z = (y - mean) * g / (variance + EPS).sqrt() + b
    a = F.leaky_relu(z, SLOPE)
    if mask is not None:
        a = F.max_pool2d(a.flatten(0, 1), 2).unflatten(0, y.shape[:2]) * mask
    return a, (mean[:, 0, :, 0, 0], variance[:, 0, :, 0, 0]), z


def layer(y, g, b, mask=None):
    if mask is None:
        return fused.normalised_leaky(y, g, b, SLOPE, EPS)
    return fused.normalised_leaky_pooled(y, g, b, mask, SLOPE, EPS)


def gradients(a, y, g, b, seed=1):
    return torch.autograd.grad(a, (y, g, b), cotangent(a, y.dtype, seed).to(a.dtype))


def exactly(y, g, b, mask):
    """The same in float64."""
    y, g, b = (t.detach().double().requires_grad_() for t in (y, g, b))
    return y, g, b, None if mask is None else mask.double()


def compare(y, g, b, mask=None):
    """Values, statistics, gradients and tangents are those of the reference in float64, up to y's rounding."""
    done = layer(y, g, b, mask)
    exact = exactly(y, g, b, mask)
    a, statistics, z = reference(*exact)
    # One pixel on the other side of zero would move the sums over its channel, and with them the channel's gradients.
    da = cotangent(done.output, y.dtype) * clear(z, mask)
    dy, *d_parameters = torch.autograd.grad(done.output, (y, g, b), da)
    exact_dy, *exact_d_parameters = torch.autograd.grad(a, exact[:3], da.double())

    assert {done.output.dtype, dy.dtype} == {y.dtype}
    assert {t.dtype for t in (done.channels, *d_parameters)} == {torch.float32}
    size = float(exact_dy.detach().abs().max())
    rounding = 1.01 * torch.finfo(y.dtype).eps  # of a whole unit: the interpreter truncates
    torch.testing.assert_close(done.output.double(), a, rtol=rounding, atol=2e-5)
    for found, expected in zip(done.channels[:2], statistics, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dy.double(), exact_dy, rtol=rounding, atol=1e-5 * (1 + size))
    for found, expected in zip(d_parameters, exact_d_parameters, strict=True):
        rows = (y[0].numel() / y.shape[2]) ** 0.5
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * rows)


def clear(z, mask):
    """Which outputs are on the same side of zero, and have the same winner, in float32 and float64."""
    sure = z.abs() > CLEAR
    if mask is None:
        return sure
    windows, sure = (t.detach().unfold(-2, 2, 2).unfold(-2, 2, 2).flatten(-2) for t in (z, sure))
    first, second = windows.topk(2, -1).values.unbind(-1)
    return sure.all(-1) & ((first - second > CLEAR) | (first == second))


@needs_kernels
@each_kind
@each_dtype
@each_shape
def test_values_and_gradients_are_those_of_float64(shape, dtype, pool):
    compare(*random_layer(shape, dtype, pool))


@needs_kernels
@each_kind
@each_dtype
@each_shape
def test_tangents_are_those_of_float64_and_what_is_pulled_back_is_the_gradient(shape, dtype, pool):
    y, g, b, mask = random_layer(shape, dtype, pool)
    done = layer(y, g, b, mask)
    t = cotangent(y, dtype, seed=2)
    exact_y, *rest = exactly(y, g, b, mask)
    _, expected = torch.func.jvp(lambda y: reference(y, *rest)[0], (exact_y.detach(),), (t.double(),))
    z = reference(exact_y, *rest)[2]
    found, sure = done.linear.push(t), clear(z, mask)
    assert found.dtype == dtype
    assert is_channels_last(found)
    size = 1 + float(expected.detach().abs().max())
    rounding = 1.01 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double()[sure], expected[sure], rtol=rounding, atol=1e-5 * size)
    u = cotangent(done.output, dtype)
    assert torch.equal(done.linear.pull(u), gradients(done.output, y, g, b)[0])


@needs_kernels
@each_kind
def test_pull_is_the_transpose_of_push(pool):
    y, g, b, mask = random_layer((2, 3, 64, 6, 6), pool=pool)
    done = layer(y, g, b, mask)
    t, u = cotangent(y, y.dtype, seed=2), cotangent(done.output, y.dtype, seed=3)
    there, back = (u.double() * done.linear.push(t)).sum((1, 3, 4)), (done.linear.pull(u).double() * t).sum((1, 3, 4))
    torch.testing.assert_close(there, back, rtol=1e-4, atol=1e-4 * float(there.detach().abs().max()))


@needs_kernels
@pytest.mark.parametrize(("dtype", "far"), [(torch.bfloat16, 64.0), (torch.float16, 500.0), (torch.float32, 3000.0)])
@each_kind
def test_a_channel_that_varies_little_far_from_zero_keeps_its_variance(dtype, far, pool):
    """Its mean square and its squared mean agree in all the digits of float32."""
    y, g, b, mask = random_layer(SMALL[2], dtype, pool)
    y = channels_last((far + y.detach()).to(dtype)).requires_grad_()
    _, (mean, variance), _ = reference(*exactly(y, g, b, mask))
    assert float((variance / mean.square()).min()) < 1e-3
    channels = layer(y, g, b, mask).channels
    torch.testing.assert_close(channels[0].double(), mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(channels[1].double(), variance, rtol=1e-4, atol=0)


@needs_kernels
def test_a_first_row_unlike_the_others_does_not_cost_the_variance():
    """The sums are shifted by it."""
    y, g, b, _ = random_layer(SMALL[2])
    y = y.detach()
    y[:, 0, :, 0, 0] = 1000.0
    variance = reference(*exactly(y, g, b, None))[1][1]
    torch.testing.assert_close(layer(y, g, b).channels[1].double(), variance, rtol=1e-3, atol=0)


@needs_kernels
@each_kind
def test_the_gradient_at_zero_is_the_slopes(pool):
    """A channel that does not vary is all zeros without a bias; exactly so at 4, by which products are not rounded."""
    y, g, b, mask = random_layer((1, 2, 32, 4, 4), pool=pool)
    y = channels_last(torch.full_like(y, 4.0)).requires_grad_()
    b = torch.zeros_like(b, requires_grad=True)
    done = layer(y, g, b, mask)
    assert (done.output == 0).all()
    da = cotangent(done.output, y.dtype)
    _, _, db = torch.autograd.grad(done.output, (y, g, b), da)
    torch.testing.assert_close(db, SLOPE * (da * mask if pool else da).sum((1, 3, 4)))


@needs_kernels
@each_kind
def test_a_channel_that_does_not_vary_gives_its_bias(pool):
    """Its deviation is what the small constant leaves: a thousandth, so that 3 is rounded at 3000."""
    y, g, b, mask = random_layer((1, 2, 32, 4, 4), pool=pool)
    y = channels_last(torch.full_like(y, 3.0)).requires_grad_()
    done = layer(y, g, b, mask)
    expected = F.leaky_relu(b, SLOPE)[:, None, :, None, None] * (mask if pool else torch.ones_like(y))
    torch.testing.assert_close(done.output, expected, rtol=0, atol=2e-3)
    for result in (*gradients(done.output, y, g, b), done.linear.push(cotangent(y, y.dtype))):
        assert torch.isfinite(result).all()


@needs_kernels
@each_dtype
def test_the_first_of_equal_pixels_wins(dtype):
    y, g, b, mask = random_layer((2, 4, 32, 8, 8), dtype, pool=True)
    above = y.detach() > y.detach().mean((1, 3, 4), keepdim=True)
    y = channels_last(above.to(dtype)).requires_grad_()  # of two values: ties in almost every window
    compare(y, g, b, mask)


@needs_kernels
@each_kind
def test_groups_do_not_mix(pool):
    y, g, b, mask = random_layer((3, 5, 32, 4, 4), pool=pool)
    changed = y.detach().clone()
    changed[1] = changed[1].square() + 7.0
    results = []
    for images in (y, channels_last(changed).requires_grad_()):
        done = layer(images, g, b, mask)
        pushed = done.linear.push(torch.ones_like(images) + b[:, None, :, None, None].detach())
        results.append((done.output, done.channels.transpose(0, 1), pushed, *gradients(done.output, images, g, b)))
    for before, after in zip(*results, strict=True):
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[2], after[2])
    assert not torch.equal(results[0][0][1], results[1][0][1])


@needs_kernels
@each_kind
@pytest.mark.parametrize("first", [1, 2, 4])
def test_groups_of_two_batches_are_normalised_as_two_batches(first, pool):
    """Five groups; the parameters are shared, so what each group gives to their gradients has to add up."""
    y, g, b, mask = random_layer((5, 11, 32, 4, 8), pool=pool)  # of three uneven slices each
    shared = [p.detach()[0].clone().requires_grad_() for p in (g, b)]
    of_groups = [p.expand(5, -1) for p in shared]
    if pool:
        done = fused.normalised_leaky_pooled(y, *of_groups, mask, SLOPE, EPS, first)
    else:
        done = fused.normalised_leaky(y, *of_groups, SLOPE, EPS, first)
    t, da = cotangent(y, y.dtype, seed=2), cotangent(done.output, y.dtype)
    found = done.output, done.linear.push(t), done.linear.pull(da), *gradients(done.output, y, *shared)

    outputs, pushed, statistics = [], [], []
    exact_y, *exact_p, exact_mask = exactly(y, *shared, mask)
    for part in (slice(0, first), slice(first, 5)):
        batch = lambda images, part=part: images[part].flatten(0, 1)[None]  # noqa: E731
        rest = *(p[None] for p in exact_p), None if mask is None else batch(exact_mask)
        function = lambda images, rest=rest, batch=batch: reference(batch(images), *rest)[0]  # noqa: E731
        a, tangent = torch.func.jvp(function, (exact_y,), (t.double(),))
        outputs.append(a.view(-1, *done.output.shape[1:]))
        pushed.append(tangent.view(-1, *done.output.shape[1:]))
        statistics += [reference(batch(exact_y), *rest)[1]] * (part.stop - part.start)
    a = torch.cat(outputs)
    dy, *d_parameters = torch.autograd.grad(a, (exact_y, *exact_p), da.double())
    for result, expected in zip(found, (a, torch.cat(pushed), dy, dy, *d_parameters), strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=1e-3, atol=1e-3)
    for kind, expected in zip(done.channels[:2], zip(*statistics, strict=True), strict=True):
        torch.testing.assert_close(kind.double(), torch.cat(expected), rtol=1e-4, atol=1e-4)


@needs_kernels
@each_kind
def test_results_are_channels_last_whatever_comes_in(pool):
    y, g, b, mask = random_layer((2, 3, 32, 4, 6), pool=pool)
    by_rows = y.detach().contiguous().requires_grad_()
    columns = lambda p: p.detach().T.contiguous().T.requires_grad_()  # noqa: E731
    results = []
    for inputs in ((y, g, b, mask), (by_rows, columns(g), columns(b), None if mask is None else mask.contiguous())):
        done = layer(*inputs)
        da, t = torch.ones_like(done.output).cumsum(-1), torch.ones_like(y).cumsum(-1)
        pushed = done.linear.push(t if inputs[0] is y else t.contiguous())
        dy, *rest = torch.autograd.grad(done.output, inputs[:3], da if inputs[0] is y else da.contiguous())
        assert all(is_channels_last(images) for images in (done.output, pushed, dy))
        results.append((done.output, pushed, dy, *rest))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@needs_kernels
def test_parameters_shared_by_the_groups_get_the_sum_of_their_gradients():
    y, g, b, _ = random_layer((2, 3, 32, 4, 4))
    shared = [p.detach()[0].clone().requires_grad_() for p in (g, b)]
    own = [p.detach().expand(2, -1).clone().requires_grad_() for p in shared]
    a, again = layer(y, *own).output, layer(y, *(p.expand(2, -1) for p in shared)).output
    assert torch.equal(a, again)
    for found, expected in zip(gradients(again, y, *shared)[1:], gradients(a, y, *own)[1:], strict=True):
        torch.testing.assert_close(found, expected.sum(0))


@needs_kernels
@each_kind
def test_no_gradient_flows_through_the_statistics(pool):
    done = layer(*random_layer((1, 3, 32, 4, 4), pool=pool))
    assert done.output.requires_grad
    assert not done.channels.requires_grad


@needs_kernels
@each_kind
def test_the_bits_repeat(pool):
    y, g, b, mask = random_layer(SMALL[2] if INTERPRETED else REAL[0], torch.bfloat16, pool)
    passes = []
    for _ in range(2):
        done = layer(y, g, b, mask)
        pushed = done.linear.push(cotangent(y, y.dtype))
        passes.append((done.output, done.channels, pushed, *gradients(done.output, y, g, b)))
    assert all(torch.equal(x, y) for x, y in zip(*passes, strict=True))


@needs_kernels
@pytest.mark.parametrize("backend", ["aot_eager"] if INTERPRETED else ["aot_eager", "inductor"])
def test_a_compiled_network_does_what_the_network_does(backend):
    """Two groups of images through convolution, layer, convolution, pooled layer: forward, tangents and backward."""
    _, g, b, mask = random_layer((2, 3, 32, 6, 6), pool=True)
    images = torch.randn(6, 32, 6, 6, device=DEVICE).to(memory_format=torch.channels_last).requires_grad_()
    weight = (torch.randn(32, 32, 3, 3, device=DEVICE) / 17).to(memory_format=torch.channels_last).requires_grad_()

    def convolution(x):
        return F.conv2d(x.flatten(0, -4), weight, padding=1).unflatten(0, (2, 3))

    def network(x):
        first = layer(convolution(x), g, b)
        second = layer(convolution(first.output), g, b, mask)
        with torch.no_grad():
            tangent = second.linear.push(convolution(first.linear.push(convolution(x))))
            pulled = second.linear.pull(tangent)
        return second.output.square().sum(), first.channels, second.channels, tangent, pulled

    def passes(function):
        loss, *rest = function(images)
        return loss, *rest, *torch.autograd.grad(loss, (images, weight, g, b))

    found = passes(torch.compile(network, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, passes(network), rtol=1e-3, atol=1e-3)


@needs_kernels
def test_the_operators_keep_pytorchs_rules():
    """Their fakes have the shapes and strides of the results, and gradients are the same traced and not."""
    y, g, b, mask = random_layer((2, 2, 32, 4, 4), pool=True)
    with torch.no_grad():
        a, channels = torch.ops.sntg.normalised_leaky(y, g, b, SLOPE, EPS, 0)
        p, _, code = torch.ops.sntg.normalised_leaky_pooled(y, g, b, mask, SLOPE, EPS, 0)
    torch.library.opcheck(fused.leaky, (y, g, b, SLOPE, EPS, 0))
    torch.library.opcheck(fused.pooled, (y, g, b, mask, SLOPE, EPS, 0))
    y = y.detach()
    for push in (False, True):
        torch.library.opcheck(fused.linear, (a, y, channels, SLOPE, 0, push))
    torch.library.opcheck(fused.pooled_push, (a, y, mask, code, channels, SLOPE, 0))
    torch.library.opcheck(fused.pooled_pull, (p, y, mask, code, channels, SLOPE, 0))


@needs_kernels
@pytest.mark.parametrize(
    ("leading", "rows", "first", "fused"), [((), 18, 12, True), ((1,), 18, 12, True), ((2,), 18, 12, False)]
)
def test_two_batches_go_through_the_kernels_in_one_view_only(leading, rows, first, fused, monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr(convolutions, "can_fuse", lambda x, channels: channels % 32 == 0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    net = SmallNet((3, 16, 16), 4, noise=0.0, dropout=0.0, normalisation="batch").float().to(DEVICE).train()
    x = torch.randn(*leading, rows, 3, 16, 16, device=DEVICE)
    with two_batches(net, first):
        plain = net(x)
        use_precision(net, "tf32", fused=True)
        with mock.patch.object(convolutions, "normalised_leaky", wraps=convolutions.normalised_leaky) as kernel:
            torch.testing.assert_close(net(x), plain, rtol=1e-3, atol=1e-3)
        assert net.linearised(x)[1] is None  # a derivative of two batches is PyTorch's affair
    assert (kernel.call_count > 0) == fused


@needs_kernels
@pytest.mark.skipif(INTERPRETED, reason="too large for the interpreter")
def test_offsets_beyond_32_bits():
    """2,200 images of 32 x 32 with 1024 channels: 2.3e9 numbers in a group, of which the last are looked at."""
    if torch.cuda.get_device_properties(0).total_memory < 32 * 2**30:
        pytest.skip("needs 32 GiB on the GPU")
    y = torch.empty(1, 2200, 32, 32, 1024, dtype=torch.bfloat16, device=DEVICE).normal_().permute(0, 1, 4, 2, 3)
    g, b = torch.randn(1, 1024, device=DEVICE), torch.zeros(1, 1024, device=DEVICE)
    a, channels, _ = layer(y, g, b)
    mean, variance = channels[:2, ..., None, None]
    last = F.leaky_relu((y[:, -1].float() - mean) * g[..., None, None] / (variance + EPS).sqrt(), SLOPE)
    torch.testing.assert_close(a[:, -1].float(), last, rtol=1e-2, atol=1e-2)
    p, *_ = layer(y, g, b, torch.ones_like(a[..., :16, :16]))
    torch.testing.assert_close(p[:, -1].float(), F.max_pool2d(last, 2), rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's run")
def test_all_of_this_in_the_interpreter():
    run_in_interpreter(__file__)
