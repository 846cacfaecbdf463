"""How pixels become inputs: scaled, normalised image by image, or decorrelated over the training set (ZCA).

Everything is computed in float64, a chunk of images at a time, so that a whole set never exists twice; only the result
is float32. What a ZCA learns from the training images is kept in the cache folder.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sntg.data.dataset import Dataset, content_hash
from sntg.data.whitening_cache import ZCA, read_or_fit
from sntg.errors import UsageError, unknown

CHUNK = 1000  # images at once: 25 MB of CIFAR-10 in float64
GCN_NORM = 55.0  # the length every image has after global contrast normalisation
SMALLEST = 1e-8  # an image that varies less than this is blank, and divided by this instead of by zero


def normalise(images: Tensor) -> Tensor:
    """Per-image norm: minus the image's mean over all channels and pixels, divided by the rest's root mean square.

    >>> normalise(torch.tensor([[[[0.0, 2.0]]]]))
    tensor([[[[-1.,  1.]]]])
    """
    centred = images - images.mean((-3, -2, -1), keepdim=True)
    return centred / centred.square().mean((-3, -2, -1), keepdim=True).sqrt().clamp(min=SMALLEST)


def normalise_contrast(images: Tensor) -> Tensor:
    """Global contrast normalisation: minus the image's mean, stretched to the length 55.

    >>> normalise_contrast(torch.tensor([[[[0.0, 2.0]]]])).norm()
    tensor(55.)
    """
    centred = images - images.mean((-3, -2, -1), keepdim=True)
    return GCN_NORM * centred / centred.square().sum((-3, -2, -1), keepdim=True).sqrt().clamp(min=SMALLEST)


def _vat_scales(variances: Tensor) -> Tensor:
    """1/sqrt(S) + 1e-6, and 1e-6 alone in directions in which the training images do not vary.

    There S is rounding noise around zero and 1/sqrt(S) any large number, which would drown a test image that happens to
    vary. What counts as rounding is what counts as such in a matrix's rank: the largest S times size times epsilon.
    """
    rounding = variances.max() * len(variances) * torch.finfo(variances.dtype).eps
    return torch.where(variances > rounding, variances.clamp(min=rounding).rsqrt(), 0.0) + 1e-6


Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Recipe:
    """`prepare` takes a chunk of images; `scales`, where there is a ZCA, gives each direction's factor from its S."""

    line: str
    prepare: Map
    scales: Map | None = None
    takes_floats: bool = False


_RECIPES = {
    "none": _Recipe("pixels from 0 to 1", lambda x: x / 255, takes_floats=True),
    "norm": _Recipe("each image minus its mean, divided by its root mean square", normalise, takes_floats=True),
    "zca": _Recipe("ZCA of pixels from 0 to 1, variances + 1e-5", lambda x: x / 255, lambda S: (S + 1e-5).rsqrt()),
    "gcn-zca": _Recipe(
        "each image minus its mean, stretched to length 55; then ZCA, variances + 0.1 (Mean Teacher's)",
        normalise_contrast,
        lambda S: (S + 0.1).rsqrt(),
    ),
    "scale": _Recipe("pixels from -1/2 to 1/2", lambda x: (x - 127.5) / 255),
    "scale-zca": _Recipe(
        "pixels from -1/2 to 1/2, then ZCA with the factors 1/sqrt(S) + 1e-6 (VAT's)",
        lambda x: (x - 127.5) / 255,
        _vat_scales,
    ),
}

WHITENINGS: dict[str, str] = {name: recipe.line for name, recipe in _RECIPES.items()}


def whiten(data: Dataset, name: str, device: torch.device | str = "cpu") -> Dataset:
    """The dataset as the network sees it: float32 inputs in the CPU's memory, whitened as `name` says.

    A ZCA is fitted on the training images alone and applied to the test images as it is. A CUDA `device` does the work.

    >>> from sntg.data.dataset import Dataset
    >>> images, y = torch.tensor([[[[0, 51]]]], dtype=torch.uint8), torch.tensor([0])
    >>> whiten(Dataset("mine", images, y, images, y, classes=1), "none").train_x
    tensor([[[[0.0000, 0.2000]]]])
    """
    _check(data, name)
    if name == "none" and data.train_x.dtype != torch.uint8:
        return replace(data, train_x=data.train_x.float(), test_x=data.test_x.float())
    prepare, scales = _RECIPES[name].prepare, _RECIPES[name].scales
    worker = torch.device(device if torch.device(device).type == "cuda" else "cpu")  # others may lack float64
    zca = None
    if scales is not None:
        # Of the images fitted on, not of the dataset they once came from: a part of a set has a ZCA of its own.
        label, pixels = f"{name}-{content_hash(data.train_x.numpy())}", data.train_x[0].numel()
        zca = read_or_fit(label, pixels, lambda: _fit(data.train_x, prepare, scales, worker))
    train_x, test_x = (_apply(x, prepare, zca, worker) for x in (data.train_x, data.test_x))
    return replace(data, train_x=train_x, test_x=test_x)


def _check(data: Dataset, name: str) -> None:
    if name not in WHITENINGS:
        raise unknown("whitening", name, WHITENINGS)
    if name != "none" and len(data.event) != 3:
        raise UsageError(
            f"{data.name}: whitening {name!r} is for images, and an input here is {data.event}: use 'none'"
        )
    for x in (data.train_x, data.test_x):
        if x.dtype != torch.uint8 and not _RECIPES[name].takes_floats:
            kind = str(x.dtype).removeprefix("torch.")
            raise UsageError(f"{data.name}: whitening {name!r} takes uint8 pixels, not {kind}: use 'none' or 'norm'")


def _fit(x: Tensor, prepare: Map, scales: Map, worker: torch.device) -> ZCA:
    """Mean and matrix U diag(scales(S)) U^T of the prepared images, with U diag(S) U^T their covariance (over N)."""
    pixels = x[0].numel()
    mean = torch.zeros(pixels, dtype=torch.float64, device=worker)
    for chunk in _prepared(x, prepare, worker):
        mean += chunk.sum(0) / len(x)
    covariance = torch.zeros(pixels, pixels, dtype=torch.float64, device=worker)
    for chunk in _prepared(x, prepare, worker):
        centred = chunk - mean
        covariance.addmm_(centred.T, centred, alpha=1 / len(x))
    variances, directions = torch.linalg.eigh(covariance.cpu())
    matrix = (directions * scales(variances.clamp(min=0))) @ directions.T
    return ZCA(mean.cpu(), matrix)


def _prepared(x: Tensor, prepare: Map, worker: torch.device) -> Iterator[Tensor]:
    """The prepared images as rows of float64 numbers, a chunk at a time."""
    for chunk in torch.split(x, CHUNK):
        yield prepare(chunk.to(worker).double()).flatten(1)


def _apply(x: Tensor, prepare: Map, zca: ZCA | None, worker: torch.device) -> Tensor:
    result = torch.empty(x.shape, dtype=torch.float32)
    if zca is not None:
        mean, matrix = zca.mean.to(worker), zca.matrix.to(worker)
    for rows, part in zip(_prepared(x, prepare, worker), torch.split(result, CHUNK), strict=True):
        whitened = rows if zca is None else (rows - mean) @ matrix
        part.copy_(whitened.reshape(part.shape))
    return result
