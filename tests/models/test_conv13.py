"""The paper's network against its table, and against NumPy layer after layer."""

import numpy as np
import pytest
import torch
from layer_references import convnet, layers_of, randomise

from sntg.errors import UsageError
from sntg.models import Conv13, initialising

# The appendix's table. Convolutions as (kernel size, outputs, whether the size stays); "pool" halves it.
TABLE = [
    (3, 128, "same"),
    (3, 128, "same"),
    (3, 128, "same"),
    "pool",
    (3, 256, "same"),
    (3, 256, "same"),
    (3, 256, "same"),
    "pool",
    (3, 512, "valid"),
    (1, 256, "valid"),
    (1, 128, "valid"),
]
PADDINGS = [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


def shapes_by_the_table(channels: int, size: int) -> list[tuple[int, ...]]:
    """What comes out of each convolution and pool for one image, one after the other."""
    shapes = []
    for line in TABLE:
        if line == "pool":
            size //= 2
        else:
            kernel, channels, padding = line
            size -= 0 if padding == "same" else kernel - 1
        shapes.append((channels, size, size))
    return shapes


def images(n: int, channels: int = 1, size: int = 16) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)
    return torch.randn(n, channels, size, size, dtype=torch.float64, generator=g) + 1.0


@pytest.mark.parametrize(("channels", "size", "before_the_pool"), [(3, 32, 6), (1, 28, 5), (1, 16, 2), (3, 19, 2)])
def test_every_layer_has_the_shape_the_table_gives_it(channels, size, before_the_pool):
    net, given = Conv13((channels, size, size), 10), []
    for module in (*layers_of(net), *net.dropouts):
        module.register_forward_hook(lambda _, inputs, output: given.append(tuple(output.shape[1:])))
    with torch.no_grad():
        output = net(torch.randn(1, channels, size, size))
    expected = shapes_by_the_table(channels, size)
    assert expected[-1] == (128, before_the_pool, before_the_pool)
    assert given == [*expected, (10,)]
    assert output.features.shape == (1, 128)
    assert output.logits.shape == (1, 10)


def test_images_need_not_be_square():
    with torch.no_grad():
        assert Conv13((1, 16, 20), 10)(torch.randn(2, 1, 16, 20)).features.shape == (2, 128)


@pytest.mark.parametrize("image", [(3, 15, 16), (3, 16, 15), (1, 8, 8)])
def test_images_too_small_are_refused(image):
    with pytest.raises(UsageError, match=f"the Conv13 needs images of at least 16x16, not {image[1]}x{image[2]}"):
        Conv13(image, 10)


@pytest.mark.parametrize(
    ("image", "classes", "normalisation", "scales_missing"),
    [
        ((3, 32, 32), 10, "mean-only", 0),
        ((1, 28, 28), 10, "mean-only", 0),
        ((3, 32, 32), 100, "mean-only", 0),
        ((3, 32, 32), 10, "batch-logits", 0),
        ((3, 32, 32), 10, "batch", 10),  # the logits have a bias and no scale
    ],
)
def test_the_parameters_are_as_many_as_the_table_needs(image, classes, normalisation, scales_missing):
    inputs, count = image[0], 0
    for line in (*TABLE, (1, classes, "dense")):
        if line != "pool":
            kernel, outputs, _ = line
            count += kernel * kernel * inputs * outputs + 2 * outputs  # V, and g and b
            inputs = outputs
    net = Conv13(image, classes, normalisation=normalisation)
    assert sum(p.numel() for p in net.parameters()) == count - scales_missing
    if image == (3, 32, 32) and classes == 10:
        assert count == 3_121_812


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_forward_pass_is_the_references(mode):
    net, x = randomise(Conv13((1, 16, 16), 10, noise=0.0, dropout=0.0)), images(3)
    logits, features, _ = convnet(net, x.numpy(), mode, PADDINGS)
    with torch.no_grad():
        output = net.train(mode == "train")(x)
    np.testing.assert_allclose(output.features, features, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(output.logits, logits, rtol=1e-9, atol=1e-10)


def test_noise_enters_at_the_input_and_dropout_after_each_pool(monkeypatch):
    net, x, rng = randomise(Conv13((1, 16, 16), 10)), images(3), np.random.default_rng(0)
    noise = rng.normal(size=x.shape)
    masks = [2.0 * rng.integers(0, 2, (3, 128, 8, 8)), 2.0 * rng.integers(0, 2, (3, 256, 4, 4))]
    monkeypatch.setattr(net.noise, "draw", lambda _: torch.from_numpy(noise))
    for dropout, mask in zip(net.dropouts, masks, strict=True):
        monkeypatch.setattr(dropout, "draw", lambda _, mask=mask: torch.from_numpy(mask))
    logits, _, _ = convnet(net, x.numpy(), "train", PADDINGS, 0.15 * noise, masks)
    with torch.no_grad():
        np.testing.assert_allclose(net(x).logits, logits, rtol=1e-6, atol=1e-8)  # 0.15 is kept in float32


def test_data_dependent_initialisation_goes_layer_after_layer():
    """Each layer's deviation is that of the output it has once the layers below are already rescaled."""
    torch.manual_seed(0)
    net, x = Conv13((1, 16, 16), 10, noise=0.0, dropout=0.0).double(), images(6)
    _, _, weights = convnet(net, x.numpy(), "initialise", PADDINGS)
    with torch.no_grad(), initialising(net):
        net(x)
    for module, w in zip(layers_of(net), weights, strict=True):
        np.testing.assert_allclose(module.g.detach(), w.g, rtol=1e-8)
        assert (module.g != 1).all()
        assert (module.b == 0).all()
    with torch.no_grad():
        logits = net(x).logits
    np.testing.assert_allclose(logits.std(0, correction=0), 1.0, rtol=1e-9)
    np.testing.assert_allclose(logits.mean(0), 0.0, atol=1e-10)


def test_every_layer_has_mean_only_normalisation_the_dense_one_too():
    layers = layers_of(Conv13((3, 32, 32), 10))
    assert len(layers) == 10
    assert all(module.mean_only_bn for module in layers)


def test_noise_and_dropout_are_the_tables_unless_told():
    net = Conv13((3, 32, 32), 10)
    assert net.noise.std.item() == pytest.approx(0.15)
    assert [d.rate for d in net.dropouts] == [0.5, 0.5]
    assert net.event_dims == 3
