"""The synthetic runs' network against NumPy, layer after layer."""

import numpy as np
import pytest
import torch
from layer_references import Weights, layer, leaky_relu, randomise

from sntg.models import MLP, initialising


def reference(net: MLP, x: np.ndarray, mode: str, noises=(0.0,) * 4) -> tuple[np.ndarray, np.ndarray, list[Weights]]:
    """Logits, features and the layers' weights as the pass leaves them; noises are added before each layer."""
    weights = [Weights.of(module) for module in [*net.hidden, net.output]]
    for w, noise in zip(weights[:-1], noises, strict=False):
        x = leaky_relu(layer(x + noise, w, mode))
    return layer(x + noises[-1], weights[-1], mode), x, weights


def points(n: int = 9) -> torch.Tensor:
    return torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 1.0


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_forward_pass_is_the_references(mode):
    net, x = randomise(MLP(2, 4, noise=0.0)), points()
    logits, features, _ = reference(net, x.numpy(), mode)
    output = net.train(mode == "train")(x)
    np.testing.assert_allclose(output.logits.detach(), logits, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(output.features.detach(), features, rtol=1e-9, atol=1e-10)


def test_noise_enters_before_every_layer_and_features_are_free_of_the_last(monkeypatch):
    net, x = randomise(MLP(2, 4, noise=0.3, hidden=6)), points()
    rng, draws = np.random.default_rng(0), []
    for noise in net.noises:
        draw = rng.normal(size=(9, 2 if not draws else 6))
        draws.append(draw)
        monkeypatch.setattr(noise, "draw", lambda _, draw=draw: torch.from_numpy(draw))
    scale = net.noises[0].std.item()
    logits, features, _ = reference(net, x.numpy(), "train", [scale * d for d in draws])
    output = net(x)
    np.testing.assert_allclose(output.features.detach(), features, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(output.logits.detach(), logits, rtol=1e-9, atol=1e-10)


def test_data_dependent_initialisation_goes_layer_after_layer():
    """Each layer's deviation is that of the output it has once the layers below are already rescaled."""
    torch.manual_seed(0)
    net, x = MLP(2, 4, noise=0.0).double(), points(50)
    _, _, weights = reference(net, x.numpy(), "initialise")
    with torch.no_grad(), initialising(net):
        net(x)
    for module, w in zip([*net.hidden, net.output], weights, strict=True):
        np.testing.assert_allclose(module.g.detach(), w.g, rtol=1e-9)
        np.testing.assert_allclose(module.b.detach(), w.b, rtol=1e-8, atol=1e-12)
        assert (module.g != 1).all()
    logits = net(x).logits.detach()
    np.testing.assert_allclose(logits.std(0, correction=0), 1.0, rtol=1e-9)
    np.testing.assert_allclose(logits.mean(0), 0.0, atol=1e-12)


def test_it_has_weight_norm_alone_so_rows_do_not_know_of_each_other():
    """The paper's words for the synthetic runs are weight normalisation and noise: no batch means."""
    net, x = randomise(MLP(2, 4, noise=0.0)), points()
    assert not any(module.mean_only_bn for module in [*net.hidden, net.output])
    np.testing.assert_allclose(net(x).logits[:4].detach(), net(x[:4]).logits.detach(), rtol=1e-10, atol=1e-12)


def test_sizes_are_the_papers():
    net = MLP(2, 4)
    assert [tuple(m.V.shape) for m in [*net.hidden, net.output]] == [(100, 2), (100, 100), (100, 100), (4, 100)]
    assert net.event_dims == 1


@pytest.mark.parametrize("leading", [(7,), (2, 7), (3, 2, 7)])
def test_shapes(leading):
    output = MLP(2, 4)(torch.randn(*leading, 2))
    assert output.logits.shape == (*leading, 4)
    assert output.features.shape == (*leading, 100)
