"""Mean Teacher (Tarvainen & Valpola, 2017): agree with a network whose weights are the average of the student's past.

theta' <- alpha theta' + (1 - alpha) theta after every step. The teacher runs in training mode with its own
augmentation, noise, dropout and batch means; no gradient flows into it. Its error is the one reported.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F

from sntg.losses import cross_entropy
from sntg.methods.base import Batch, Method, Passes, Setup
from sntg.models import Classifier


class MeanTeacher(Method):
    name = "mt"
    line = "Mean Teacher: agree with a network that averages the student's weights"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.ema = setup.options["ema"]
        self.teacher_model = deepcopy(self.model)

    def passes(self, batch: Batch) -> Passes:
        student = self.model(self.augment(batch.x))
        with torch.no_grad():
            target = F.softmax(self.teacher_model(self.augment(batch.x)).logits, -1)
        terms = {
            "supervised": cross_entropy(student.logits, batch.labels),
            "consistency": self.consistency(student.logits, target, None),
        }
        return Passes(student, target, terms)

    @torch.no_grad()
    def after_step(self) -> None:
        for mean, weight in zip(self.teacher_model.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(weight, 1 - self.ema)

    def reported(self) -> Classifier:
        return self.teacher_model
