"""Virtual adversarial training (Miyato et al., 2017): the prediction must not change in its worst direction.

The batch has two parts: labelled rows for the cross-entropy, and rows of the whole training set for the smoothness
loss LDS. The unlabelled passes of a step share noise and dropout masks, so that only r tells them apart, and the
running means follow the labelled rows alone. The teacher is the clean pass.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sntg.adversarial import adversarial_direction
from sntg.losses import consistency_kl, cross_entropy
from sntg.methods.base import Batch, Method, Passes, Setup
from sntg.models import Output, frozen_statistics, shared_noise, two_batches, without_kernels


class VAT(Method):
    name = "vat"
    line = "virtual adversarial training: no change along the worst direction"
    separate_labelled = True
    sixteen_bits = "float16"  # three bits more: what rounding moves across zero turns the direction

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.epsilon = setup.options["epsilon"]
        self.power_iterations = int(setup.options["power_iterations"])
        self.xi = setup.options["xi"] or None

    def passes(self, batch: Batch) -> Passes:
        assert batch.labelled is not None
        labelled, x = self.view(batch.labelled.x), self.view(batch.x)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # where p is certain, r before scaling is below 16 bits
        with shared_noise(self.model):
            with frozen_statistics(self.model):
                clean, direction = self.worst(x)
            moved_logits, logits = self.both(x + self.epsilon * direction, labelled)
        target = F.softmax(clean.logits.detach(), -1)
        supervised = cross_entropy(logits, batch.labelled.labels)
        return Passes(clean, target, {"supervised": supervised, "consistency": consistency_kl(moved_logits, target)})

    def both(self, x: Tensor, labelled: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of both parts, in one pass: alone, the labelled part is too small to keep a GPU busy."""
        rows = -1 - self.model.event_dims
        n = x.shape[rows]
        with two_batches(self.model, n):
            logits = self.logits(torch.cat([x, labelled.to(x.dtype)], rows))
        return logits[..., :n, :], logits[..., n:, :]

    def worst(self, x: Tensor) -> tuple[Output, Tensor]:
        """The clean pass, and the direction in which its predictions change most."""
        clean, linearised = self.model.linearised(x)
        with without_kernels(self.model):
            how = self.power_iterations, self.xi, linearised
            return clean, adversarial_direction(self.logits, x, self.model.event_dims, *how)

    def logits(self, x: Tensor) -> Tensor:
        return self.model(x).logits
