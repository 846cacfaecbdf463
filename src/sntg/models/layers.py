"""The layers of the paper's networks: a linear map, normalised over the batch it sees, plus a bias.

One rule runs through all of them. A tensor is shaped

    (runs, views, rows, *event)

where `event` is (features,) or (channels, height, width), and `runs` and `views` may be absent. Rows of one view of
one run form a batch and share its statistics; views and runs never mix. So two noisy views of a batch go through in
one pass with their means kept apart, and several runs with weights of their own train in one pass: a layer whose
parameters have a leading axis holds that many independent runs.

Three kinds of normalisation (weight norm with mean-only batch normalisation, full batch normalisation, none) with a
matrix as the linear map make the layers at the end of this file; those with a convolution are in `convolutions.py`.

Two batches of different sizes can also share a pass, as the rows of one view: `two_batches` in `modes.py`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sntg.errors import UsageError
from sntg.models.linearised import LinearMap, Map

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
        self.average_views = False
        self.first_rows = 0  # where two batches share a pass, the rows of the first

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.trained(x)
        weight, bias = self.folded()
        y = self.linear_map(x, weight)
        return y.add_(self.per_output(bias, y))  # nobody else has seen y: no copy is needed

    def trained(self, x: Tensor) -> Tensor:
        """The layer in training mode, where it normalises with the statistics of the batch."""
        raise NotImplementedError

    def derivative(self, y: Tensor) -> Map:
        """That of what `trained` does to the linear map's output y, times a tangent or a gradient of y's shape: it is
        symmetric, so it is its own transpose. (Mean-only layers leave theirs to PyTorch.)"""
        raise NotImplementedError

    def folded(self) -> tuple[Tensor, Tensor]:
        """The layer in evaluation mode is a linear map plus a bias: that map's weight, and that bias."""
        raise NotImplementedError

    def weight(self) -> Tensor:
        """What the linear map is given in training mode."""
        return self.V

    @property
    def batch_axes(self) -> tuple[int, ...]:
        """The axes a batch mean is taken over: rows and, in images, space."""
        return (-2 - self.spatial, *range(-self.spatial, 0))

    def batch_mean(self, y: Tensor) -> Tensor:
        """The mean of each output over its batch; in float32 for 16-bit outputs, which may vary little around it.

        Where two batches share the pass, each row has the mean of its own.
        """
        if self.first_rows:
            axis = self.batch_axes[0]
            parts = torch.split(y, [self.first_rows, self.second_rows(y.shape[axis])], axis)
            return torch.cat([self._mean(part).repeat_interleave(part.shape[axis], axis) for part in parts], axis)
        return self._mean(y)

    def second_rows(self, rows: int) -> int:
        """How many of the rows of a pass over two batches are the second's."""
        if not 0 < self.first_rows < rows:
            raise UsageError(f"{rows} rows are not two batches, the first of {self.first_rows} rows")
        return rows - self.first_rows

    def _mean(self, y: Tensor) -> Tensor:
        return y.mean(self.batch_axes, keepdim=True, dtype=torch.promote_types(y.dtype, torch.float32))

    def per_output(self, values: Tensor, like: Tensor) -> Tensor:
        """Shapes one value an output, (*runs, outputs), so that it broadcasts over views, rows and space."""
        runs, outputs = values.shape[:-1], values.shape[-1]
        between = like.ndim - len(runs) - 1 - self.spatial
        return values.reshape(*runs, *(1,) * between, outputs, *(1,) * self.spatial)

    def track(self, running: Tensor, statistic: Tensor) -> None:
        """Moves a running statistic towards the pass's, which has no gradient. With several views it follows the last
        (branch b of the Pi model), and with two batches the second."""
        if self.track_statistics:
            views = statistic.reshape(*running.shape[:-1], -1, running.shape[-1])
            latest = views.mean(-2) if self.average_views else views[..., -1, :]
            running.lerp_(latest.to(running.dtype), 1 - self.bn_momentum)


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

    def trained(self, x: Tensor) -> Tensor:
        if not (self.mean_only_bn or self.initialising):
            return self.linear_map(x, self.weight(), self.b)
        return self.centred(self.linear_map(x, self.weight()))

    def centred(self, y: Tensor) -> Tensor:
        """The map's output minus its mean, plus the bias."""
        if self.initialising:
            y = self._rescale(y)
        shift = self.per_output(self.b, y)
        if self.mean_only_bn:
            mean = self.batch_mean(y)
            self.track(self.running_mean, mean.detach())
            shift = shift - mean
        return (y + shift).to(y.dtype)

    def folded(self) -> tuple[Tensor, Tensor]:
        return self.weight(), self.b - self.running_mean if self.mean_only_bn else self.b

    def weight(self) -> Tensor:
        """g * V / ||V||, the norm taken over everything but the outputs."""
        outputs = self.V.reshape(self.g.numel(), -1)
        return torch._weight_norm(outputs, self.g.reshape(-1, 1)).view(self.V.shape)

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

    def trained(self, x: Tensor) -> Tensor:
        y = self.linear_map(x, self.weight())
        mean = self.batch_mean(y)
        # Deviations add up to zero, so the variance does not change with the mean: its derivative is left out.
        variance = self.batch_mean((y - mean.detach()).square())
        self.track(self.running_mean, mean.detach())
        self.track(self.running_var, variance.detach())
        scale = self.per_output(self.g, y) / (variance + BN_EPS).sqrt()
        # One multiplication and one addition an output: derivatives then take two passes over the images, not five.
        return (y * scale + (self.per_output(self.b, y) - mean * scale)).to(y.dtype)

    def derivative(self, y: Tensor) -> Map:
        centred = y - self.batch_mean(y)
        inverse = (self.batch_mean(centred.square()) + BN_EPS).rsqrt()
        scale, unit = self.per_output(self.g, y) * inverse, centred * inverse
        return lambda t: scale * (t - self.batch_mean(t) - unit * self.batch_mean(unit * t))

    def folded(self) -> tuple[Tensor, Tensor]:
        scale = self.g / (self.running_var + BN_EPS).sqrt()
        of_inputs = (1,) * (1 + self.spatial)
        return self.V * scale.reshape(*scale.shape, *of_inputs), self.b - self.running_mean * scale


