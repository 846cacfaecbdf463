"""The layers once more, in float64 NumPy, written from the recipe: plain loops where speed does not matter.

A batch is (rows, features) or (rows, channels, height, width); no views, no runs. The tests say what those should be in
terms of single batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

BN_EPS = 1e-6  # Miyato et al.'s networks


@dataclass
class Weights:
    """One layer's parameters; mode "initialise" of `layer` changes them.

    kind: "mean-only" and "weight norm" have the weight g V / ||V||, "batch" and "affine" have V itself.
    """

    kind: str
    V: np.ndarray
    g: np.ndarray | None
    b: np.ndarray
    running_mean: np.ndarray
    running_var: np.ndarray | None

    @classmethod
    def of(cls, layer: nn.Module) -> "Weights":
        tensors = [getattr(layer, name, None) for name in ("V", "g", "b", "running_mean", "running_var")]
        arrays = [None if t is None else t.detach().double().numpy().copy() for t in tensors]
        if arrays[4] is not None:
            return cls("batch", *arrays)
        if arrays[1] is None:
            return cls("affine", *arrays)
        return cls("mean-only" if layer.mean_only_bn else "weight norm", *arrays)


def per_output(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    return values.reshape(1, -1, *(1,) * (like.ndim - 2))


def weight(w: Weights) -> np.ndarray:
    """g V / ||V||, one norm an output; or V alone."""
    if w.kind in ("batch", "affine"):
        return w.V
    norms = np.array([np.linalg.norm(v) for v in w.V])
    return w.V * (w.g / norms).reshape(-1, *(1,) * (w.V.ndim - 1))


def linear_map(x: np.ndarray, w: Weights, padding: int = 0) -> np.ndarray:
    if w.V.ndim == 2:
        return x @ weight(w).T
    size = w.V.shape[-1]
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight(w), optimize=True)


def statistics(x: np.ndarray, w: Weights, padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the variance, over n rows and divided by n, of each output of the linear map."""
    y = linear_map(x, w, padding)
    outputs = np.moveaxis(y, 1, 0).reshape(y.shape[1], -1)
    mean = outputs.sum(1) / outputs.shape[1]
    return mean, ((outputs - mean[:, None]) ** 2).sum(1) / outputs.shape[1]


def layer(x: np.ndarray, w: Weights, mode: str = "train", padding: int = 0) -> np.ndarray:
    """Linear map, normalised, plus b. mode: train (the batch's statistics), eval (the running ones), initialise.

    Initialising divides a weight-normed layer's g by the output's deviation; without batch normalisation b then takes
    the mean out. There is nothing to set in the other kinds.
    """
    if mode == "initialise" and w.kind in ("mean-only", "weight norm"):
        w.g = w.g / np.sqrt(statistics(x, w, padding)[1])
        if w.kind == "weight norm":
            w.b = -statistics(x, w, padding)[0]
    y = linear_map(x, w, padding)
    mean, variance = (w.running_mean, w.running_var) if mode == "eval" else statistics(x, w, padding)
    if w.kind in ("mean-only", "batch"):
        y = y - per_output(mean, y)
    if w.kind == "batch":
        y = per_output(w.g, y) * y / np.sqrt(per_output(variance, y) + BN_EPS)
    return y + per_output(w.b, y)


def leaky_relu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.1 * x)


def max_pool(x: np.ndarray) -> np.ndarray:
    """2 x 2, an odd last row or column left out."""
    h, w = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    corners = [x[..., i:h:2, j:w:2] for i in (0, 1) for j in (0, 1)]
    return np.max(corners, axis=0)


def layers_of(net: nn.Module) -> list[nn.Module]:
    """The layers of a convolutional net from the first convolution to the dense one."""
    return [*(module for block in net.blocks for module in block), net.output]


def convnet(
    net: nn.Module, x: np.ndarray, mode: str, paddings: list[list[int]], noise=0.0, masks=(1.0, 1.0)
) -> tuple[np.ndarray, np.ndarray, list[Weights]]:
    """Logits, features and the layers' weights as the pass leaves them. paddings: of each block's convolutions.

    Noise is added to the input; between blocks comes 2x2 max-pooling and a mask; each convolution has a leaky ReLU;
    the features are the mean over all places.
    """
    weights = [Weights.of(module) for module in layers_of(net)]
    left: Iterator[Weights] = iter(weights)
    x = x + noise
    for number, block in enumerate(paddings):
        if number:
            x = masks[number - 1] * max_pool(x)
        for padding in block:
            x = leaky_relu(layer(x, next(left), mode, padding))
    features = x.mean((2, 3))
    return layer(features, next(left), mode), features, weights


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter and running statistic drawn anew in float64, none at a special value."""
    g = torch.Generator().manual_seed(seed)
    model = model.double()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith((".V", ".b", "running_mean")) or name in ("V", "b"):
            tensor.normal_(0, 0.5, generator=g)
        elif name.endswith(("g", "running_var")):
            tensor.uniform_(0.5, 2.0, generator=g)
    return model
