"""Batches of a stack of runs, drawn on the device: shuffle all points, cut into batches, drop the partial last one."""

from collections.abc import Iterator

import torch
from torch import Tensor

from sntg.methods import Batch


class Batches:
    """The training data of a stack of runs: x (runs, N, *event), labels (runs, N).

    labelled_batch: the size of a second, labelled-only batch, for methods that want one; 0 for none.

    >>> data = Batches(torch.randn(1, 10, 2), torch.zeros(1, 10, dtype=torch.long), batch=4)
    >>> [batch.x.shape for batch in data.epoch()]
    [torch.Size([1, 4, 2]), torch.Size([1, 4, 2])]
    """

    def __init__(self, x: Tensor, labels: Tensor, batch: int, labelled_batch: int = 0) -> None:
        self.x = x
        self.labels = labels
        self.batch = batch
        self.labelled_batch = labelled_batch
        self.runs = torch.arange(len(x), device=x.device)[:, None]
        if labelled_batch:
            self.labelled_rows = torch.stack([run.nonzero()[:, 0] for run in labels >= 0])

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self.x.shape[1] // self.batch

    def epoch(self) -> Iterator[Batch]:
        """One pass over the shuffled points, each run in an order of its own."""
        order = torch.rand(self.labels.shape, device=self.x.device).argsort(-1)
        for step in range(self.steps):
            rows = order[:, step * self.batch : (step + 1) * self.batch]
            yield self.pick(rows, self._labelled() if self.labelled_batch else None)

    def pick(self, rows: Tensor, labelled: Batch | None = None) -> Batch:
        """The batch of the given rows (runs, n)."""
        return Batch(self.x[self.runs, rows], self.labels[self.runs, rows], rows, labelled)

    def _labelled(self) -> Batch:
        """A batch of labelled points, drawn with replacement: there may be fewer of them than it holds."""
        drawn = torch.randint(self.labelled_rows.shape[1], (len(self.x), self.labelled_batch), device=self.x.device)
        return self.pick(self.labelled_rows.gather(-1, drawn))
