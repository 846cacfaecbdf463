"""Mean Teacher (Tarvainen & Valpola, 2017): agree with a network whose weights are the average of the student's past.

theta' <- alpha theta' + (1 - alpha) theta after every step. The teacher runs in training mode with its own
augmentation, noise, dropout and batch means; no gradient flows into it.
"""

import torch
import torch.nn.functional as F

from sntg.losses import cross_entropy
from sntg.methods.base import Batch, Method, Passes
from sntg.models import Classifier


class MeanTeacher(Method):
    """The loss is CE(f(x), y) + w |f(x; theta, xi) - f(x; theta', xi')|^2, with theta' the average of past theta."""

    name = "mt"
    line = "Mean Teacher: agree with a network that averages the student's weights"

    def passes(self, batch: Batch) -> Passes:
        student = self.model(self.view(batch.x))
        with torch.no_grad():
            target = F.softmax(self.average(self.view(batch.x)).logits, -1)
        terms = {
            "supervised": cross_entropy(student.logits, batch.labels),
            "consistency": self.consistency(student.logits, target, batch.unlabelled),
        }
        return Passes(student, target, terms)

    def averaged(self) -> Classifier:
        """The teacher, with the running means of its own passes."""
        return self.average
