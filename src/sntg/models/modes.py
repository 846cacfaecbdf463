"""What a forward pass does besides computing: set the scales from data, leave the running statistics alone, or share
its noise with the next pass. Each is a context around the passes it is meant for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sntg.models.layers import Layer
from sntg.models.noise import Perturbation


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


@torch.no_grad()
def estimate_statistics(model: nn.Module, batches: Iterator[torch.Tensor]) -> None:
    """Sets the running statistics to their averages over the given batches, passed through in training mode."""
    was_training = model.training
    model.train()
    try:
        for number, batch in enumerate(batches):
            with _flag(model, Layer, "bn_momentum", number / (number + 1)):
                model(batch)
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