class Affine(Layer):
    """A linear map plus a bias, without any normalisation: the output layer beside full batch normalisation."""

    def __init__(self, outputs: int, inputs: int, *kernel: int) -> None:
        super().__init__(outputs, inputs, *kernel)
        nn.init.kaiming_normal_(self.V)

    def trained(self, x: Tensor) -> Tensor:
        return self.linear_map(x, self.V, self.b)

    def derivative(self, y: Tensor) -> Map:
        return lambda t: t

    def folded(self) -> tuple[Tensor, Tensor]:
        return self.V, self.b


class DenseMap(Layer):
    """x V^T for vectors."""

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.ndim == 2:
            return F.linear(x, weight, bias)
        rows = x.flatten(1, -2)  # all views of a run in one matrix product
        y = rows @ weight.mT if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return y.reshape(*x.shape[:-1], weight.shape[-2])

    @torch.no_grad()
    def linear(self, x: Tensor) -> LinearMap:
        """The layer's derivative at x, in training mode.

        >>> layer = AffineDense(3, 2)
        >>> push, pull = layer.linear(torch.zeros(1, 2))
        >>> torch.equal(push(torch.eye(2)), layer.V.T), torch.equal(pull(torch.eye(3)), layer.V)
        (True, True)
        """
        weight = self.weight().detach()
        rest = self.derivative(self.linear_map(x, weight))
        return LinearMap(
            push=lambda t: rest(self.linear_map(t, weight)),
            pull=lambda u: self.linear_map(rest(u), weight.mT),
        )


class Dense(DenseMap, WeightNorm):
    """A weight-normed dense layer with mean-only batch normalisation.

    >>> Dense(3, 2)(torch.randn(5, 2)).shape
    torch.Size([5, 3])
    """


class BatchNormDense(DenseMap, BatchNorm):
    """A dense layer with full batch normalisation.

    >>> BatchNormDense(3, 2)(torch.randn(5, 2)).shape
    torch.Size([5, 3])
    """


class AffineDense(DenseMap, Affine):
    """A dense layer with a bias and no normalisation.

    >>> AffineDense(3, 2)(torch.randn(5, 2)).shape
    torch.Size([5, 3])
    """
