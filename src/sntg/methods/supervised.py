"""Supervised only: the cross-entropy of the labelled rows, L_S in the paper.

With `+sntg` it becomes the ablation L_S + R_S: the graph then comes from a second noisy branch, as in the Pi model,
but no consistency loss ties the two branches together.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sntg.losses import cross_entropy
from sntg.methods.base import Batch, Method, Passes
from sntg.models import frozen_statistics


class Supervised(Method):
    """The loss is CE(f(x), y), of the labelled points alone."""

    name = "supervised"
    line = "cross-entropy on the labelled points alone"
    terms = ("supervised",)

    def passes(self, batch: Batch) -> Passes:
        student = self.model(self.view(batch.x))
        return Passes(student, None, {"supervised": cross_entropy(student.logits, batch.labels)})

    def teacher(self, batch: Batch, passes: Passes) -> Tensor:
        with torch.no_grad(), frozen_statistics(self.model):
            return F.softmax(self.model(self.view(batch.x)).logits, -1)
