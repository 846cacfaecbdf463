"""The layers of the paper's networks: a linear map, normalised over the batch it sees, plus a bias.

One rule runs through all of them. A tensor is shaped

    (runs, views, rows, *event)

where `event` is (features,) or (channels, height, width), and `runs` and `views` may be absent. Rows of one view of
one run form a batch and share its statistics; views and runs never mix. So two noisy views of a batch go through in
one pass with their means kept apart, and several runs with weights of their own train in one pass: a layer whose
parameters have a leading axis holds that many independent runs.

Two kinds of map (dense, convolution) times three kinds of normalisation (weight norm with mean-only batch
normalisation, full batch normalisation, none) make the layers at the end of this file.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BN_MOMENTUM = 0.999  # of the running mean, which starts at 0: right after a few thousand steps, not before
BN_EPS = 1e-6  # beside the variance, in full batch normalisation
LEAK = 0.1  # slope of the leaky ReLU below zero, everywhere in the paper


class Layer(nn.Module):
    """What the layers have in common: the linear map V, the bias b, and running statistics for evaluation."""

    V: Tensor
    b: Tensor
    running_mean: Tensor

    def __init__(self, outputs: int, inputs: int, *kernel: int) -> None:
        super().__init__()
        self.V = nn.Parameter(torch.empty(outputs, inputs, *kernel))
        self.b = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("running_mean", torch.zeros(outputs))
        self.bn_momentum = BN_MOMENTUM
        self.spatial = len(kernel)
        self.initialising = False
        self.track_statistics = True

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    @property
    def batch_axes(self) -> tuple[int, ...]:
        """The axes a batch mean is taken over: rows and, in images, space."""
        return (-2 - self.spatial, *range(-self.spatial, 0))

    def batch_mean(self, y: Tensor) -> Tensor:
        """The mean of each output over its batch; in float32 for 16-bit outputs, which may vary little around it."""
        return y.mean(self.batch_axes, keepdim=True, dtype=torch.promote_types(y.dtype, torch.float32))

    def per_output(self, values: Tensor, like: Tensor) -> Tensor:
        """Shapes one value an output, (*runs, outputs), so that it broadcasts over views, rows and space."""
        runs, outputs = values.shape[:-1], values.shape[-1]
        between = like.ndim - len(runs) - 1 - self.spatial
        return values.reshape(*runs, *(1,) * between, outputs, *(1,) * self.spatial)

    def track(self, running: Tensor, statistic: Tensor) -> None:
        """Moves a running statistic; with several views in the pass it follows the last (branch b of the Pi model)."""
        if self.track_statistics:
            runs = running.ndim - 1
            latest = statistic.detach().flatten(runs, -2 - self.spatial).select(runs, -1)
            running.lerp_(latest.reshape(running.shape).to(running.dtype), 1 - self.bn_momentum)


class WeightNorm(Layer):
    """A weight-normed linear map, then minus the batch mean, then plus a bias (Salimans & Kingma, 2016).

    The map's weight is g * V / ||V||, one norm for each output. There is no division by the batch's deviation: that is
    what makes the normalisation mean-only. In evaluation the running mean stands in for the batch mean.
    `mean_only_bn=False` leaves the batch mean in: weight norm alone, as in the paper's synthetic runs.
    """

    g: Tensor

    def __init__(self, outputs: int, inputs: int, *kernel: int, mean_only_bn: bool = True) -> None:
        super().__init__(outputs, inputs, *kernel)
        nn.init.normal_(self.V, 0.0, 0.05)
        self.g = nn.Parameter(torch.ones(outputs))
        self.mean_only_bn = mean_only_bn

    def forward(self, x: Tensor) -> Tensor:
        if not (self.mean_only_bn or self.initialising):
            return self.linear_map(x, self.weight(), self.b)
        y = self.linear_map(x, self.weight())
        if self.initialising:
            y = self._rescale(y)
        b = self.per_output(self.b, y)
        return (y + (b - self._mean(y) if self.mean_only_bn else b)).to(y.dtype)

    def weight(self) -> Tensor:
        """g * V / ||V||, the norm taken over everything but the outputs."""
        outputs = self.V.reshape(self.g.numel(), -1)
        return torch._weight_norm(outputs, self.g.reshape(-1, 1)).view(self.V.shape)

    def _mean(self, y: Tensor) -> Tensor:
        if not self.training:
            return self.per_output(self.running_mean, y)
        mean = self.batch_mean(y)
        self.track(self.running_mean, mean)
        return mean

    @torch.no_grad()
    def _rescale(self, y: Tensor) -> Tensor:
        """Data-dependent initialisation: g is divided by the deviation of the output, so that it starts at one.

        Without mean-only normalisation the bias takes the mean out instead, as Salimans & Kingma do.
        """
        mean = self.batch_mean(y)
        deviation = self.batch_mean((y - mean).square()).sqrt().clamp(min=1e-8)
        self.g.div_(deviation.reshape(self.g.shape))
        if not self.mean_only_bn:
            self.b.copy_(-(mean / deviation).reshape(self.b.shape))
        return y / deviation


class BatchNorm(Layer):
    """A linear map with full batch normalisation: minus the batch mean, divided by its deviation, times g, plus b.

    VAT's networks have it (Ioffe & Szegedy, 2015). V starts as He et al. (2015) do; there is nothing to set from data.
    """

    g: Tensor
    running_var: Tensor

    def __init__(self, outputs: int, inputs: int, *kernel: int) -> None:
        super().__init__(outputs, inputs, *kernel)
        nn.init.kaiming_normal_(self.V)
        self.g = nn.Parameter(torch.ones(outputs))
        self.register_buffer("running_var", torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear_map(x, self.V)
        if self.training:
            mean = self.batch_mean(y)
            centred = y - mean
            variance = self.batch_mean(centred.square())
            self.track(self.running_mean, mean)
            self.track(self.running_var, variance)
        else:
            centred = y - self.per_output(self.running_mean, y)
            variance = self.per_output(self.running_var, y)
        scale = self.per_output(self.g, y) / (variance + BN_EPS).sqrt()
        return (centred * scale + self.per_output(self.b, y)).to(y.dtype)


class Affine(Layer):
    """A linear map plus a bias, without any normalisation: the output layer beside full batch normalisation."""

    def __init__(self, outputs: int, inputs: int, *kernel: int) -> None:
        super().__init__(outputs, inputs, *kernel)
        nn.init.kaiming_normal_(self.V)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_map(x, self.V, self.b)


class DenseMap(Layer):
    """x V^T for vectors."""

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.ndim == 2:
            return F.linear(x, weight, bias)
        rows = x.flatten(1, -2)  # all views of a run in one matrix product
        y = rows @ weight.mT if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return y.reshape(*x.shape[:-1], weight.shape[-2])


class ConvMap(Layer):
    """A square convolution of images. padding: "same" keeps the image's size, "valid" pads nothing."""

    def __init__(self, outputs: int, inputs: int, size: int, padding: str = "valid") -> None:
        super().__init__(outputs, inputs, size, size)
        self.padding = size // 2 if padding == "same" else 0

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.ndim == 4:
            y = F.conv2d(x.flatten(0, -4), weight, bias, padding=self.padding)
            return y.reshape(*x.shape[:-3], *y.shape[1:])
        # Independent runs are the groups of one grouped convolution.
        runs, outputs = weight.shape[:2]
        images = x.flatten(1, -4).transpose(0, 1).flatten(1, 2)
        bias = None if bias is None else bias.flatten()
        y = F.conv2d(images, weight.flatten(0, 1), bias, padding=self.padding, groups=runs)
        separated = y.reshape(len(y), runs, outputs, *y.shape[-2:]).transpose(0, 1)
        return separated.reshape(*x.shape[:-3], *separated.shape[2:])


