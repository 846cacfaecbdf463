"""Virtual adversarial training (Miyato et al., 2017): the prediction must not change in its worst direction.

The batch has two parts: labelled rows for the cross-entropy, and rows of the whole training set for the smoothness
loss LDS. The unlabelled passes of a step share noise and dropout masks, so that only r tells them apart, and the
running means follow the labelled rows alone. The teacher is the clean pass.

The entropy term acts on the clean pass too, and so does the graph term unless told (`graph_features`). In the paper's
words the student is the perturbed pass; its features are differentiated anyway, so there SNTG costs next to nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sntg.adversarial import adversarial_direction
from sntg.losses import consistency_kl, cross_entropy
from sntg.methods.base import Batch, Method, Passes, Setup
from sntg.models import Output, frozen_statistics, shared_noise, two_batches, without_kernels


class VAT(Method):
    """The loss is CE(f(x), y) + KL(f(x) || f(x + r)), with r of length epsilon where f changes most."""

    name = "vat"
    line = "virtual adversarial training: no change along the worst direction"
    separate_labelled = True
    sixteen_bits = "float16"  # three bits more: what rounding moves across zero turns the direction
    many_calls = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.epsilon = setup.options["epsilon"]
        self.power_iterations = int(setup.options["power_iterations"])
        self.xi = setup.options["xi"] or None
        self.graph_features = setup.options["graph_features"]

    def passes(self, batch: Batch) -> Passes:
        assert batch.labelled is not None
        labelled, x = self.view(batch.labelled.x), self.view(batch.x)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # where p is certain, r before scaling is below 16 bits
        with shared_noise(self.model):
            with frozen_statistics(self.model):
                clean, direction = self.worst(x)
            moved, logits = self.both(x + self.epsilon * direction, labelled)
        target = F.softmax(clean.logits.detach(), -1)
        terms = {
            "supervised": cross_entropy(logits, batch.labelled.labels),
            "consistency": consistency_kl(moved.logits, target),
        }
        student = clean if self.graph_features == "clean" else Output(clean.logits, moved.features)
        return Passes(student, target, terms)

    def both(self, x: Tensor, labelled: Tensor) -> tuple[Output, Tensor]:
        """The outputs for x and the labelled part's logits, in one pass: alone, that part would not keep a GPU busy."""
        rows = -1 - self.model.event_dims
        n = x.shape[rows]
        with two_batches(self.model, n):
            logits, features = self.model(torch.cat([x, labelled.to(x.dtype)], rows))
        return Output(logits[..., :n, :], features[..., :n, :]), logits[..., n:, :]

    def worst(self, x: Tensor) -> tuple[Output, Tensor]:
        """The clean pass, and the direction in which its predictions change most."""
        clean, linearised = self.model.linearised(x)
        with without_kernels(self.model):
            how = self.power_iterations, self.xi, linearised
            return clean, adversarial_direction(self.logits, x, self.model.event_dims, *how)

    def logits(self, x: Tensor) -> Tensor:
        return self.model(x).logits
