"""The network of the synthetic runs: three hidden layers of 100, weight norm, Gaussian noise at every layer.

It has no mean-only batch normalisation: in two dimensions the batch mean's own noise blurs the classes' borders.
"""

from itertools import pairwise
from math import prod

import torch.nn.functional as F
from torch import Tensor, nn

from sntg.models.classifier import Classifier
from sntg.models.layers import LEAK, Dense
from sntg.models.noise import GaussianNoise


class MLP(Classifier):
    """inputs-100-100-100-classes with leaky ReLU; noise of deviation `noise` enters before every layer.

    `inputs` is the length of a vector, or the shape of an image, which is flattened.

    >>> import torch
    >>> MLP(2, 4)(torch.randn(6, 2)).features.shape
    torch.Size([6, 100])
    """

    def __init__(self, inputs: int | tuple[int, ...], classes: int, noise: float = 0.08, hidden: int = 100) -> None:
        super().__init__()
        event = (inputs,) if isinstance(inputs, int) else inputs
        self.event_dims = len(event)
        sizes = [prod(event), hidden, hidden, hidden]
        self.noises = nn.ModuleList(GaussianNoise(noise) for _ in range(4))
        self.hidden = nn.ModuleList(Dense(o, i, mean_only_bn=False) for i, o in pairwise(sizes))
        self.output = Dense(classes, hidden, mean_only_bn=False)

    def h(self, x: Tensor) -> Tensor:
        x = x.flatten(-self.event_dims)
        for noise, layer in zip(self.noises, self.hidden, strict=False):
            x = F.leaky_relu(layer(noise(x)), LEAK)
        return x

    def g(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self.noises[-1](features))
        return logits
