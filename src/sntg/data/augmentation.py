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
    if pixels == 0:
        return x
    images = x.flatten(0, -4)
    n, _, height, width = images.shape
    padded = F.pad(images, (pixels,) * 4, mode=PADDINGS[padding])
    top, left = torch.randint(0, 2 * pixels + 1, (2, n, 1), device=x.device)
    rows = top + torch.arange(height, device=x.device)
    columns = left + torch.arange(width, device=x.device)
    image = torch.arange(n, device=x.device)[:, None, None]
    # Indexing with broadcast arrays picks each image's window; the channel axis ends up last, so it is put back.
    moved = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).reshape(x.shape)
