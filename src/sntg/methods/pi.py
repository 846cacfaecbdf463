"""The Pi model (Laine & Aila, 2017): two noisy passes of one network must agree.

The teacher is the student under other noise, theta' = theta, and the gradient flows through both branches. The branches
share the flip; translation, noise and dropout are their own. Both views go through in one pass; every layer keeps their
batch means apart.
"""

import torch
import torch.nn.functional as F

from sntg.losses import cross_entropy
from sntg.methods.base import Batch, Method, Passes
from sntg.models import Output


class Pi(Method):
    """The loss is CE(f(x), y) + w |f(x; xi) - f(x; xi')|^2, with the noise xi and xi' of two passes of one network."""

    name = "pi"
    line = "Pi model: two noisy passes of one network agree"

    def passes(self, batch: Batch) -> Passes:
        x = self.flip(batch.x)
        views = torch.stack([self.augment(x), self.augment(x)], 1)
        both = self.model(views)
        (logits, logits_b), (features, _) = both.logits.unbind(1), both.features.unbind(1)
        target = F.softmax(logits_b, -1)
        terms = {
            "supervised": cross_entropy(logits, batch.labels),
            "consistency": self.consistency(logits, target, batch.unlabelled),
        }
        return Passes(Output(logits, features), target.detach(), terms)
