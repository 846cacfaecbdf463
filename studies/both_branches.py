"""Pi+SNTG whose graph term shapes the features of both branches, and not of the first alone, as the recipe has it.

    python studies/both_branches.py --seeds 0,3 --set k=0.1

Both passes are there anyway, so the term sees twice the pairs at no cost, and its gradient has less noise. The graph is
the recipe's: the second branch's classes, true labels where known. All else is `sntg train cifar10 --labels 4000`.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from sntg.cli import main
from sntg.graph import Pairs, sntg_loss
from sntg.losses import cross_entropy
from sntg.methods import METHODS, objective
from sntg.methods.base import Batch, Passes
from sntg.methods.pi import Pi
from sntg.models import Output


class BothBranches(Pi):
    """The Pi model, whose features are (runs, 2, n, p): both branches'."""

    def passes(self, batch: Batch) -> Passes:
        x = self.flip(batch.x)
        both = self.model(torch.stack([self.augment(x), self.augment(x)], 1))
        logits, logits_b = both.logits.unbind(1)
        target = F.softmax(logits_b, -1)
        terms = {
            "supervised": cross_entropy(logits, batch.labels),
            "consistency": self.consistency(logits, target, batch.unlabelled),
        }
        return Passes(Output(logits, both.features), target.detach(), terms)


def mean_over_branches(
    features: Tensor, W: Tensor, pairs: Pairs, margin: float = 1.0, known: Tensor | None = None
) -> Tensor:
    """The SNTG loss of each branch on the one graph."""
    return sntg_loss(features, W[:, None], pairs, margin, known).mean(-1)


if __name__ == "__main__":
    METHODS["pi"] = BothBranches
    objective.sntg_loss = mean_over_branches
    sys.argv[1:] = ["train", "cifar10", "--labels", "4000", "--method", "pi+sntg", *sys.argv[1:]]
    main()
