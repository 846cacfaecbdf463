"""All parameters of a network as one tensor: updating many small ones then costs no more than updating a large one."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def flatten(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor that holds the parameters end to end; they become views of it. Those that already are stay so.

    >>> net = torch.nn.Linear(2, 1)
    >>> theta = flatten(list(net.parameters()))
    >>> theta.zero_()
    tensor([0., 0., 0.])
    >>> net.weight.data, flatten(list(net.parameters())).data_ptr() == theta.data_ptr()
    (tensor([[0., 0.]]), True)
    """
    parts = [p.data for p in parameters]
    if not _end_to_end(parts):
        whole = torch.cat([part.flatten() for part in parts])
        for parameter, part in zip(parameters, split_like(whole, parts), strict=True):
            parameter.data = part
        return whole
    return parts[0].as_strided((sum(part.numel() for part in parts),), (1,))


def split_like(whole: Tensor, parts: Iterable[Tensor]) -> list[Tensor]:
    """Views of a flat tensor in the shapes of the given tensors.

    >>> split_like(torch.arange(3), [torch.zeros(1, 2), torch.zeros(1)])
    [tensor([[0, 1]]), tensor([2])]
    """
    shapes = [part.shape for part in parts]
    views = torch.split(whole, [shape.numel() for shape in shapes])
    return [view.view(shape) for view, shape in zip(views, shapes, strict=True)]


def _end_to_end(parts: list[Tensor]) -> bool:
    """Whether each tensor begins where the one before ends, in the same memory."""
    place = parts[0].storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == parts[0].untyped_storage().data_ptr()
        if not (same and part.storage_offset() == place and part.is_contiguous()):
            return False
        place += part.numel()
    return True
