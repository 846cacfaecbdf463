"""Models by name."""

import pytest
import torch

from sntg.errors import UsageError
from sntg.models import MLP, MODELS, Conv13, Layer, SmallNet, build
from sntg.models.layers import AffineDense, BatchNormDense, Dense


def test_an_mlp_for_vectors():
    net = build("mlp", (2,), 4, noise=0.07, dropout=0.5)
    assert isinstance(net, MLP)
    assert net(torch.randn(3, 2)).logits.shape == (3, 4)
    assert [n.std.item() for n in net.noises] == pytest.approx([0.07] * 4)


def test_a_small_net_for_images():
    net = build("small", (1, 16, 16), 10, noise=0.07, dropout=0.3)
    assert isinstance(net, SmallNet)
    assert net(torch.randn(3, 1, 16, 16)).logits.shape == (3, 10)
    assert net.noise.std.item() == pytest.approx(0.07)
    assert [d.rate for d in net.dropouts] == [0.3, 0.3]


def test_the_papers_net_for_images():
    net = build("conv13", (1, 28, 28), 10, noise=0.07, dropout=0.3)
    assert isinstance(net, Conv13)
    assert net.noise.std.item() == pytest.approx(0.07)
    assert [d.rate for d in net.dropouts] == [0.3, 0.3]


@pytest.mark.parametrize("name", ["small", "conv13"])
def test_vectors_are_refused_by_the_convolutional_nets_with_advice(name):
    with pytest.raises(UsageError, match="use model=mlp"):
        build(name, (2,), 4, 0.1, 0.5)


@pytest.mark.parametrize(
    ("normalisation", "output"), [("mean-only", Dense), ("batch", AffineDense), ("batch-logits", BatchNormDense)]
)
def test_the_normalisation_reaches_the_convolutional_nets(normalisation, output):
    net = build("small", (1, 16, 16), 10, 0.1, 0.5, normalisation=normalisation)
    assert type(net.output) is output


def test_it_is_mean_only_unless_told():
    assert type(build("small", (1, 16, 16), 10, 0.1, 0.5).output) is Dense


def test_the_mlp_has_weight_norm_alone_whatever_the_normalisation():
    net = build("mlp", (2,), 4, 0.1, 0.5, normalisation="batch")
    assert all(type(layer) is Dense and not layer.mean_only_bn for layer in [*net.hidden, net.output])


def test_the_mlp_flattens_images():
    net = build("mlp", (1, 4, 5), 3, noise=0.0, dropout=0.0)
    images = torch.randn(6, 1, 4, 5)
    flat = build("mlp", (20,), 3, noise=0.0, dropout=0.0)
    flat.load_state_dict(net.state_dict())
    assert torch.equal(net(images).logits, flat(images.flatten(1)).logits)


@pytest.mark.parametrize("normalisation", ["mean-only", "batch-logits"])
def test_the_running_statistics_momentum_reaches_every_layer(normalisation):
    net = build("small", (1, 16, 16), 10, noise=0.1, dropout=0.5, bn_momentum=0.9, normalisation=normalisation)
    assert [m.bn_momentum for m in net.modules() if isinstance(m, Layer)] == [0.9] * 6


def test_the_running_statistics_momentum_is_0999_unless_told():
    net = build("small", (1, 16, 16), 10, noise=0.1, dropout=0.5)
    assert {m.bn_momentum for m in net.modules() if isinstance(m, Layer)} == {0.999}


def test_an_unknown_name_is_answered_with_the_nearest_and_all():
    with pytest.raises(UsageError, match="unknown model 'smal': did you mean 'small'") as caught:
        build("smal", (2,), 4, 0.1, 0.5)
    assert all(name in str(caught.value) for name in MODELS)
