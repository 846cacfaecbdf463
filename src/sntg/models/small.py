"""The reference code's small convolutional net, for small images and for tests."""

from sntg.models.convnet import ConvNet


class SmallNet(ConvNet):
    """Five convolutions, two max-pools, global average pooling to 128 features, one dense layer.

    >>> import torch
    >>> SmallNet((1, 16, 16), 10)(torch.randn(2, 1, 16, 16)).features.shape
    torch.Size([2, 128])
    """

    BLOCKS = (
        ((32, 5, "valid"),),
        ((64, 3, "same"), (64, 3, "same")),
        ((128, 3, "valid"), (128, 1, "valid")),
    )
