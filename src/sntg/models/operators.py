"""What the operators made of GPU kernels have in common: which images they take, and how these lie in memory.

The functions are custom operators of PyTorch: `torch.compile` keeps each as it is and differentiates through it. What
PyTorch cannot do with such operators is carry a tangent through them, or differentiate their gradients.

Image tensors are (groups, n, C, H, W) in channels-last memory; a group is one view of one batch, with statistics of its
own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sntg.models import grid
from sntg.models.launch import NARROWEST


def can_fuse(x: Tensor, channels: int) -> bool:
    """Whether the operators apply to the output, with that many channels, of a convolution of x."""
    return grid.AVAILABLE and x.is_cuda and x.dtype != torch.float64 and channels % NARROWEST == 0


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Makes a function that launches kernels an operator of that name.

    A compiler asks what an operator returns with tensors that hold nothing. The function itself can tell: it launches
    nothing then, but what it returns has the shapes and strides of the results.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        made = torch.library.custom_op(f"sntg::{name}", function, mutates_args=())
        made.register_fake(function)
        return made

    return decorate


def matrix(x: Tensor) -> Tensor:
    """Images in the memory the kernels read, (groups, n, H, W, C); a copy only if they are not channels-last."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def images(x: Tensor) -> Tensor:
    """The inverse of `matrix`."""
    return x.permute(0, 1, 4, 2, 3)


def new_images(like: Tensor, H: int, W: int, dtype: torch.dtype) -> Tensor:
    """As many images with as many channels, of another size; channels-last."""
    groups, n, C = like.shape[:3]
    return images(torch.empty((groups, n, H, W, C), dtype=dtype, device=like.device))


def new_pooled(y: Tensor) -> tuple[Tensor, Tensor]:
    """A pooled image, and a byte for each of its pixels that says which one of four it was."""
    size = y.shape[3] // 2, y.shape[4] // 2
    return new_images(y, *size, y.dtype), new_images(y, *size, torch.uint8)
