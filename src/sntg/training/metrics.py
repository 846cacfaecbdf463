"""What an epoch's steps add up to: loss terms, the teacher's error, the graph's precision and recall.

The sums live on the device and are read once, when the epoch ends; a checkpoint in mid-epoch takes them along.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sntg.methods import Seen


class EpochLog:
    """The sums of one epoch. `truth` (runs, N) are the true classes, which training itself never sees.

    losses: (terms, runs), summed in float64; a sum that is not a number any more stays as it is, and `fine` counts the
    steps before. counts: (5, runs), of the teacher's mistakes and opinions, and the graph's hits, neighbours and true
    pairs. How many steps they are of is the host's to count.
    """

    def __init__(self, truth: Tensor, names: Sequence[str]) -> None:
        self.truth = truth
        self.names = tuple(names)
        self.first_step = self.steps = 0
        self.counts = torch.zeros(5, len(truth), dtype=torch.float64, device=truth.device)
        self.losses = torch.zeros(len(self.names), len(truth), dtype=torch.float64, device=truth.device)
        self.fine = torch.zeros_like(self.losses)

    def add(self, rows: Tensor, terms: Mapping[str, Tensor], seen: Seen) -> None:
        """Adds one step's terms and what its teacher and graph made of the rows; the host has no part in it."""
        values = torch.stack([terms[name] for name in self.names]).detach().double()
        self.losses.copy_(torch.where(torch.isfinite(self.losses), self.losses + values, self.losses))
        self.fine += torch.isfinite(self.losses)
        if seen.teacher is not None or seen.W is not None:
            truth = self.truth.gather(-1, rows)
            self.counts += torch.stack([*self._teacher(truth, seen), *self._graph(truth, seen)]).double()

    def begin(self, step: int) -> None:
        """Starts the sums of the epoch that begins after `step` steps."""
        for sums in (self.counts, self.losses, self.fine):
            sums.zero_()
        self.first_step, self.steps = step, 0

    def _teacher(self, truth: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
        """The teacher's mistakes and opinions, held against the true classes of the batch's rows, (runs, n)."""
        if seen.teacher is None:
            return torch.zeros_like(truth[:, 0]), torch.zeros_like(truth[:, 0])
        opinions = seen.teacher >= 0
        return ((seen.teacher != truth) & opinions).sum(-1), opinions.sum(-1)

    def _graph(self, truth: Tensor, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
        """The graph's hits, its neighbours, and the pairs that truly share a class."""
        if seen.W is None or seen.pairs is None:
            nothing = torch.zeros_like(truth[:, 0])
            return nothing, nothing, nothing
        same = truth[:, seen.pairs.i] == truth[:, seen.pairs.j]
        if seen.judged is not None:
            same = same & seen.judged
        return (seen.W * same).sum(-1), seen.W.sum(-1), same.sum(-1)

    def diverged(self) -> dict[int, str]:
        """The runs that have a loss which is no longer a number, with the first term and step it happened in."""
        fine, found = self.fine.cpu(), {}
        for run in (fine < self.steps).any(0).nonzero()[:, 0].tolist():
            term = int(fine[:, run].argmin())
            at = self.first_step + int(fine[term, run]) + 1
            found[run] = f"the {self.names[term]} loss became {float(self.losses[term, run])} at step {at}"
        return found

    def means(self) -> list[dict[str, float]]:
        """Each run's mean loss terms so far."""
        return [dict(zip(self.names, run, strict=True)) for run in (self.losses / max(1, self.steps)).T.tolist()]

    def summaries(self) -> list[dict[str, Any]]:
        """The epoch's means for each run, as they go into the metrics file. Errors are percentages."""
        wrong, asked, hits, neighbours, pairs = self.counts.tolist()
        return [
            {
                "loss": losses,
                "teacher_error": _ratio(100.0 * wrong[r], asked[r]),
                "graph_precision": _ratio(hits[r], neighbours[r]),
                "graph_recall": _ratio(hits[r], pairs[r]),
            }
            for r, losses in enumerate(self.means())
        ]

    def state(self) -> dict[str, Tensor]:
        """The sums so far, for a checkpoint."""
        sums = {"counts": self.counts, "losses": self.losses, "fine": self.fine}
        return sums | {"steps": torch.tensor(self.steps), "first_step": torch.tensor(self.first_step)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes back to what `state` gave."""
        for name in ("counts", "losses", "fine"):
            getattr(self, name).copy_(state[name])
        self.steps, self.first_step = int(state["steps"]), int(state["first_step"])


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
