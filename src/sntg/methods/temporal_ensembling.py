"""Temporal ensembling (Laine & Aila, 2017): agree with the running average of one's own past predictions.

Z <- alpha Z + (1 - alpha) z once an epoch, for the rows the epoch visited; the target is Z / (1 - alpha^v) with v the
row's own number of visits. A row never visited has no target and stays out of the consistency and the graph.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from sntg.losses import cross_entropy
from sntg.methods.base import Batch, Method, Passes, Setup

STORE = ("Z", "z", "seen", "visits")  # what it remembers of every training point


class TemporalEnsembling(Method):
    """The loss is CE(f(x), y) + w |f(x; xi) - Z / (1 - alpha^v)|^2, with Z the average of the point's past outputs."""

    name = "tempens"
    line = "temporal ensembling: agree with the average of one's past predictions"
    from_all = True  # of these no batch has one twice

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.alpha = setup.options["alpha"]
        self.labelled_batch = setup.options.get("labelled_batch", 0)
        shape = (*setup.model.runs, setup.points)
        device = next(setup.model.parameters()).device
        # The store is float32 for 16-bit networks too.
        self.Z = torch.zeros(*shape, setup.classes, device=device)
        self.z = torch.zeros_like(self.Z)  # this epoch's predictions, until it ends
        self.seen = torch.zeros(shape, dtype=torch.bool, device=device)
        self.visits = torch.zeros(shape, device=device)

    def passes(self, batch: Batch) -> Passes:
        student = self.model(self.view(batch.x))
        target, known = self.targets(batch.rows)
        terms = {
            "supervised": cross_entropy(student.logits, batch.labels),
            "consistency": self.consistency(student.logits, target, _both(known, batch.unlabelled)),
        }
        # Labelled rows that are drawn beside may be among the others, too. Those alone are noted: two draws of a row,
        # written to one place at once, would leave one of them, and not the same every time.
        first = 0 if batch.unlabelled is None else self.labelled_batch
        self._note(batch.rows[..., first:], F.softmax(student.logits[..., first:, :].detach(), -1))
        return Passes(student, target, terms, known)

    def targets(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The bias-corrected targets of the given rows, and which of them have been visited."""
        visits = self.visits.gather(-1, rows)
        correction = torch.where(visits > 0, 1 - self.alpha**visits, 1.0)
        Z = self.Z.gather(-2, rows[..., None].expand(*rows.shape, self.Z.shape[-1]))
        return Z / correction[..., None], visits > 0

    def after_epoch(self) -> None:
        seen = self.seen[..., None]
        self.Z.copy_(torch.where(seen, self.alpha * self.Z + (1 - self.alpha) * self.z, self.Z))
        self.visits += self.seen
        self.seen.zero_()

    def state(self) -> dict[str, Tensor]:
        return super().state() | {name: getattr(self, name) for name in STORE}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        for name in STORE:
            getattr(self, name).copy_(state[name])

    def _note(self, rows: Tensor, z: Tensor) -> None:
        """Keeps this epoch's predictions of the rows until the epoch ends."""
        self.z.scatter_(-2, rows[..., None].expand_as(z), z.to(self.z.dtype))
        self.seen.scatter_(-1, rows, True)


def _both(known: Tensor, unlabelled: Tensor | None) -> Tensor:
    return known if unlabelled is None else known & unlabelled
