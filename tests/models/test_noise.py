"""Gaussian noise and dropout: what they draw, and when they draw nothing."""

import numpy as np
import pytest
import torch

from sntg.models import noise as N
from sntg.models import stack


def test_noise_has_the_deviation_asked_for_and_no_mean():
    torch.manual_seed(0)
    noise = N.GaussianNoise(0.15)(torch.full((500, 500), 2.0)) - 2.0
    assert noise.mean().item() == pytest.approx(0.0, abs=0.002)
    assert noise.std().item() == pytest.approx(0.15, rel=0.01)
    assert (noise / 0.15).pow(4).mean().item() == pytest.approx(3.0, rel=0.05)  # a Gaussian's kurtosis


def test_noise_of_a_stack_has_each_runs_own_deviation():
    torch.manual_seed(0)
    module = stack([N.GaussianNoise(0.1), N.GaussianNoise(0.5), N.GaussianNoise(0.0)])
    noise = module(torch.zeros(3, 2, 1000, 50))
    np.testing.assert_allclose(noise.flatten(1).std(1), [0.1, 0.5, 0.0], rtol=0.02)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_dropout_zeroes_its_share_and_scales_up_the_rest(rate):
    torch.manual_seed(0)
    output = N.Dropout(rate)(torch.full((500, 500), 3.0))
    kept = output != 0
    torch.testing.assert_close(output[kept].unique(), torch.tensor([3.0 / (1 - rate)]))
    assert kept.float().mean().item() == pytest.approx(1 - rate, abs=0.005)


def test_on_a_cpu_the_same_entries_are_dropped_however_they_lie_in_memory():
    """Compiled code may lay a tensor out in another way than eager code, and draws the same numbers."""
    x = torch.ones(4, 3, 8, 8)
    masks = []
    for laid_out in (x, x.to(memory_format=torch.channels_last), x.transpose(0, 1).contiguous().transpose(0, 1)):
        torch.manual_seed(0)
        masks.append(N.Dropout(0.5)(laid_out))
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])


def test_dropout_drops_entries_independently():
    torch.manual_seed(0)
    kept = (N.Dropout(0.5)(torch.ones(4, 5, 2000)) != 0).flatten(0, 1).double()
    correlation = torch.corrcoef(kept) - torch.eye(20)
    assert correlation.abs().max() < 0.1


def test_dropout_passes_the_gradient_where_it_kept():
    x = torch.ones(50, requires_grad=True)
    output = N.Dropout(0.5)(x)
    output.sum().backward()
    assert torch.equal(x.grad, output.detach())


PERTURBATIONS = [N.GaussianNoise(0.3), N.Dropout(0.5)]


@pytest.mark.parametrize("module", PERTURBATIONS, ids=["noise", "dropout"])
def test_evaluation_is_free_of_noise(module):
    x = torch.randn(20, 3)
    assert torch.equal(module.eval()(x), x)
    module.train()


@pytest.mark.parametrize("module", PERTURBATIONS, ids=["noise", "dropout"])
def test_passes_and_views_draw_anew(module):
    x = torch.ones(2, 100)
    first, second = module(x), module(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("module", [N.GaussianNoise(0.0), N.Dropout(0.0)], ids=["noise", "dropout"])
def test_none_of_it_changes_nothing(module):
    x = torch.randn(20, 3)
    assert torch.equal(module(x), x)


def test_the_base_class_draws_nothing_itself():
    with pytest.raises(NotImplementedError):
        N.Perturbation()(torch.ones(3, 2))
    with pytest.raises(NotImplementedError):
        N.Perturbation().apply_draw(torch.ones(3, 2), torch.ones(3, 2))
