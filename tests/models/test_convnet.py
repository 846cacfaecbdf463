"""What the convolutional nets have in common: their normalisations, and views that pass together but stay apart."""

import numpy as np
import pytest
import torch
from layer_references import convnet, layers_of, randomise

from sntg.errors import UsageError
from sntg.models import NORMALISATIONS, Conv13, ConvNet, SmallNet
from sntg.models import convolutions as C
from sntg.models import layers as L

PADDINGS = [[0], [1, 1], [0, 0]]  # the small net's
each_normalisation = pytest.mark.parametrize("normalisation", NORMALISATIONS)
# Every normalisation of the small net, and one case of the paper's.
FAMILY = [(SmallNet, normalisation) for normalisation in NORMALISATIONS] + [(Conv13, "mean-only")]
each_of_the_family = pytest.mark.parametrize(("kind", "normalisation"), FAMILY)


def make(kind: type[ConvNet], normalisation: str, seed: int = 0) -> ConvNet:
    return randomise(kind((1, 16, 16), 3, noise=0.0, dropout=0.0, normalisation=normalisation), seed)


def images(*leading: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)
    return torch.randn(*leading, 1, 16, 16, dtype=torch.float64, generator=g) + 1.0


# --- normalisations --------------------------------------------------------------------------------------------------


@each_normalisation
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_forward_pass_is_the_references(normalisation, mode):
    net, x = make(SmallNet, normalisation).train(mode == "train"), images(3)
    logits, features, _ = convnet(net, x.numpy(), mode, PADDINGS)
    output = net(x)
    np.testing.assert_allclose(output.features.detach(), features, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(output.logits.detach(), logits, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("normalisation", "convolution", "dense"),
    [
        ("mean-only", C.Conv, L.Dense),
        ("batch", C.BatchNormConv, L.AffineDense),
        ("batch-logits", C.BatchNormConv, L.BatchNormDense),
    ],
)
@pytest.mark.parametrize("kind", [SmallNet, Conv13])
def test_every_layer_is_of_the_normalisations_kind(kind, normalisation, convolution, dense):
    *convolutions, output = layers_of(kind((1, 16, 16), 3, normalisation=normalisation))
    assert {type(module) for module in convolutions} == {convolution}
    assert type(output) is dense


def test_with_batch_normalisation_the_logits_are_an_affine_map_of_the_features():
    net = make(SmallNet, "batch")
    output = net(images(5))
    torch.testing.assert_close(output.logits, output.features @ net.output.V.T + net.output.b, rtol=1e-10, atol=1e-12)


def test_with_batch_normalised_logits_each_class_has_the_mean_b_and_the_deviation_g():
    net = make(SmallNet, "batch-logits")
    logits = net(images(5)).logits
    torch.testing.assert_close(logits.mean(0), net.output.b, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits.std(0, correction=0), net.output.g, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", [SmallNet, Conv13])
def test_an_unknown_normalisation_is_answered_with_the_nearest_and_all(kind):
    with pytest.raises(UsageError, match="unknown normalisation 'batch-logit': did you mean 'batch-logits'") as caught:
        kind((1, 16, 16), 3, normalisation="batch-logit")
    assert all(name in str(caught.value) for name in NORMALISATIONS)


# --- two views in one pass -------------------------------------------------------------------------------------------


@each_of_the_family
def test_two_views_in_one_pass_compute_what_two_passes_compute(kind, normalisation):
    """The second view is off by a factor and a constant, so that statistics shared between them would show."""
    net, x = make(kind, normalisation), images(2, 3)
    x[1] = 3 * x[1] - 5
    together = net(x)
    for view in (0, 1):
        alone = net(x[view])
        torch.testing.assert_close(together.logits[view], alone.logits, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(together.features[view], alone.features, rtol=1e-10, atol=1e-12)


@each_of_the_family
def test_running_statistics_follow_the_last_view_in_every_layer(kind, normalisation):
    both, second, x = make(kind, normalisation), make(kind, normalisation), images(2, 3)
    x[1] = 3 * x[1] - 5
    before = {name: buffer.clone() for name, buffer in both.named_buffers()}
    with torch.no_grad():
        both(x)
        second(x[1])
    assert any(not torch.equal(buffer, before[name]) for name, buffer in both.named_buffers())
    for name, buffer in both.named_buffers():
        torch.testing.assert_close(buffer, second.get_buffer(name), rtol=1e-10, atol=1e-12, msg=name)


@each_of_the_family
def test_gradients_of_two_views_in_one_pass_are_the_sum_of_two_passes(kind, normalisation):
    net, x = make(kind, normalisation), images(2, 3)
    weigh = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
    joint = torch.autograd.grad((net(x).logits * weigh).sin().sum(), list(net.parameters()))
    apart = [torch.autograd.grad((net(x[v]).logits * weigh).sin().sum(), list(net.parameters())) for v in (0, 1)]
    for (name, _), together, first, second in zip(net.named_parameters(), joint, *apart, strict=True):
        scale = together.abs().max().item()
        torch.testing.assert_close(together, first + second, rtol=1e-8, atol=1e-10 * (1 + scale), msg=name)
