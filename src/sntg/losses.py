"""The losses other than the graph term, as pure functions.

Logits and probabilities are (..., n, K); a loss is a mean over a batch's n rows, and leading axes are independent
batches, each with a loss of its own.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log f_y summed over the labelled rows, divided by all n rows of the batch (Alg. 1); -1 marks an unlabelled row.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([3, -1]))
    tensor(0.6931)
    """
    chosen = F.log_softmax(_float(logits), -1).gather(-1, labels.long().clamp(min=0)[..., None])[..., 0]
    return -(chosen * (labels >= 0)).mean(-1)


def consistency_mse(student_logits: Tensor, target: Tensor, known: Tensor | None = None) -> Tensor:
    """Mean squared difference of the student's softmax and a target distribution, over the n rows and the K classes.

    A row that is not `known` (..., n) has no target yet and counts as zero. The target keeps whatever gradient it has:
    the Pi model wants it, the other teachers hand over constants.

    >>> consistency_mse(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    tensor(0.2500)
    """
    difference = (F.softmax(_float(student_logits), -1) - target).square().mean(-1)
    return (difference if known is None else difference * known).mean(-1)


def consistency_kl(student_logits: Tensor, target: Tensor, known: Tensor | None = None) -> Tensor:
    """KL(target || student), a mean over the n rows. See `consistency_mse` for the arguments.

    >>> consistency_kl(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))
    tensor(0.6931)
    """
    log_target = torch.where(target > 0, target, 1.0).log()  # 0 log 0 = 0, in value and in gradient
    divergence = (target * (log_target - F.log_softmax(_float(student_logits), -1))).sum(-1)
    return (divergence if known is None else divergence * known).mean(-1)


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the predictions, H(p(y|x)) (Grandvalet & Bengio, 2005).

    >>> entropy(torch.zeros(3, 2))
    tensor(0.6931)
    """
    log_p = F.log_softmax(_float(logits), -1)
    return -(log_p.exp() * log_p).sum(-1).mean(-1)


def _float(logits: Tensor) -> Tensor:
    """16-bit logits as float32: a softmax loses too much in fewer bits."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
