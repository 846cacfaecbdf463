"""Convolutions of images with few channels as products with patches, and the transposes of all convolutions."""

import pytest
import torch
import torch.nn.functional as F

from sntg.models import convolutions as C
from sntg.models import stack
from sntg.models.patches import as_1x1, from_patches, to_patches

CASES = [(3, 3, 1), (1, 5, 0), (3, 5, 2), (7, 3, 0), (4, 1, 0)]  # channels, size, padding
each_case = pytest.mark.parametrize(("channels", "size", "padding"), CASES)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@each_case
def test_a_product_with_patches_is_the_convolution(channels, size, padding):
    images, weight = random(2, channels, 9, 8), random(16, channels, size, size, seed=1)
    patches = to_patches(images, size, padding)
    assert patches.shape[1] % 8 == 0
    torch.testing.assert_close(F.conv2d(patches, as_1x1(weight)), F.conv2d(images, weight, padding=padding))


@each_case
def test_what_comes_back_from_patches_is_the_transpose(channels, size, padding):
    images = random(2, channels, 9, 8)
    patches = to_patches(images, size, padding)
    u = random(*patches.shape, seed=2)
    back = from_patches(u, channels, size, padding)
    assert back.shape == images.shape
    torch.testing.assert_close((u * patches).sum((1, 2, 3)), (back * images).sum((1, 2, 3)), rtol=1e-5, atol=1e-5)


def test_what_comes_back_from_16_bit_patches_is_added_up_in_float32():
    patches = torch.full((1, 16, 4, 4), 1.0 + 2**-7, dtype=torch.bfloat16)
    assert from_patches(patches, 1, 3, 0)[0, 0, 2, 2].item() == 9 * (1.0 + 2**-7)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("runs", [0, 1])
@pytest.mark.parametrize(
    ("inputs", "size", "padding"), [(3, 3, "same"), (3, 5, "valid"), (9, 3, "same"), (9, 1, "valid")]
)
def test_the_transposed_map_is_the_transpose_of_the_linear_map(inputs, size, padding, runs, channels_last):
    torch.manual_seed(0)
    module = C.BatchNormConv(4, inputs, size, padding).double()
    module.channels_last = channels_last
    module = stack([module]) if runs else module
    x = random(*(1,) * runs, 2, inputs, 7, 6)
    y = module.linear_map(x, module.weight())
    u = random(*y.shape, seed=1)
    back = module.transposed_map(u, module.weight())
    assert back.shape == x.shape
    (expected,) = torch.autograd.grad(module.linear_map(x.requires_grad_(), module.weight()), x, u)
    torch.testing.assert_close(back.double(), expected, rtol=1e-5, atol=1e-5)
