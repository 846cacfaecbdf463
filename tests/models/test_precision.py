"""Convolutions in fewer bits: what they compute in, and that nothing else changes its type."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from sntg.models import LOSS_SCALE, MLP, NORMALISATIONS, PRECISIONS, SmallNet, stack, unstack, use_precision
from sntg.models.convolutions import ConvMap
from sntg.training import resolve, train

IMAGE = (3, 16, 16)


def make_net(precision="float32", normalisation="mean-only", runs=0, noise=0.0, dropout=0.0):
    torch.manual_seed(0)
    nets = [SmallNet(IMAGE, 4, noise, dropout, normalisation) for _ in range(max(1, runs))]
    return use_precision(stack(nets) if runs else nets[0], precision)


def make_images(*leading, seed=1):
    return torch.randn(*leading, *IMAGE, generator=torch.Generator().manual_seed(seed))


def convolutions(net):
    return [m for m in net.modules() if isinstance(m, ConvMap)]


@pytest.fixture
def computed(monkeypatch):
    """The types of image, weight and result of every convolution."""
    kept, conv2d = [], F.conv2d

    def spy(x, weight, *rest, **named):
        y = conv2d(x, weight, *rest, **named)
        kept.append((x.dtype, weight.dtype, y.dtype))
        return y

    monkeypatch.setattr(F, "conv2d", spy)
    return kept


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("runs", [0, 1, 2])
def test_every_convolution_computes_in_it_and_what_comes_out_of_the_network_is_float32(computed, normalisation, runs):
    net = make_net("bfloat16", normalisation, runs).train()
    out = net(make_images(*(runs,) * (runs > 0), 6))
    assert computed == [(torch.bfloat16,) * 3] * len(convolutions(net))
    assert out.features.dtype == out.logits.dtype == torch.float32
    assert {p.dtype for p in net.parameters()} == {b.dtype for b in net.buffers()} == {torch.float32}


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_running_statistics_are_kept_in_float32_and_finer_than_bfloat16(normalisation):
    """With a momentum of 0.999 a 16-bit mean would not move at all."""
    net = make_net("bfloat16", normalisation).train()
    for module in convolutions(net):
        module.bn_momentum = 0.999
    first = None
    for step in range(20):
        net(make_images(8, seed=step) + 1.0)
        first = first if first is not None else net.blocks[0][0].running_mean.clone()
    mean = net.blocks[0][0].running_mean
    assert mean.dtype == torch.float32
    assert not torch.equal(mean, mean.bfloat16().float())
    assert (mean.abs() > 5 * first.abs()).any()
    assert torch.isfinite(mean).all()


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("runs", [0, 2])
def test_values_and_gradients_are_near_those_of_float32(normalisation, runs):
    full, short = make_net("float32", normalisation, runs).train(), make_net("bfloat16", normalisation, runs).train()
    x = make_images(*(runs,) * (runs > 0), 32)
    outs = [net(x) for net in (full, short)]
    scale = outs[0].logits.std()
    assert 0 < (outs[1].logits - outs[0].logits).abs().max() < 0.1 * scale
    for out in outs:
        F.cross_entropy(out.logits.flatten(0, -2), torch.arange(out.logits[..., 0].numel()) % 4).backward()
    gradients = [torch.cat([p.grad.flatten() for p in net.parameters()]) for net in (full, short)]
    assert F.cosine_similarity(*gradients, dim=0) > 0.98
    for (name, p), q in zip(full.named_parameters(), short.parameters(), strict=True):
        assert p.grad.dtype == q.grad.dtype == torch.float32, name
        assert F.cosine_similarity(p.grad.flatten(), q.grad.flatten(), dim=0) > 0.95, name
        assert q.grad.norm() == pytest.approx(p.grad.norm().item(), rel=0.1), name


def test_the_batch_mean_is_taken_in_float32():
    """Of outputs far from zero that vary little: rounded to bfloat16 the mean would be off by whole deviations."""
    net = make_net("bfloat16").train()
    conv = net.blocks[0][0]
    y = 100.0 + 0.5 * torch.randn(64, 32, 12, 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    centred = conv.centred(y)
    assert centred.dtype == torch.bfloat16
    assert centred.float().mean((0, 2, 3)).abs().max() < 0.01


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_copy_and_a_model_out_of_a_stack_keep_it(precision):
    net = make_net(precision, runs=2)
    for other in (deepcopy(net), unstack(net, 1), stack([unstack(net, 0)])):
        assert [m.dtype for m in convolutions(other)] == [PRECISIONS[precision]] * len(convolutions(net))
        assert [m.channels_last for m in convolutions(other)] == [m.channels_last for m in convolutions(net)]


def test_a_stack_computes_what_its_runs_compute_alone():
    net = make_net("bfloat16", runs=2).train()
    x = make_images(2, 8)
    together = net(x)
    for run in range(2):
        alone = unstack(net, run).train()(x[run])
        torch.testing.assert_close(alone.logits, together.logits[run], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_float32_and_tf32_are_float32_in_memory(computed, precision):
    make_net(precision)(make_images(2))
    assert {dtype for dtypes in computed for dtype in dtypes} == {torch.float32}


def test_channels_last_changes_nothing_but_the_memory():
    """The layout of tensor cores, in the precision that can be compared to the bit's neighbour."""
    plain, other = make_net("float32").train(), make_net("tf32").train()
    assert all(m.channels_last for m in convolutions(other))
    assert not any(m.channels_last for m in convolutions(plain))
    x = make_images(4)
    torch.testing.assert_close(other(x).logits, plain(x).logits, rtol=1e-4, atol=1e-5)


