"""A network layer by layer: what comes out of each, and how many parameters it has."""

from typing import Any

import torch
from torch import Tensor, nn

from sntg.models.classifier import Classifier
from sntg.models.convolutions import ConvMap
from sntg.models.layers import Layer
from sntg.models.noise import Dropout, GaussianNoise


def summarise(model: Classifier, event: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each layer a batch of inputs of shape `event` passes, in order, and one for the whole.

    >>> from sntg.models import MLP
    >>> summarise(MLP(2, 4), (2,))[-1]
    {'layer': 'all', 'output': '4', 'parameters': 21208}
    """
    rows: list[dict[str, Any]] = []

    def note(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        parameters = sum(p.numel() for p in module.parameters())
        rows.append({"layer": _words(module), "output": _shape(output), "parameters": parameters})

    kinds = (Layer, GaussianNoise, Dropout)
    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, kinds)]
    was_training = model.training
    with torch.no_grad():
        output = model.eval()(torch.zeros(2, *event))
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    if any(isinstance(m, ConvMap) for m in model.modules()):
        rows.insert(-1, {"layer": "global average pool", "output": _shape(output.features), "parameters": 0})
    total = sum(p.numel() for p in model.parameters())
    return [*rows, {"layer": "all", "output": _shape(output.logits), "parameters": total}]


def _words(module: nn.Module) -> str:
    if isinstance(module, GaussianNoise):
        return f"Gaussian noise {float(module.std):g}"
    if isinstance(module, Dropout):
        return f"2x2 max-pool, dropout {module.rate:g}"
    assert isinstance(module, Layer)
    outputs, kernel = len(module.b), module.V.shape[2:]
    if isinstance(module, ConvMap):
        padding = "same" if module.taps.padding or kernel[0] == 1 else "valid"
        return f"{kernel[0]}x{kernel[1]} conv. {outputs} {padding}"
    return f"dense {module.V.shape[1]} -> {outputs}"


def _shape(output: Tensor) -> str:
    return "x".join(str(n) for n in output.shape[1:])
