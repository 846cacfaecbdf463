"""The paper's convolutional networks: stacks of convolutions as data, the same layers around and between them.

Input noise, then blocks of convolutions with leaky ReLU, 2x2 max-pooling and dropout between the blocks, global average
pooling to the features h(x), and one dense layer.
"""

from itertools import pairwise, zip_longest
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from sntg.errors import UsageError, unknown
from sntg.models.classifier import Classifier, Output
from sntg.models.convolutions import BatchNormConv, Conv, ConvMap, Trace
from sntg.models.layers import AffineDense, BatchNormDense, Dense, DenseMap
from sntg.models.linearised import Linearised, LinearMap, composed
from sntg.models.noise import Dropout, GaussianNoise

Block = tuple[tuple[int, int, str], ...]  # of (outputs, kernel size, padding)

# name -> (the convolutions, the output layer); VAT's networks may have batch normalisation on the logits too.
NORMALISATIONS: dict[str, tuple[type[ConvMap], type[DenseMap]]] = {
    "mean-only": (Conv, Dense),
    "batch": (BatchNormConv, AffineDense),
    "batch-logits": (BatchNormConv, BatchNormDense),
}


class ConvNet(Classifier):
    """A network of the family; a subclass says which convolutions.

    >>> import torch
    >>> from sntg.models import SmallNet
    >>> SmallNet((3, 32, 32), 10, normalisation="batch")(torch.randn(2, 3, 32, 32)).logits.shape
    torch.Size([2, 10])
    """

    event_dims = 3
    SMALLEST = 16  # below this the last 3x3 valid convolution has nothing left to see
    BLOCKS: ClassVar[tuple[Block, ...]]

    def __init__(
        self,
        image: tuple[int, int, int],
        classes: int,
        noise: float = 0.15,
        dropout: float = 0.5,
        normalisation: str = "mean-only",
    ) -> None:
        super().__init__()
        channels, height, width = image
        if min(height, width) < self.SMALLEST:
            raise UsageError(
                f"the {type(self).__name__} needs images of at least {self.SMALLEST}x{self.SMALLEST}, "
                f"not {height}x{width}"
            )
        if normalisation not in NORMALISATIONS:
            raise unknown("normalisation", normalisation, NORMALISATIONS)
        conv, dense = NORMALISATIONS[normalisation]
        self.noise = GaussianNoise(noise)
        self.blocks = nn.ModuleList()
        for block in self.BLOCKS:
            layers = nn.ModuleList()
            for outputs, size, padding in block:
                layers.append(conv(outputs, channels, size, padding))
                channels = outputs
            self.blocks.append(layers)
        for layer, following in pairwise(m for m in self.blocks.modules() if isinstance(m, ConvMap)):
            layer.feeds = following.taps
        self.dropouts = nn.ModuleList(Dropout(dropout) for _ in self.BLOCKS[1:])
        self.output = dense(classes, channels)

    def h(self, x: Tensor, trace: Trace | None = None) -> Tensor:
        """The features; a `trace` is left what the layers do to tangents and gradients, where they know it."""
        x, sums = self.noise(x), None
        for block, dropout in zip_longest(self.blocks, self.dropouts):
            *inner, last = (layer for layer in block.children() if isinstance(layer, ConvMap))
            for layer in inner:
                x, sums = layer.activated(x, sums, trace)
            if isinstance(dropout, Dropout):
                x, sums = last.pooled(x, dropout, sums, trace)
            else:
                x, sums = last.activated(x, sums, trace)
        if trace is not None:
            trace.append(_mean_map(x))
        return _mean(x)

    def g(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(features)
        return logits

    def linearised(self, x: Tensor) -> tuple[Output, Linearised | None]:
        """The noise is added, so it leaves the derivative alone.

        None for a stack of several runs, and where a layer has no kernels that tell their derivative, as none has whose
        normalisation is mean-only. Else nothing is left to PyTorch's forward mode: a step that has it the compiler
        would not look up in its cache, but trace anew at every start.
        """
        trace: Trace = []
        features = self.h(x, trace)
        output = Output(self.g(features), features)
        if prod(self.runs) > 1 or len(trace) < 1 + sum(map(len, self.BLOCKS)):
            return output, None
        return output, composed(output.logits.detach(), [*trace, self.output.linear(features)])


def _mean(x: Tensor) -> Tensor:
    """Over all places, in float32 or finer."""
    return x.mean((-2, -1), dtype=torch.promote_types(x.dtype, torch.float32))


def _mean_map(x: Tensor) -> LinearMap:
    """`_mean`, of images like x, and its transpose."""
    shape, dtype = x.shape, x.dtype
    return LinearMap(_mean, lambda v: (v / shape[-2:].numel())[..., None, None].expand(shape).to(dtype))
