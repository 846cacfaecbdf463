"""What every network here is: f = g . h, with the feature map h and the output layer g explicit."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from sntg.models.layers import Layer
from sntg.models.linearised import Linearised


class Output(NamedTuple):
    """What a forward pass returns: the output layer's logits and the penultimate layer's features h(x)."""

    logits: Tensor
    features: Tensor


class Classifier(nn.Module):
    """A network f = g . h. `event_dims` is the number of axes of one input: 1 for a vector, 3 for an image."""

    event_dims: int

    @property
    def runs(self) -> tuple[int, ...]:
        """The run axis of its parameters, where it is a stack of runs; else nothing."""
        return tuple(next(m for m in self.modules() if isinstance(m, Layer)).b.shape[:-1])

    def h(self, x: Tensor) -> Tensor:
        """The feature map, from inputs to the penultimate layer."""
        raise NotImplementedError

    def g(self, features: Tensor) -> Tensor:
        """The output layer, from features to logits."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Output:
        features = self.h(x)
        return Output(self.g(features), features)

    def linearised(self, x: Tensor) -> tuple[Output, Linearised | None]:
        """The pass over x and the derivative of its logits in x, where the network knows it without another pass."""
        return self(x), None

    def __call__(self, x: Tensor) -> Output:
        output: Output = super().__call__(x)
        return output


Net = TypeVar("Net", bound=nn.Module)


def stack(models: Sequence[Net]) -> Net:
    """Several models of one shape as one model that trains them side by side: every tensor gains a leading run axis.

    >>> from sntg.models import MLP
    >>> stack([MLP(2, 3), MLP(2, 3)])(torch.randn(2, 7, 2)).logits.shape
    torch.Size([2, 7, 3])
    """
    tensors = [dict(_tensors(model)) for model in models]
    return _replaced(models[0], lambda name: torch.stack([t[name] for t in tensors]))


def unstack(model: Net, run: int) -> Net:
    """The model of one run of a stack, without the run axis.

    >>> from sntg.models import MLP
    >>> unstack(stack([MLP(2, 3), MLP(2, 3)]), 1)(torch.randn(7, 2)).logits.shape
    torch.Size([7, 3])
    """
    tensors = dict(_tensors(model))
    return _replaced(model, lambda name: tensors[name][run].clone())


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
    yield from model.named_buffers()


def _replaced(model: Net, tensor: Callable[[str], Tensor]) -> Net:
    """A copy of the model with each parameter and buffer replaced by tensor(its name)."""
    copy = deepcopy(model)
    for path, module in copy.named_modules():
        prefix = f"{path}." if path else ""
        for name in list(module._parameters):
            module._parameters[name] = nn.Parameter(tensor(prefix + name))
        for name in list(module._buffers):
            module._buffers[name] = tensor(prefix + name)
    return copy
