"""The contexts around forward passes, and running statistics estimated from batches."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from layer_references import Weights, layer, randomise, statistics
from torch import nn

from sntg.errors import UsageError
from sntg.models import (
    NORMALISATIONS,
    SmallNet,
    estimate_statistics,
    frozen_statistics,
    initialising,
    modes,
    shared_noise,
    stack,
    two_batches,
    use_precision,
    without_kernels,
)
from sntg.models import convolutions as C
from sntg.models import layers as L
from sntg.models import noise as N


def points(*shape: int, seed: int = 0, inputs: int = 3) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, inputs, dtype=torch.float64, generator=g) * (1 + seed) + 1.0 + seed


def noisy_net() -> nn.Module:
    return nn.Sequential(N.GaussianNoise(0.3), L.Dense(40, 3), N.Dropout(0.5), L.Dense(4, 40))


def test_inside_shared_noise_passes_are_identical():
    net, x = noisy_net(), torch.randn(9, 3)
    with shared_noise(net):
        first, second = net(x), net(x)
    assert torch.equal(first, second)


def test_each_block_of_shared_noise_draws_its_own():
    net, x = noisy_net(), torch.randn(9, 3)
    with shared_noise(net):
        first = net(x)
    with shared_noise(net):
        second = net(x)
    assert not torch.equal(first, second)
    assert not torch.equal(net(x), net(x))


def test_shared_noise_is_shared_by_other_inputs_of_the_same_shape():
    module = N.GaussianNoise(0.3)
    a, b = torch.zeros(9, 3), torch.ones(9, 3)
    with shared_noise(module):
        torch.testing.assert_close(module(a) - a, module(b) - b, rtol=0, atol=1e-6)


def test_another_shape_inside_shared_noise_gets_a_draw_of_its_shape():
    module = N.Dropout(0.5)
    with shared_noise(module):
        module(torch.ones(9, 3))
        assert module(torch.ones(5, 3)).shape == (5, 3)


# --- flags ---------------------------------------------------------------------------------------------------------

FLAGS = {"initialising": False, "track_statistics": True, "sharing": False, "shared": None}


def flags(net: nn.Module) -> list[tuple[str, object]]:
    return [(name, getattr(m, name)) for m in net.modules() for name in FLAGS if hasattr(m, name)]


def test_inside_frozen_statistics_running_means_stay():
    net, x = noisy_net(), torch.randn(9, 3) + 1
    with frozen_statistics(net):
        net(x)
        assert all((m.running_mean == 0).all() for m in net if isinstance(m, L.WeightNorm))
    net(x)
    assert all((m.running_mean != 0).all() for m in net if isinstance(m, L.WeightNorm))


@pytest.mark.parametrize("kind", [L.Dense, L.BatchNormDense])
def test_frozen_statistics_still_normalises_with_the_batchs_own(kind):
    module, x = randomise(kind(4, 3)), points(7)
    with frozen_statistics(module):
        expected = layer(x.numpy(), Weights.of(module), "train")
        np.testing.assert_allclose(module(x).detach(), expected, rtol=1e-10, atol=1e-12)


def test_frozen_statistics_keeps_a_running_variance_too():
    module = L.BatchNormDense(4, 3)
    with frozen_statistics(module):
        module(torch.randn(9, 3))
        assert (module.running_var == 1).all()
    module(torch.randn(9, 3))
    assert (module.running_var != 1).all()


@pytest.mark.parametrize("context", [initialising, frozen_statistics, shared_noise])
def test_an_exception_inside_a_context_leaves_no_flag_set(context):
    net = noisy_net()
    fresh = flags(net)
    assert fresh  # there are flags to look at
    assert all(value == FLAGS[name] for name, value in fresh)

    def interrupted() -> None:
        with torch.no_grad(), context(net):
            net(torch.randn(9, 3))
            assert flags(net) != fresh
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert flags(net) == fresh


def test_contexts_nest():
    net, x = noisy_net(), torch.randn(9, 3)
    with frozen_statistics(net):
        with torch.no_grad(), initialising(net):
            net(x)
        net(x)  # still frozen when the inner block is left
        assert all((m.running_mean == 0).all() for m in net if isinstance(m, L.WeightNorm))


# --- data-dependent initialisation where there is nothing to set -----------------------------------------------------


@pytest.mark.parametrize("normalisation", ["batch", "batch-logits"])
def test_data_dependent_initialisation_leaves_a_batch_normalised_net_as_it_was(normalisation):
    """Parameters and running statistics, and the pass is an ordinary one."""
    net = SmallNet((1, 16, 16), 3, noise=0.0, dropout=0.0, normalisation=normalisation)
    x = torch.randn(4, 1, 16, 16)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with torch.no_grad(), initialising(net):
        logits = net(x).logits
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert torch.equal(net(x).logits, logits)


# --- two batches in one pass ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("sizes", [(6, 3), (4, 6), (3, 5)], ids=str)
def test_two_batches_in_one_pass_are_two_passes(normalisation, sizes):
    """Outputs, gradients, and running statistics, which follow the second."""
    torch.manual_seed(0)
    net = randomise(SmallNet((1, 16, 16), 3, noise=0.0, dropout=0.0, normalisation=normalisation))
    twin = deepcopy(net)
    x, few = (torch.randn(n, 1, 16, 16, dtype=torch.float64) for n in sizes)
    with two_batches(net, len(x)):
        together = net(torch.cat([x, few]))
    with frozen_statistics(twin):
        one = twin(x)
    other = twin(few)
    for found, *expected in zip(together, one, other, strict=True):
        torch.testing.assert_close(found, torch.cat(expected), rtol=1e-9, atol=1e-12)
    for module in (net, twin):
        logits = together.logits if module is net else torch.cat([one.logits, other.logits])
        (logits * torch.arange(1.0, 1 + logits.numel()).view_as(logits)).sum().backward()
    for (name, p), (_, q) in zip(net.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-8, atol=1e-8, msg=name)
    for (name, p), (_, q) in zip(net.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("first", [9, 12, -2])
def test_rows_that_are_not_two_batches_are_refused(first):
    module = L.BatchNormDense(4, 3)
    with (
        two_batches(module, first),
        pytest.raises(UsageError, match=f"9 rows are not two batches, the first of {first}"),
    ):
        module(torch.randn(9, 3))


def test_of_two_batches_each_run_of_a_stack_has_its_own():
    alone = [randomise(L.BatchNormDense(4, 3), seed) for seed in (1, 2)]
    together, x = stack(alone), points(2, 7)
    with two_batches(together, 5):
        output = together(x)
    for run, module in enumerate(alone):
        with two_batches(module, 5):
            np.testing.assert_allclose(output[run].detach(), module(x[run]).detach(), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(together.running_mean[run], module.running_mean, rtol=1e-10)


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("noise", [N.GaussianNoise(0.5), N.Dropout(0.5)], ids=["Gaussian", "dropout"])
def test_of_two_batches_the_first_sees_the_noise_that_is_shared(noise, runs):
    x, few = torch.ones(runs, 30, 4), torch.ones(runs, 20, 4)
    with shared_noise(noise):
        shared = noise(x)
        with two_batches(noise, 30):
            first, second = (noise(torch.cat([x, few], 1)).split([30, 20], 1) for _ in range(2))
        assert torch.equal(noise(x), shared)
    assert torch.equal(first[0], shared)
    assert torch.equal(second[0], shared)
    assert not torch.equal(first[1], shared[:, :20])  # the labelled rows' is their own
    assert not torch.equal(first[1], second[1])


def test_of_two_batches_a_mask_is_laid_out_as_the_images(monkeypatch):
    """A GPU's kernels read channels-last images, and would copy a mask that is anything else. (What layout a compiled
    step gives it only a GPU can show; benchmarks/results/profiles/masks.txt has what it cost.)"""
    monkeypatch.setattr(N.Dropout, "draw", lambda self, x: torch.ones_like(x))  # as on a GPU
    noise, images = N.Dropout(0.5), torch.ones(1, 5, 4, 6, 8).permute(0, 1, 4, 2, 3)
    with shared_noise(noise):
        noise.drawn(images[:, :3])
        with two_batches(noise, 3):
            assert noise.drawn(images).stride() == images.stride()


# --- running statistics estimated from batches -----------------------------------------------------------------------


def normalised_net() -> nn.Module:
    """Full and mean-only batch normalisation and a layer without any, each on top of what the one below gives."""
    return randomise(nn.Sequential(L.BatchNormDense(5, 3), L.Dense(4, 5), L.BatchNormDense(3, 4), L.AffineDense(2, 3)))


def plain_averages(net: nn.Module, batches: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each layer, the mean over the batches of its outputs' mean and variance in a training pass."""
    sums: list[list[np.ndarray]] = [[] for _ in net]
    for x in batches:
        for module, of_layer in zip(net, sums, strict=True):
            w = Weights.of(module)
            of_layer.append(np.stack(statistics(x, w)))
            x = layer(x, w, "train")
    return [tuple(np.mean(of_layer, 0)) for of_layer in sums]


