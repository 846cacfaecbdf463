"""In how many bits the convolutions compute. Weights, batch means, features, output layer and losses are float32."""

from typing import TypeVar

import torch
from torch import nn

from sntg.models.convolutions import ConvMap

# name -> the type convolutions compute in, None = their weights'; tf32 is float32 in memory and less in a product.
PRECISIONS: dict[str, torch.dtype | None] = {
    "float32": None,
    "tf32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
LOSS_SCALE = {"float16": 1024.0}  # gradients of a mean over images fall below what float16 can hold

Net = TypeVar("Net", bound=nn.Module)


def use_precision(model: Net, precision: str, fused: bool = False) -> Net:
    """Sets what a network's convolutions compute in, here and in its copies, and whether the GPU's kernels for what
    follows them are used, in training and in evaluation without gradients; returns it.

    >>> from sntg.models import SmallNet
    >>> net = use_precision(SmallNet((3, 32, 32), 10), "bfloat16")
    >>> out = net(torch.randn(2, 3, 32, 32))
    >>> net.blocks[0][0].dtype, out.features.dtype, out.logits.dtype
    (torch.bfloat16, torch.float32, torch.float32)
    """
    for module in model.modules():
        if isinstance(module, ConvMap):
            module.dtype = PRECISIONS[precision]
            module.channels_last = precision != "float32"  # the layout that tensor cores read
            module.fused = fused
    return model
