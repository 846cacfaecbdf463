"""A network layer by layer, against numbers worked out by hand."""

import pytest
import torch

from sntg.models import MLP, Conv13, SmallNet
from sntg.models.summary import summarise


def rows(*lines: tuple[str, str, int]) -> list[dict[str, object]]:
    return [{"layer": layer, "output": output, "parameters": parameters} for layer, output, parameters in lines]


def test_the_papers_network_is_told_line_by_line():
    """A convolution of k x k from i to o channels has k k i o weights, o scales and o biases."""
    assert summarise(Conv13((3, 32, 32), 10), (3, 32, 32)) == rows(
        ("Gaussian noise 0.15", "3x32x32", 0),
        ("3x3 conv. 128 same", "128x32x32", 3_712),  # 9 * 3 * 128 + 2 * 128
        ("3x3 conv. 128 same", "128x32x32", 147_712),  # 9 * 128 * 128 + 2 * 128
        ("3x3 conv. 128 same", "128x32x32", 147_712),
        ("2x2 max-pool, dropout 0.5", "128x16x16", 0),
        ("3x3 conv. 256 same", "256x16x16", 295_424),  # 9 * 128 * 256 + 2 * 256
        ("3x3 conv. 256 same", "256x16x16", 590_336),  # 9 * 256 * 256 + 2 * 256
        ("3x3 conv. 256 same", "256x16x16", 590_336),
        ("2x2 max-pool, dropout 0.5", "256x8x8", 0),
        ("3x3 conv. 512 valid", "512x6x6", 1_180_672),  # 9 * 256 * 512 + 2 * 512
        ("1x1 conv. 256 same", "256x6x6", 131_584),  # 512 * 256 + 2 * 256
        ("1x1 conv. 128 same", "128x6x6", 33_024),  # 256 * 128 + 2 * 128
        ("global average pool", "128", 0),
        ("dense 128 -> 10", "10", 1_300),  # 128 * 10 + 2 * 10
        ("all", "10", 3_121_812),
    )


def test_digits_of_28x28_are_5x5_before_the_pool():
    table = summarise(Conv13((1, 28, 28), 10), (1, 28, 28))
    assert [row["output"] for row in table[9:]] == ["512x5x5", "256x5x5", "128x5x5", "128", "10", "10"]
    assert table[1]["parameters"] == 9 * 128 + 2 * 128
    assert table[-1]["parameters"] == 3_121_812 - 2 * 9 * 128


def test_the_small_net_with_other_noise_and_without_a_scale_on_the_logits():
    net = SmallNet((1, 16, 16), 10, noise=0.0, dropout=0.3, normalisation="batch")
    assert summarise(net, (1, 16, 16)) == rows(
        ("Gaussian noise 0", "1x16x16", 0),
        ("5x5 conv. 32 valid", "32x12x12", 864),  # 25 * 32 + 2 * 32
        ("2x2 max-pool, dropout 0.3", "32x6x6", 0),
        ("3x3 conv. 64 same", "64x6x6", 18_560),  # 9 * 32 * 64 + 2 * 64
        ("3x3 conv. 64 same", "64x6x6", 36_992),  # 9 * 64 * 64 + 2 * 64
        ("2x2 max-pool, dropout 0.3", "64x3x3", 0),
        ("3x3 conv. 128 valid", "128x1x1", 73_984),  # 9 * 64 * 128 + 2 * 128
        ("1x1 conv. 128 same", "128x1x1", 16_640),  # 128 * 128 + 2 * 128
        ("global average pool", "128", 0),
        ("dense 128 -> 10", "10", 1_290),  # 128 * 10 + 10
        ("all", "10", 148_330),
    )


MLP_ROWS = [
    ("Gaussian noise 0.08", "100", 0),
    ("dense 100 -> 100", "100", 10_200),
    ("Gaussian noise 0.08", "100", 0),
    ("dense 100 -> 100", "100", 10_200),
    ("Gaussian noise 0.08", "100", 0),
]


def test_the_mlp_has_noise_before_every_layer():
    assert summarise(MLP(2, 4), (2,)) == rows(
        ("Gaussian noise 0.08", "2", 0),
        ("dense 2 -> 100", "100", 400),
        *MLP_ROWS,
        ("dense 100 -> 4", "4", 408),
        ("all", "4", 21_208),
    )


def test_an_mlp_of_images_flattens_and_pools_nothing():
    assert summarise(MLP((1, 4, 5), 4), (1, 4, 5)) == rows(
        ("Gaussian noise 0.08", "20", 0),
        ("dense 20 -> 100", "100", 2_200),
        *MLP_ROWS,
        ("dense 100 -> 4", "4", 408),
        ("all", "4", 23_008),
    )


@pytest.mark.parametrize("training", [True, False])
def test_a_look_at_a_network_leaves_it_as_it_was(training):
    net = SmallNet((1, 16, 16), 10, normalisation="batch-logits").train(training)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    first = summarise(net, (1, 16, 16))
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(module.training is training for module in net.modules())
    assert not any(module._forward_hooks for module in net.modules())
    assert summarise(net, (1, 16, 16)) == first
