"""Augmentation of a whole batch at once, on the device it is on.

x is (..., channels, height, width), the leading axes any batch of images; each image gets a draw of its own.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

PADDINGS = {"reflect": "reflect", "zero": "constant"}  # our names -> PyTorch's


def flip(x: Tensor) -> Tensor:
    """Mirrors each image left to right, or not, with equal probability.

    >>> flip(torch.ones(4, 1, 8, 8)).shape
    torch.Size([4, 1, 8, 8])
    """
    mirrored = torch.rand(*x.shape[:-3], 1, 1, 1, device=x.device) < 0.5
    return torch.where(mirrored, x.flip(-1), x)


def translate(x: Tensor, pixels: int, padding: str = "reflect") -> Tensor:
    """Moves each image by up to `pixels` in each direction; what enters at the border is reflected there, or zero.

    >>> translate(torch.ones(4, 1, 8, 8), 2).shape
    torch.Size([4, 1, 8, 8])
    """
    return crop(pad(x, pixels, padding), pixels)


def pad(x: Tensor, pixels: int, padding: str = "reflect") -> Tensor:
    """Puts a border around each image, reflected or zero.

    >>> pad(torch.ones(4, 1, 8, 8), 2).shape
    torch.Size([4, 1, 12, 12])
    """
    if pixels == 0:
        return x
    padded = F.pad(x.flatten(0, -4), (pixels,) * 4, mode=PADDINGS[padding])
    return padded.reshape(*x.shape[:-2], *padded.shape[-2:])


def crop(padded: Tensor, pixels: int) -> Tensor:
    """A window of each image that `pad` gave a border, of the size it had before, at a place of its own.

    >>> crop(torch.ones(4, 1, 12, 12), 2).shape
    torch.Size([4, 1, 8, 8])
    """
    if pixels == 0:
        return padded
    images = padded.flatten(0, -4)
    n, device = len(images), padded.device
    height, width = (size - 2 * pixels for size in images.shape[-2:])
    top, left = torch.randint(0, 2 * pixels + 1, (2, n, 1), device=device)
    rows = top + torch.arange(height, device=device)
    columns = left + torch.arange(width, device=device)
    image = torch.arange(n, device=device)[:, None, None]
    # Indexing with broadcast arrays picks each image's window; the channel axis ends up last, so it is put back.
    moved = images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).reshape(*padded.shape[:-2], height, width)


def centre(padded: Tensor, pixels: int) -> Tensor:
    """The images as they were before `pad`.

    >>> image = torch.rand(1, 1, 8, 8)
    >>> centre(pad(image, 2), 2).equal(image)
    True
    """
    return padded[..., pixels : padded.shape[-2] - pixels, pixels : padded.shape[-1] - pixels] if pixels else padded
