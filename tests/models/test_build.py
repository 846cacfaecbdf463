"""Models by name."""

import pytest
import torch

from sntg.errors import UsageError
from sntg.models import MLP, MODELS, SmallNet, build


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


@pytest.mark.parametrize(
    ("name", "event", "advice"), [("mlp", (1, 16, 16), "use model=small"), ("small", (2,), "use model=mlp")]
)
def test_inputs_of_the_wrong_kind_are_refused_with_advice(name, event, advice):
    with pytest.raises(UsageError, match=advice):
        build(name, event, 4, 0.1, 0.5)


def test_an_unknown_name_is_answered_with_the_nearest_and_all():
    with pytest.raises(UsageError, match="unknown model 'smal': did you mean 'small'") as caught:
        build("smal", (2,), 4, 0.1, 0.5)
    assert all(name in str(caught.value) for name in MODELS)
