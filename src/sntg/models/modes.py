"""What a forward pass does besides computing: set the scales from data, leave the running statistics alone, share its
noise with the next pass, take two batches, or do without kernels of our own. Each is a context around the passes it is
meant for."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice

import torch
from torch import nn

from sntg.models.convolutions import ConvMap
from sntg.models.layers import Layer
from sntg.models.noise import Perturbation

# Of input in one pass that keeps no gradients, over all runs: some thousand small colour images. Fewer at a time would
# leave a GPU waiting for the host, more would need memory for nothing.
PASS_BYTES = 12_500_000
COLOURS = 3


def at_once(size: int, event: torch.Size) -> int:
    """How many inputs of so many bytes share a pass that keeps no gradients: one at least.

    What a network makes of an image has its pixels, not its channels: a grey one counts as much as one in colour.

    >>> colour, grey = torch.Size([3, 32, 32]), torch.Size([1, 32, 32])
    >>> at_once(3 * 32 * 32 * 4, colour), at_once(32 * 32 * 4, grey), at_once(10**9, grey)
    (1017, 1017, 1)
    """
    channels = event[0] if len(event) == 3 else COLOURS
    return max(1, PASS_BYTES * channels // (COLOURS * max(1, size)))


@contextmanager
def initialising(model: nn.Module) -> Iterator[None]:
    """Inside, a forward pass sets every g from the batch it sees, layer after layer."""
    with _flag(model, Layer, "initialising", True), frozen_statistics(model):
        yield


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Inside, forward passes in training mode leave the running statistics alone."""
    with _flag(model, Layer, "track_statistics", False):
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
def two_batches(model: nn.Module, first_rows: int) -> Iterator[None]:
    """Inside, a pass is one over two batches, the first so many rows and the others, each with statistics of its own.

    The running statistics follow the second. Noise that is shared is shared by the first.
    """
    with _flag(model, Layer, "first_rows", first_rows), _flag(model, Perturbation, "first_rows", first_rows):
        yield


@contextmanager
def without_kernels(model: nn.Module) -> Iterator[None]:
    """Inside, layers are made of PyTorch's operations alone, which it can also differentiate forward."""
    with _flag(model, ConvMap, "fused", False):
        yield


@torch.no_grad()
def estimate_statistics(model: nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Sets the running statistics to their averages over the given batches, passed through in training mode.

    Batches (*runs, n, *event) of one shape go through some at a time, as views: each keeps its own statistics.
    """
    was_training = model.training
    model.train()
    view_axis = next(m for m in model.modules() if isinstance(m, Layer)).b.ndim - 1  # after the run axis, if any
    done = 0
    try:
        for (shape, size), alike in groupby(batches, key=lambda batch: (batch.shape, batch.nbytes)):
            while chunk := list(islice(alike, at_once(size, shape[view_axis + 1 :]))):
                momentum = done / (done + len(chunk))
                with _flag(model, Layer, "bn_momentum", momentum), _flag(model, Layer, "average_views", True):
                    model(torch.stack(chunk, view_axis))
                done += len(chunk)
    finally:
        model.train(was_training)


@contextmanager
def _flag(model: nn.Module, kind: type[nn.Module], name: str, value: object) -> Iterator[None]:
    modules = [m for m in model.modules() if isinstance(m, kind)]
    before = [getattr(m, name) for m in modules]
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            setattr(module, name, old)