class Dense(DenseMap, WeightNorm):
    """A weight-normed dense layer with mean-only batch normalisation.

    >>> Dense(3, 2)(torch.randn(5, 2)).shape
    torch.Size([5, 3])
    """


class Conv(ConvMap, WeightNorm):
    """A weight-normed convolution with mean-only batch normalisation.

    >>> Conv(4, 3, 3, padding="same")(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 4, 8, 8])
    """


class BatchNormDense(DenseMap, BatchNorm):
    """A dense layer with full batch normalisation.

    >>> BatchNormDense(3, 2)(torch.randn(5, 2)).shape
    torch.Size([5, 3])
    """


class BatchNormConv(ConvMap, BatchNorm):
    """A convolution with full batch normalisation.

    >>> BatchNormConv(4, 3, 3)(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 4, 6, 6])
    """


class AffineDense(DenseMap, Affine):
    """A dense layer with a bias and no normalisation.

    >>> AffineDense(3, 2)(torch.randn(5, 2)).shape
    torch.Size([5, 3])
    """


def max_pool(x: Tensor) -> Tensor:
    """2 x 2 max-pooling of images with any leading axes."""
    pooled = F.max_pool2d(x.flatten(0, -4), 2)
    return pooled.reshape(*x.shape[:-2], *pooled.shape[-2:])