def test_float64_stays_float64():
    """A network of doubles is for checks of gradients: no step on the way may round it."""
    net = make_net().double().train()
    out = net(make_images(3).double())
    assert out.logits.dtype == out.features.dtype == torch.float64


def test_going_back_to_float32_undoes_it_and_the_network_is_returned():
    net = make_net()
    x = make_images(2)
    expected = net.eval()(x).logits
    assert use_precision(net, "bfloat16") is net
    assert not torch.equal(net(x).logits, expected)
    assert torch.equal(use_precision(net, "float32")(x).logits, expected)


def test_a_network_without_convolutions_has_nothing_to_change():
    torch.manual_seed(0)
    net = MLP(2, 3, hidden=4).eval()
    x = torch.randn(5, 2)
    expected = net(x).logits
    assert torch.equal(use_precision(net, "bfloat16")(x).logits, expected)


def test_noise_and_dropout_are_of_the_images_type_and_of_their_law():
    net = make_net("bfloat16", noise=0.5, dropout=0.5).train()
    x = torch.zeros(64, *IMAGE)
    drawn = net.noise(x)
    assert drawn.dtype == torch.float32
    assert drawn.std().item() == pytest.approx(0.5, rel=0.02)
    kept = net.dropouts[0](torch.ones(64, 32, 6, 6, dtype=torch.bfloat16))
    assert kept.dtype == torch.bfloat16
    assert set(kept.unique().tolist()) == {0.0, 2.0}


def test_only_float16_scales_the_loss():
    """bfloat16 has float32's range; float16 ends at 6e-8."""
    assert set(LOSS_SCALE) == {"float16"}
    scale = LOSS_SCALE["float16"]
    assert scale == 2.0 ** round(torch.tensor(scale).log2().item())  # a power of two rounds nothing


# --- a whole run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    config = resolve("digits", 20, "mt+sntg", epochs=2, epoch_steps=3, batch=60, precision="bfloat16")
    return train([config])[0]


def test_the_network_of_a_finished_run_computes_in_float32(trained):
    """What is loaded or published does not depend on how it was trained."""
    assert trained.config.precision == "bfloat16"
    assert all(m.dtype is None and not m.channels_last for m in convolutions(trained.model))
    assert {p.dtype for p in trained.model.parameters()} == {torch.float32}
    assert trained.features.dtype == torch.float32


def test_the_first_loss_in_bfloat16_is_not_that_in_float32_but_near_it(trained):
    """Of all points at once, as they are: the streams of random numbers part ways where a mask has another type."""
    still = {"noise": 0.0, "dropout": 0.0, "translate": 0}
    first = replace(trained.config, epochs=1, epoch_steps=1, batch=1198, **still)
    ours, theirs = (train([replace(first, precision=p)])[0].history[0]["loss"] for p in ("bfloat16", "float32"))
    assert ours != theirs
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=0.05, abs=1e-3)


def test_a_run_in_bfloat16_is_reproducible(trained):
    (again,) = train([trained.config])
    assert again.history == trained.history
    weights = again.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in trained.model.state_dict().items())


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_every_convolution_may_be_allowed_the_gpus_kernels(normalisation):
    net = use_precision(make_net(normalisation=normalisation), "bfloat16", fused=True)
    assert all(m.fused for m in convolutions(net))
    assert not any(m.fused for m in convolutions(use_precision(net, "bfloat16")))
