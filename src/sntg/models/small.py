"""The reference code's small convolutional net, for small images and for tests."""

import torch.nn.functional as F
from torch import Tensor, nn

from sntg.errors import UsageError
from sntg.models.classifier import Classifier
from sntg.models.layers import LEAK, Conv, Dense, Dropout, GaussianNoise, max_pool


class SmallNet(Classifier):
    """Five convolutions, two max-pools, global average pooling to 128 features, one dense layer.

    >>> import torch
    >>> SmallNet((1, 16, 16), 10)(torch.randn(2, 1, 16, 16)).features.shape
    torch.Size([2, 128])
    """

    event_dims = 3
    SMALLEST = 16  # below this the last 3x3 valid convolution has nothing left to see

    def __init__(self, image: tuple[int, int, int], classes: int, noise: float = 0.15, dropout: float = 0.5) -> None:
        super().__init__()
        channels, height, width = image
        if min(height, width) < self.SMALLEST:
            raise UsageError(
                f"the small net needs images of at least {self.SMALLEST}x{self.SMALLEST}, not {height}x{width}"
            )
        self.noise = GaussianNoise(noise)
        self.first = Conv(32, channels, 5)
        self.middle = nn.ModuleList([Conv(64, 32, 3, "same"), Conv(64, 64, 3, "same")])
        self.last = nn.ModuleList([Conv(128, 64, 3), Conv(128, 128, 1)])
        self.dropouts = nn.ModuleList([Dropout(dropout), Dropout(dropout)])
        self.output = Dense(classes, 128)

    def h(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.first(self.noise(x)), LEAK)
        x = self.dropouts[0](max_pool(x))
        for layer in self.middle:
            x = F.leaky_relu(layer(x), LEAK)
        x = self.dropouts[1](max_pool(x))
        for layer in self.last:
            x = F.leaky_relu(layer(x), LEAK)
        return x.mean((-2, -1))

    def g(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(features)
        return logits
