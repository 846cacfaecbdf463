"""What an epoch's steps add up to: loss terms, the teacher's error, the graph's precision and recall.

Steps are only kept; the sums are formed, and read from the device, once when the epoch ends.
"""

from typing import Any

import torch
from torch import Tensor

from sntg.errors import DivergenceError
from sntg.graph import Pairs
from sntg.methods import Batch, Seen


class EpochLog:
    """The steps of one epoch. `truth` (runs, N) are the true classes, which training itself never sees."""

    def __init__(self, truth: Tensor, first_step: int) -> None:
        self.truth = truth
        self.first_step = first_step
        self.names: list[str] = []
        self.terms: list[Tensor] = []
        self.rows: list[Tensor] = []
        self.seen: list[Seen] = []

    def add(self, batch: Batch, terms: dict[str, Tensor], seen: Seen) -> None:
        """Keeps one step."""
        self.names = list(terms)
        self.terms.append(torch.stack(list(terms.values())).detach())
        self.rows.append(batch.rows)
        self.seen.append(seen)

    def check_finite(self) -> None:
        """Stops a run whose loss is no longer a number, naming the first term and step it happened in."""
        values = torch.stack(self.terms)
        broken = ~torch.isfinite(values)
        if not bool(broken.any()):
            return
        step, term, run = broken.nonzero()[0].tolist()
        value = float(values[step, term, run])
        at = self.first_step + step + 1
        raise DivergenceError(f"the {self.names[term]} loss became {value} at step {at}")

    def summaries(self) -> list[dict[str, Any]]:
        """The epoch's means for each run, as they go into the metrics file. Errors are percentages."""
        losses = torch.stack(self.terms).mean(0).T.tolist()
        quality = [self._teacher_error(), *self._graph_quality()]
        names = ("teacher_error", "graph_precision", "graph_recall")
        return [
            {"loss": dict(zip(self.names, loss, strict=True)), **dict(zip(names, (q[r] for q in quality), strict=True))}
            for r, loss in enumerate(losses)
        ]

    def _truth_of_steps(self) -> Tensor:
        """The true classes of every step's rows, (steps, runs, n)."""
        rows = torch.stack(self.rows)
        return self.truth.expand(len(rows), *self.truth.shape).gather(-1, rows)

    def _teacher_error(self) -> list[float | None]:
        """How often the teacher's class was wrong, in percent of the rows it had an opinion on."""
        taught = [s.teacher for s in self.seen if s.teacher is not None]
        if not taught:
            return [None] * len(self.truth)
        teacher = torch.stack(taught)
        wrong = (teacher != self._truth_of_steps()) & (teacher >= 0)
        return _ratios(100.0 * wrong.sum((0, 2)), (teacher >= 0).sum((0, 2)))

    def _graph_quality(self) -> tuple[list[float | None], list[float | None]]:
        """Precision and recall of the graph's neighbours against pairs that truly share a class."""
        weights = [s.W for s in self.seen if s.W is not None]
        if not weights:
            nothing: list[float | None] = [None] * len(self.truth)
            return nothing, nothing
        truth, W = self._truth_of_steps(), torch.stack(weights)
        i, j = (_ends([s.pairs for s in self.seen if s.pairs], end, truth) for end in (0, 1))
        same = truth.gather(-1, i) == truth.gather(-1, j)
        judged = [s.judged for s in self.seen if s.judged is not None]
        if judged:
            same = same & torch.stack(judged)
        hits = (W * same).sum((0, 2))
        return _ratios(hits, W.sum((0, 2))), _ratios(hits, same.sum((0, 2)))


def _ends(pairs: list[Pairs], end: int, truth: Tensor) -> Tensor:
    """One end of every step's pairs as row numbers, (steps, runs, s)."""
    rows = torch.arange(truth.shape[-1], device=truth.device)
    numbers = torch.stack([rows[p[end]] for p in pairs])
    return numbers[:, None].expand(-1, truth.shape[1], -1)


def _ratios(parts: Tensor, wholes: Tensor) -> list[float | None]:
    return [p / w if w else None for p, w in zip(parts.tolist(), wholes.tolist(), strict=True)]