BATCHES = [points(7, seed=0), points(5, seed=1), points(9, seed=2)]  # batches of any size weigh the same


@pytest.mark.parametrize("training", [True, False])
def test_estimated_statistics_are_the_plain_average_of_the_batches(training):
    """Whatever the running statistics were before, and whichever mode the network is in."""
    net = normalised_net().train(training)
    expected = plain_averages(net, [x.numpy() for x in BATCHES])
    estimate_statistics(net, iter(BATCHES))
    for module, (mean, variance) in zip(net, expected, strict=True):
        if not isinstance(module, L.Affine):
            np.testing.assert_allclose(module.running_mean, mean, rtol=1e-10, atol=1e-12)
        if isinstance(module, L.BatchNorm):
            np.testing.assert_allclose(module.running_var, variance, rtol=1e-10)
    assert net.training is training
    assert all(module.training is training for module in net)


def test_estimating_statistics_changes_nothing_else():
    net = normalised_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    momenta = [0.3, 0.5, 0.7, 0.9]
    for module, momentum in zip(net, momenta, strict=True):
        module.bn_momentum = momentum
    estimate_statistics(net, iter(BATCHES))
    changed = {name for name, tensor in net.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"0.running_mean", "0.running_var", "1.running_mean", "2.running_mean", "2.running_var"}
    assert [module.bn_momentum for module in net] == momenta
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert not any(tensor.requires_grad for tensor in net.buffers())


