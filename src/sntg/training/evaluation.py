"""The error of a stack of runs on inputs, and predictions in chunks."""

import torch
from torch import Tensor

from sntg.models import Classifier, Output, at_once


@torch.no_grad()
def predict(model: Classifier, x: Tensor) -> Output:
    """Logits and features of x (..., rows, *event) in evaluation mode; the model's mode is restored.

    x may be in the host's memory while the model is on a GPU: it goes over a pass at a time.

    >>> from sntg.models import MLP
    >>> predict(MLP(2, 3), torch.randn(5, 2)).logits.shape
    torch.Size([5, 3])
    """
    axis = x.ndim - model.event_dims - 1
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        rows = at_once(x.nbytes // x.shape[axis], x.shape[axis + 1 :])
        parts = [model(part.to(device)) for part in torch.split(x, rows, dim=axis)]
    finally:
        model.train(was_training)
    return Output(torch.cat([p.logits for p in parts], -2), torch.cat([p.features for p in parts], -2))


def error(model: Classifier, x: Tensor, y: Tensor) -> Tensor:
    """The percentage of x's rows that the model puts into the wrong class, for each run.

    >>> from sntg.models import MLP
    >>> 0 <= float(error(MLP(2, 2), torch.randn(5, 2), torch.zeros(5))) <= 100
    True
    """
    wrong = predict(model, x).logits.argmax(-1) != y
    return 100.0 * wrong.float().mean(-1)
