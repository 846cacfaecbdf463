"""The paper's network (its appendix's table): thirteen layers for images of 32x32, 28x28 or anything from 16x16 on."""

from sntg.models.convnet import ConvNet


class Conv13(ConvNet):
    """Nine convolutions, two max-pools, global average pooling to 128 features, one dense layer.

    >>> import torch
    >>> Conv13((1, 16, 16), 10)(torch.randn(2, 1, 16, 16)).features.shape
    torch.Size([2, 128])
    """

    BLOCKS = (
        ((128, 3, "same"), (128, 3, "same"), (128, 3, "same")),
        ((256, 3, "same"), (256, 3, "same"), (256, 3, "same")),
        ((512, 3, "valid"), (256, 1, "valid"), (128, 1, "valid")),
    )
