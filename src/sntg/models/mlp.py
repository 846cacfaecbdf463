"""The network of the synthetic runs: three hidden layers of 100 with Gaussian noise at every layer."""

import torch.nn.functional as F
from torch import Tensor, nn

from sntg.models.classifier import Classifier
from sntg.models.layers import LEAK, Dense, GaussianNoise


class MLP(Classifier):
    """inputs-100-100-100-classes with leaky ReLU; noise of deviation `noise` enters before every layer.

    >>> import torch
    >>> MLP(2, 4)(torch.randn(6, 2)).features.shape
    torch.Size([6, 100])
    """

    event_dims = 1

    def __init__(self, inputs: int, classes: int, noise: float = 0.08, hidden: int = 100) -> None:
        super().__init__()
        sizes = [inputs, hidden, hidden, hidden]
        self.noises = nn.ModuleList(GaussianNoise(noise) for _ in range(4))
        self.hidden = nn.ModuleList(Dense(o, i) for i, o in zip(sizes[:-1], sizes[1:], strict=True))
        self.output = Dense(classes, hidden)

    def h(self, x: Tensor) -> Tensor:
        for noise, layer in zip(self.noises, self.hidden, strict=False):
            x = F.leaky_relu(layer(noise(x)), LEAK)
        return x

    def g(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self.noises[-1](features))
        return logits
