"""Batches of a stack of runs, drawn on the device from endless streams of shuffled rows."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sntg.methods import Batch


class Shuffled:
    """An endless stream of a set of rows, (runs, rows), `n` at a time: shuffle, cut into batches, drop the partial last
    one, shuffle again. Fewer rows than a batch wants are repeated within it, each as often as any other.

    >>> stream = Shuffled(torch.arange(5)[None], n=2)
    >>> [stream.next().shape for _ in range(3)]
    [torch.Size([1, 2]), torch.Size([1, 2]), torch.Size([1, 2])]
    """

    def __init__(self, rows: Tensor, n: int) -> None:
        self.rows = rows
        self.n = n
        self.repeats = -(-n // rows.shape[1])
        self.order = rows[:, :0]
        self.taken = 0

    def next(self) -> Tensor:
        """The next n rows of each run, (runs, n)."""
        if self.taken + self.n > self.order.shape[1]:
            self.order = torch.cat([self._shuffle() for _ in range(self.repeats)], 1)
            self.taken = 0
        self.taken += self.n
        return self.order[:, self.taken - self.n : self.taken]

    def _shuffle(self) -> Tensor:
        keys = torch.rand(self.rows.shape, device=self.rows.device)
        return self.rows.gather(1, keys.argsort(-1))


class Batches:
    """The training data of a stack of runs: x (runs, N, *event), labels (runs, N).

    A step draws `batch` of all points, and `labelled_batch` of the labelled ones beside them. The two go to the method
    apart where it wants them so (`separate`); otherwise they are joined into one batch, labelled rows first, in which
    the others count as unlabelled: Mean Teacher's style for SVHN.

    >>> data = Batches(torch.randn(1, 10, 2), torch.zeros(1, 10, dtype=torch.long), batch=4)
    >>> data.next().x.shape
    torch.Size([1, 4, 2])
    """

    def __init__(self, x: Tensor, labels: Tensor, batch: int, labelled_batch: int = 0, separate: bool = False) -> None:
        self.x = x
        self.labels = labels
        self.separate = separate
        self.runs = torch.arange(len(x), device=x.device)[:, None]
        self.streams: dict[str, Shuffled] = {}
        if batch:
            everything = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
            self.streams["all"] = Shuffled(everything, batch)
        if labelled_batch:
            self.streams["labelled"] = Shuffled(self.labelled_rows(), labelled_batch)
        self.unlabelled = torch.arange(labelled_batch + batch, device=x.device) >= labelled_batch

    def next(self) -> Batch:
        """The batch of the next step."""
        drawn = {name: self.pick(stream.next()) for name, stream in self.streams.items()}
        if len(drawn) == 1:
            return next(iter(drawn.values()))
        labelled, rest = drawn["labelled"], drawn["all"]
        if self.separate:
            return Batch(rest.x, rest.labels, rest.rows, labelled)
        return Batch(
            torch.cat([labelled.x, rest.x], 1),
            torch.cat([labelled.labels, torch.full_like(rest.labels, -1)], 1),
            torch.cat([labelled.rows, rest.rows], 1),
            unlabelled=self.unlabelled,
        )

    def labelled_rows(self) -> Tensor:
        """The rows that have a label, (runs, L)."""
        return torch.stack([run.nonzero()[:, 0] for run in self.labels >= 0])

    def pick(self, rows: Tensor) -> Batch:
        """The batch of the given rows (runs, n)."""
        return Batch(self.x[self.runs, rows], self.labels[self.runs, rows], rows)

    def state(self) -> dict[str, Tensor]:
        """Where in their shuffled orders the streams are, for a checkpoint."""
        orders = {f"{name}.order": stream.order for name, stream in self.streams.items()}
        return orders | {f"{name}.taken": torch.tensor(stream.taken) for name, stream in self.streams.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes back to what `state` gave."""
        for name, stream in self.streams.items():
            stream.order = state[f"{name}.order"]
            stream.taken = int(state[f"{name}.taken"])