def test_the_estimated_statistics_of_a_stack_are_each_runs_own():
    alone = [randomise(L.BatchNormDense(4, 3), seed) for seed in (1, 2)]
    together = stack(alone)
    batches = [points(2, 7, seed=seed) for seed in range(3)]
    estimate_statistics(together, iter(batches))
    for run, module in enumerate(alone):
        estimate_statistics(module, iter([x[run] for x in batches]))
        np.testing.assert_allclose(together.running_mean[run], module.running_mean, rtol=1e-10)
        np.testing.assert_allclose(together.running_var[run], module.running_var, rtol=1e-10)


def test_with_statistics_estimated_from_one_batch_evaluation_is_the_training_pass():
    net, x = normalised_net(), points(9, seed=4)
    expected = net.train()(x).detach()
    estimate_statistics(net, iter([x]))
    np.testing.assert_allclose(net.eval()(x).detach(), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("batches_at_once", "passes"), [(0.5, [1] * 5), (1, [1] * 5), (2.9, [2, 2, 1]), (9, [5])])
def test_as_many_batches_share_a_pass_of_an_estimate_as_it_may_have_bytes(monkeypatch, batches_at_once, passes):
    batches = [points(7, seed=seed) for seed in range(5)]
    monkeypatch.setattr(modes, "PASS_BYTES", int(batches_at_once * batches[0].nbytes))
    net, seen = normalised_net(), []
    net[0].register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    expected = plain_averages(net, [x.numpy() for x in batches])
    estimate_statistics(net, iter(batches))
    assert seen == passes
    np.testing.assert_allclose(net[0].running_mean, expected[0][0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(net[2].running_var, expected[2][1], rtol=1e-10)


def test_no_batches_leave_the_statistics_as_they_were():
    net = normalised_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    estimate_statistics(net, iter([]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_without_kernels_no_layer_may_use_them_until_afterwards():
    net = use_precision(SmallNet((1, 16, 16), 3), "tf32", fused=True)
    convolutions = [m for m in net.modules() if isinstance(m, C.ConvMap)]
    with without_kernels(net):
        assert not any(m.fused for m in convolutions)
    assert all(m.fused for m in convolutions)
