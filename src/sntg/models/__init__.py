"""The networks. Each returns logits and features; a new one is a file here and a line in MODELS."""

from collections.abc import Callable

from sntg.errors import UsageError, unknown
from sntg.models.classifier import Classifier, Output, stack, unstack
from sntg.models.layers import BN_MOMENTUM, WeightNorm, frozen_statistics, initialising, shared_noise
from sntg.models.mlp import MLP
from sntg.models.small import SmallNet

__all__ = ["BN_MOMENTUM", "MLP", "MODELS", "Classifier", "Output", "SmallNet", "build", "stack", "unstack"]
__all__ += ["frozen_statistics", "initialising", "shared_noise"]


def _mlp(event: tuple[int, ...], classes: int, noise: float, dropout: float) -> Classifier:
    return MLP(event, classes, noise)


def _small(event: tuple[int, ...], classes: int, noise: float, dropout: float) -> Classifier:
    if len(event) != 3:
        raise UsageError(f"the model 'small' takes images, and these inputs are {event}: use model=mlp")
    return SmallNet((event[0], event[1], event[2]), classes, noise, dropout)


MODELS: dict[str, Callable[[tuple[int, ...], int, float, float], Classifier]] = {"mlp": _mlp, "small": _small}


def build(
    name: str,
    event: tuple[int, ...],
    classes: int,
    noise: float,
    dropout: float,
    bn_momentum: float = BN_MOMENTUM,
) -> Classifier:
    """The model called `name` for inputs of shape `event`.

    >>> type(build("mlp", (2,), 4, noise=0.1, dropout=0.0)).__name__
    'MLP'
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    model = MODELS[name](event, classes, noise, dropout)
    for module in model.modules():
        if isinstance(module, WeightNorm):
            module.bn_momentum = bn_momentum
    return model
