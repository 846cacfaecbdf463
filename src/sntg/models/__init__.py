"""The networks. Each returns logits and features; a new one is a file here and a line in MODELS."""

from collections.abc import Callable

from sntg.errors import UsageError, unknown
from sntg.models.classifier import Classifier, Output, stack, unstack
from sntg.models.conv13 import Conv13
from sntg.models.convnet import NORMALISATIONS, ConvNet
from sntg.models.flat import flatten, split_like
from sntg.models.layers import BN_MOMENTUM, Layer
from sntg.models.linearised import Linearised, differentiated
from sntg.models.mlp import MLP
from sntg.models.modes import (
    at_once,
    estimate_statistics,
    frozen_statistics,
    initialising,
    shared_noise,
    two_batches,
    without_kernels,
)
from sntg.models.precision import LOSS_SCALE, PRECISIONS, use_precision
from sntg.models.small import SmallNet

__all__ = [
    "BN_MOMENTUM",
    "CONVOLUTIONAL",
    "LOSS_SCALE",
    "MLP",
    "MODELS",
    "NORMALISATIONS",
    "PRECISIONS",
    "Classifier",
    "Conv13",
    "ConvNet",
    "Layer",
    "Linearised",
    "Output",
    "SmallNet",
    "at_once",
    "build",
    "differentiated",
    "estimate_statistics",
    "flatten",
    "frozen_statistics",
    "initialising",
    "shared_noise",
    "split_like",
    "stack",
    "two_batches",
    "unstack",
    "use_precision",
    "without_kernels",
]

Builder = Callable[[tuple[int, ...], int, float, float, str], Classifier]


def _mlp(event: tuple[int, ...], classes: int, noise: float, dropout: float, normalisation: str) -> Classifier:
    return MLP(event, classes, noise)


def _convnet(kind: type[ConvNet]) -> Builder:
    def build(event: tuple[int, ...], classes: int, noise: float, dropout: float, normalisation: str) -> Classifier:
        if len(event) != 3:
            raise UsageError(f"the {kind.__name__} takes images, and these inputs are {event}: use model=mlp")
        return kind((event[0], event[1], event[2]), classes, noise, dropout, normalisation)

    return build


CONVOLUTIONAL: dict[str, type[ConvNet]] = {"small": SmallNet, "conv13": Conv13}
MODELS: dict[str, Builder] = {"mlp": _mlp} | {name: _convnet(kind) for name, kind in CONVOLUTIONAL.items()}


def build(
    name: str,
    event: tuple[int, ...],
    classes: int,
    noise: float,
    dropout: float,
    bn_momentum: float = BN_MOMENTUM,
    normalisation: str = "mean-only",
) -> Classifier:
    """The model called `name` for inputs of shape `event`. The MLP has weight norm alone, whatever `normalisation`.

    >>> type(build("mlp", (2,), 4, noise=0.1, dropout=0.0)).__name__
    'MLP'
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    model = MODELS[name](event, classes, noise, dropout, normalisation)
    for module in model.modules():
        if isinstance(module, Layer):
            module.bn_momentum = bn_momentum
    return model
