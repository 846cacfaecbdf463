"""The layers of the paper's networks: weight norm with mean-only batch normalisation, noise, dropout.

One rule runs through all of them. A tensor is shaped

    (runs, views, rows, *event)

where `event` is (features,) or (channels, height, width), and `runs` and `views` may be absent. Rows of one view of
one run form a batch and share its batch mean; views and runs never mix. So two noisy views of a batch go through in
one pass with their means kept apart, and several runs with weights of their own train in one pass: a layer whose
parameters have a leading axis holds that many independent runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BN_MOMENTUM = 0.999  # of the running mean, which starts at 0: right after a few thousand steps, not before
LEAK = 0.1  # slope of the leaky ReLU below zero, everywhere in the paper


class WeightNorm(nn.Module):
    """A weight-normed linear map, then minus the batch mean, then plus a bias (Salimans & Kingma, 2016).

    The map's weight is g * V / ||V||, one norm for each output. There is no division by the batch's deviation: that is
    what makes the normalisation mean-only. In evaluation the running mean stands in for the batch mean.
    `mean_only_bn=False` leaves the batch mean in: weight norm alone, as in the paper's synthetic runs.
    """

    V: Tensor
    g: Tensor
    b: Tensor
    running_mean: Tensor

    def __init__(self, outputs: int, inputs: int, *kernel: int, mean_only_bn: bool = True) -> None:
        super().__init__()
        self.V = nn.Parameter(0.05 * torch.randn(outputs, inputs, *kernel))
        self.g = nn.Parameter(torch.ones(outputs))
        self.b = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("running_mean", torch.zeros(outputs))
        self.mean_only_bn = mean_only_bn
        self.bn_momentum = BN_MOMENTUM
        self.spatial = len(kernel)
        self.initialising = False
        self.track_statistics = True

    def forward(self, x: Tensor) -> Tensor:
        if not (self.mean_only_bn or self.initialising):
            return self.linear_map(x, self.weight(), self.b)
        y = self.linear_map(x, self.weight())
        if self.initialising:
            y = self._rescale(y)
        if self.mean_only_bn:
            y = y - self._mean(y)
        return y + self._per_output(self.b, y)

    def _mean(self, y: Tensor) -> Tensor:
        if not self.training:
            return self._per_output(self.running_mean, y)
        mean = y.mean(self._batch_axes, keepdim=True)
        if self.track_statistics:
            self._track(mean.detach())
        return mean

    @property
    def _batch_axes(self) -> tuple[int, ...]:
        """The axes a batch mean is taken over: rows and, in images, space."""
        return (-2 - self.spatial, *range(-self.spatial, 0))

    def weight(self) -> Tensor:
        """g * V / ||V||, the norm taken over everything but the outputs."""
        outputs = self.V.reshape(self.g.numel(), -1)
        return torch._weight_norm(outputs, self.g.reshape(-1, 1)).view(self.V.shape)

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def _per_output(self, values: Tensor, like: Tensor) -> Tensor:
        """Shapes one value an output, (*runs, outputs), so that it broadcasts over views, rows and space."""
        runs, outputs = values.shape[:-1], values.shape[-1]
        between = like.ndim - len(runs) - 1 - self.spatial
        return values.reshape(*runs, *(1,) * between, outputs, *(1,) * self.spatial)

    def _track(self, mean: Tensor) -> None:
        """Moves the running mean; with several views in the pass it follows the last one (branch b of the Pi model)."""
        runs = self.running_mean.ndim - 1
        latest = mean.flatten(runs, -2 - self.spatial).select(runs, -1)
        self.running_mean.lerp_(latest.reshape(self.running_mean.shape), 1 - self.bn_momentum)

    @torch.no_grad()
    def _rescale(self, y: Tensor) -> Tensor:
        """Data-dependent initialisation: g is divided by the deviation of the output, so that it starts at one.

        Without mean-only normalisation the bias takes the mean out instead, as Salimans & Kingma do.
        """
        mean = y.mean(self._batch_axes, keepdim=True)
        deviation = (y - mean).square().mean(self._batch_axes, keepdim=True).sqrt().clamp(min=1e-8)
        self.g.div_(deviation.reshape(self.g.shape))
        if not self.mean_only_bn:
            self.b.copy_(-(mean / deviation).reshape(self.b.shape))
        return y / deviation


class Dense(WeightNorm):
    """A weight-normed dense layer with mean-only batch normalisation.

    >>> Dense(3, 2)(torch.randn(5, 2)).shape
    torch.Size([5, 3])
    """

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.ndim == 2:
            return F.linear(x, weight, bias)
        rows = x.flatten(1, -2)  # all views of a run in one matrix product
        y = rows @ weight.mT if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return y.reshape(*x.shape[:-1], weight.shape[-2])


class Conv(WeightNorm):
    """A weight-normed square convolution with mean-only batch normalisation.

    >>> Conv(4, 3, 3, padding="same")(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 4, 8, 8])
    """

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


class Perturbation(nn.Module):
    """Random noise of the training pass. Inside `shared_noise` one draw serves every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.sharing = False
        self.shared: Tensor | None = None

    def draw(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def apply_draw(self, x: Tensor, draw: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if not self.sharing:
            return self.apply_draw(x, self.draw(x))
        if self.shared is None or self.shared.shape != x.shape:
            self.shared = self.draw(x)
        return self.apply_draw(x, self.shared)


class GaussianNoise(Perturbation):
    """Adds N(0, std^2) in training; std may differ from run to run of a stack.

    >>> GaussianNoise(0.15).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    std: Tensor

    def __init__(self, std: float) -> None:
        super().__init__()
        self.register_buffer("std", torch.tensor(float(std)), persistent=False)

    def draw(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, dtype=x.dtype, device=x.device)

    def apply_draw(self, x: Tensor, draw: Tensor) -> Tensor:
        std = self.std.to(x.dtype)
        return torch.addcmul(x, draw, std.reshape(std.shape + (1,) * (x.ndim - std.ndim)))


class Dropout(Perturbation):
    """Drops each entry with probability `rate` in training and scales up the rest.

    >>> Dropout(0.5).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def draw(self, x: Tensor) -> Tensor:
        return F.dropout(torch.ones(x.shape, dtype=x.dtype, device=x.device), self.rate)

    def apply_draw(self, x: Tensor, draw: Tensor) -> Tensor:
        return x * draw


def max_pool(x: Tensor) -> Tensor:
    """2 x 2 max-pooling of images with any leading axes."""
    pooled = F.max_pool2d(x.flatten(0, -4), 2)
    return pooled.reshape(*x.shape[:-2], *pooled.shape[-2:])


@contextmanager
def initialising(model: nn.Module) -> Iterator[None]:
    """Inside, a forward pass sets every g from the batch it sees, layer after layer."""
    with _flag(model, WeightNorm, "initialising", True), _flag(model, WeightNorm, "track_statistics", False):
        yield


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Inside, forward passes in training mode leave the running means alone."""
    with _flag(model, WeightNorm, "track_statistics", False):
        yield


@contextmanager
def shared_noise(model: nn.Module) -> Iterator[None]:
    """Inside, every pass over a batch of one shape sees the same noise and the same dropout masks."""
    try:
        with _flag(model, Perturbation, "sharing", True):
            yield
    finally:
        for module in model.modules():
            if isinstance(module, Perturbation):
                module.shared = None


@contextmanager
def _flag(model: nn.Module, kind: type[nn.Module], name: str, value: bool) -> Iterator[None]:
    modules = [m for m in model.modules() if isinstance(m, kind)]
    before = [getattr(m, name) for m in modules]
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            setattr(module, name, old)
