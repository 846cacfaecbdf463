"""A convolution of images with few channels, as a product with patches.

Tensor cores take channels in eights: an image of three would leave most of them idle. So what each output pixel sees
becomes the channels of a pixel, and the convolution one of size 1.
"""

from functools import reduce
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

EIGHT = 8


def to_patches(images: Tensor, size: int, padding: int) -> Tensor:
    """What each output pixel sees as the channels of a pixel, (n, channels * size^2 and some zeros, height, width)."""
    padded = F.pad(images, (padding,) * 4)
    seen = padded.unfold(2, size, 1).unfold(3, size, 1)  # (n, channels, height, width, size, size), no copy yet
    patches = seen.permute(0, 4, 5, 1, 2, 3).flatten(1, 3)
    return F.pad(patches, (0, 0, 0, 0, 0, -patches.shape[1] % EIGHT))


def from_patches(patches: Tensor, channels: int, size: int, padding: int) -> Tensor:
    """The transpose of `to_patches`: each pixel of the images gets the sum, in float32, of its places in patches."""
    parts = torch.split(patches[:, : size * size * channels].float(), channels, 1)
    end = size - 1
    places = product(range(size), repeat=2)
    placed = [F.pad(part, (j, end - j, i, end - i)) for part, (i, j) in zip(parts, places, strict=True)]
    padded = reduce(torch.add, placed)
    height, width = (length - padding for length in padded.shape[-2:])
    return padded[..., padding:height, padding:width]


def as_1x1(weight: Tensor) -> Tensor:
    """The weight that does to patches what the given one does to images."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)
    return F.pad(flat, (0, -flat.shape[1] % EIGHT))[..., None, None]
