"""Batches of a stack of runs, drawn on the device from endless streams of shuffled rows."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sntg.methods import Batch
from sntg.training.streaming import Streamed


class Shuffled:
    """An endless stream of a set of rows, (runs, rows), `n` at a time: shuffle, cut into batches, drop the partial last
    one, shuffle again. Fewer rows than a batch wants are repeated within it, as evenly as whole rounds allow.

    >>> stream = Shuffled(torch.arange(5)[None], n=2)
    >>> stream.refill()
    >>> stream.next().shape
    torch.Size([1, 2])
    """

    def __init__(self, rows: Tensor, n: int) -> None:
        self.rows = rows
        self.n = n
        self.repeats = -(-n // rows.shape[1])
        self.order = rows.repeat(1, self.repeats)
        self.taken = self.order.shape[1]  # nothing is left: the first batch shuffles
        self.place = torch.zeros((), dtype=torch.int64, device=rows.device)
        self.ahead = torch.arange(n, device=rows.device)
        self.on_host: Tensor | None = None  # the order, where someone has asked for it

    def refill(self) -> None:
        """Shuffles anew where the next n rows would not be whole. Called before every `next`, by the host alone."""
        if self.taken + self.n > self.order.shape[1]:
            self.order.copy_(torch.cat([self._shuffle() for _ in range(self.repeats)], 1))
            self.taken = 0
            self.place.zero_()
            self.on_host = None
        self.taken += self.n

    def coming(self, batches: int = 0) -> Tensor | None:
        """The host's copy of the rows `next` gives now, or some batches later; None where they are not shuffled yet."""
        if self.on_host is None:
            self.on_host = self.order.to("cpu", copy=True)
        end = self.taken + batches * self.n
        return self.on_host[:, end - self.n : end] if end <= self.on_host.shape[1] else None

    def next(self) -> Tensor:
        """The next n rows of each run, (runs, n). The host has no part in it, so a recorded step can be replayed."""
        rows = self.order.index_select(1, self.place + self.ahead)
        self.place += self.n
        return rows

    def draw(self) -> Tensor:
        """Both at once, for those who do not record."""
        self.refill()
        return self.next()

    def _shuffle(self) -> Tensor:
        keys = torch.rand(self.rows.shape, device=self.rows.device)
        return self.rows.gather(1, keys.argsort(-1))


class Batches:
    """The training data of a stack of runs: x (runs, N, *event), labels (runs, N).

    Batches are drawn on the labels' device. Points that are not there are streamed to it.

    A step draws `batch` of all points, and `labelled_batch` of the labelled ones beside them. The two go to the method
    apart where it wants them so (`separate`); otherwise they are joined into one batch, labelled rows first, in which
    the others count as unlabelled: Mean Teacher's style for SVHN.

    >>> data = Batches(torch.randn(1, 10, 2), torch.zeros(1, 10, dtype=torch.long), batch=4)
    >>> data.refill()
    >>> data.next().x.shape
    torch.Size([1, 4, 2])
    """

    def __init__(self, x: Tensor, labels: Tensor, batch: int, labelled_batch: int = 0, separate: bool = False) -> None:
        self.x = x
        self.labels = labels
        self.separate = separate
        self.runs = torch.arange(len(x), device=labels.device)[:, None]
        self.streams: dict[str, Shuffled] = {}
        if batch:
            everything = torch.arange(x.shape[1], device=labels.device).expand(len(x), -1)
            self.streams["all"] = Shuffled(everything, batch)
        if labelled_batch:
            self.streams["labelled"] = Shuffled(self.labelled_rows(), labelled_batch)
        self.unlabelled = torch.arange(labelled_batch + batch, device=labels.device) >= labelled_batch
        self.streamed: dict[str, Streamed] = {}
        if x.device != labels.device:
            self.streamed = {name: Streamed(x, stream.n, labels.device) for name, stream in self.streams.items()}

    def refill(self) -> None:
        """Shuffles the streams that have run out, and loads what comes from the host: before every `next`."""
        for name, stream in self.streams.items():
            stream.refill()
            if name in self.streamed:
                now = stream.coming()
                assert now is not None
                self.streamed[name].load(now, stream.coming(1))

    def next(self) -> Batch:
        """The batch of the next step. The host has no part in it."""
        drawn = {name: self._draw(name, stream.next()) for name, stream in self.streams.items()}
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

    def pick(self, rows: Tensor) -> Tensor:
        """The points of the given rows (runs, n), on the device."""
        if self.streamed:
            return self.x[self.runs.cpu(), rows.cpu()].to(rows.device)
        return self.x[self.runs, rows]

    def _draw(self, name: str, rows: Tensor) -> Batch:
        x = self.streamed[name].ready if self.streamed else self.pick(rows)
        return Batch(x, self.labels[self.runs, rows], rows)

    def state(self) -> dict[str, Tensor]:
        """Where in their shuffled orders the streams are, for a checkpoint."""
        orders = {f"{name}.order": stream.order for name, stream in self.streams.items()}
        return orders | {f"{name}.taken": torch.tensor(stream.taken) for name, stream in self.streams.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes back to what `state` gave."""
        for name, stream in self.streams.items():
            stream.order.copy_(state[f"{name}.order"])
            stream.taken = int(state[f"{name}.taken"])
            stream.place.fill_(stream.taken)
            stream.on_host = None
