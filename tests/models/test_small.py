"""The small convolutional net against NumPy, layer after layer."""

import numpy as np
import pytest
import torch
from layer_references import convnet, layers_of, randomise

from sntg.errors import UsageError
from sntg.models import SmallNet, initialising

# 5x5 valid, pool, dropout, two 3x3 same, pool, dropout, 3x3 valid, 1x1, global average pooling, dense.
PADDINGS = [[0], [1, 1], [0, 0]]


def images(n: int = 3, channels: int = 1, size: int = 16) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)
    return torch.randn(n, channels, size, size, dtype=torch.float64, generator=g) + 1.0


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 19)])
def test_the_forward_pass_is_the_references(mode, channels, size):
    net, x = randomise(SmallNet((channels, size, size), 10, noise=0.0, dropout=0.0)), images(3, channels, size)
    logits, features, _ = convnet(net, x.numpy(), mode, PADDINGS)
    output = net.train(mode == "train")(x)
    np.testing.assert_allclose(output.features.detach(), features, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(output.logits.detach(), logits, rtol=1e-9, atol=1e-10)


def test_noise_enters_at_the_input_and_dropout_after_each_pool(monkeypatch):
    net, x, rng = randomise(SmallNet((1, 16, 16), 10)), images(), np.random.default_rng(0)
    noise = rng.normal(size=x.shape)
    masks = [2.0 * rng.integers(0, 2, (3, 32, 6, 6)), 2.0 * rng.integers(0, 2, (3, 64, 3, 3))]
    monkeypatch.setattr(net.noise, "draw", lambda _: torch.from_numpy(noise))
    for dropout, mask in zip(net.dropouts, masks, strict=True):
        monkeypatch.setattr(dropout, "draw", lambda _, mask=mask: torch.from_numpy(mask))
    logits, _, _ = convnet(net, x.numpy(), "train", PADDINGS, net.noise.std.item() * noise, masks)
    np.testing.assert_allclose(net(x).logits.detach(), logits, rtol=1e-9, atol=1e-10)


def test_data_dependent_initialisation_goes_layer_after_layer():
    torch.manual_seed(0)
    net, x = SmallNet((1, 16, 16), 10, noise=0.0, dropout=0.0).double(), images(20)
    _, _, weights = convnet(net, x.numpy(), "initialise", PADDINGS)
    with torch.no_grad(), initialising(net):
        net(x)
    for module, w in zip(layers_of(net), weights, strict=True):
        np.testing.assert_allclose(module.g.detach(), w.g, rtol=1e-8)
        assert (module.g != 1).all()


def test_sizes_are_the_references():
    shapes = [tuple(m.V.shape) for m in layers_of(SmallNet((3, 16, 16), 10))]
    assert shapes == [(32, 3, 5, 5), (64, 32, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3), (128, 128, 1, 1), (10, 128)]
    assert SmallNet.event_dims == 3


def test_every_layer_has_mean_only_normalisation_the_dense_one_too():
    assert all(m.mean_only_bn for m in layers_of(SmallNet((3, 16, 16), 10)))


def test_noise_and_dropout_are_as_asked_for():
    net = SmallNet((1, 16, 16), 10, noise=0.25, dropout=0.3)
    assert net.noise.std.item() == pytest.approx(0.25)
    assert [d.rate for d in net.dropouts] == [0.3, 0.3]


@pytest.mark.parametrize("leading", [(3,), (2, 3), (2, 2, 3)])
def test_shapes(leading):
    output = SmallNet((1, 16, 16), 10)(torch.randn(*leading, 1, 16, 16))
    assert output.logits.shape == (*leading, 10)
    assert output.features.shape == (*leading, 128)


@pytest.mark.parametrize("image", [(1, 15, 16), (1, 16, 15), (3, 8, 8)])
def test_images_too_small_are_refused(image):
    with pytest.raises(UsageError, match=f"at least 16x16, not {image[1]}x{image[2]}"):
        SmallNet(image, 10)
