"""The layers once more, in float64 NumPy, written from the recipe: plain loops where speed does not matter.

A batch is (rows, features) or (rows, channels, height, width); no views, no runs. The tests say what those should be in
terms of single batches.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Weights:
    """One layer's parameters; mode "initialise" of `layer` changes them."""

    V: np.ndarray
    g: np.ndarray
    b: np.ndarray
    running_mean: np.ndarray
    mean_only_bn: bool

    @classmethod
    def of(cls, layer: nn.Module) -> "Weights":
        names = ("V", "g", "b", "running_mean")
        arrays = [getattr(layer, name).detach().double().numpy().copy() for name in names]
        return cls(*arrays, layer.mean_only_bn)


def per_output(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    return values.reshape(1, -1, *(1,) * (like.ndim - 2))


def weight(w: Weights) -> np.ndarray:
    """g V / ||V||, one norm an output."""
    norms = np.array([np.linalg.norm(v) for v in w.V])
    return w.V * (w.g / norms).reshape(-1, *(1,) * (w.V.ndim - 1))


def linear_map(x: np.ndarray, w: Weights, padding: int = 0) -> np.ndarray:
    if w.V.ndim == 2:
        return x @ weight(w).T
    size = w.V.shape[-1]
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight(w))


def layer(x: np.ndarray, w: Weights, mode: str = "train", padding: int = 0) -> np.ndarray:
    """Linear map, minus the mean, plus b. mode: train (the batch's mean), eval (the running mean), initialise.

    Initialising divides g by the output's deviation; without batch normalisation b then takes the mean out.
    """
    y = linear_map(x, w, padding)
    batch_axes = (0, *range(2, y.ndim))
    if mode == "initialise":
        deviation = y.std(batch_axes)
        w.g = w.g / deviation
        y = linear_map(x, w, padding)
        if not w.mean_only_bn:
            w.b = -y.mean(batch_axes)
    if w.mean_only_bn:
        y = y - per_output(w.running_mean if mode == "eval" else y.mean(batch_axes), y)
    return y + per_output(w.b, y)


def leaky_relu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.1 * x)


def max_pool(x: np.ndarray) -> np.ndarray:
    """2 x 2, an odd last row or column left out."""
    h, w = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
    corners = [x[..., i:h:2, j:w:2] for i in (0, 1) for j in (0, 1)]
    return np.max(corners, axis=0)


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter and running mean drawn anew in float64, none at a special value."""
    g = torch.Generator().manual_seed(seed)
    model = model.double()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith((".V", ".b", "running_mean")) or name in ("V", "b"):
            tensor.normal_(0, 0.5, generator=g)
        elif name.endswith("g"):
            tensor.uniform_(0.5, 2.0, generator=g)
    return model
