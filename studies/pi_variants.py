"""Pi+SNTG with what somebody may have done otherwise where the recipe says one thing: what would it have gained?

    python studies/pi_variants.py mean-graph --seeds 1 --set k=0.1
    python studies/pi_variants.py own-flips+both-labels+dense-16 --seeds 1 --set k=0.1

Variants joined by a plus are made at once, to see with one run whether any may gain something; gains can cancel. All
else is `sntg train cifar10 --labels 4000 --method pi+sntg`.
"""

import sys
from typing import ClassVar

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

VARIANTS = {
    "both-features": "the graph term shapes the features of both branches, not of the first alone",
    "mean-graph": "the graph is that of both branches' mean prediction, not of the second's",
    "own-graph": "the graph is that of the first branch, whose features it shapes",
    "own-flips": "each branch has flips of its own",
    "both-labels": "the cross-entropy is the mean of both branches', not that of the first",
    "dense-16": "features, output layer and logits are in bfloat16, as under PyTorch's autocast",
}


class Variant(Pi):
    """The Pi model with some of the above."""

    chosen: ClassVar[set[str]] = set()

    def passes(self, batch: Batch) -> Passes:
        x = batch.x if "own-flips" in self.chosen else self.flip(batch.x)
        view = self.view if "own-flips" in self.chosen else self.augment
        features = self.model.h(torch.stack([view(x), view(x)], 1))
        both = self._in_16_bits(features) if "dense-16" in self.chosen else Output(self.model.g(features), features)
        logits, logits_b = both.logits.unbind(1)
        target = F.softmax(logits_b, -1)
        supervised = cross_entropy(logits, batch.labels)
        if "both-labels" in self.chosen:
            supervised = (supervised + cross_entropy(logits_b, batch.labels)) / 2
        terms = {"supervised": supervised, "consistency": self.consistency(logits, target, batch.unlabelled)}
        shaped = both.features if "both-features" in self.chosen else both.features[:, 0]
        return Passes(Output(logits, shaped), target.detach(), terms)

    def teacher(self, batch: Batch, passes: Passes) -> Tensor | None:
        own = F.softmax(passes.student.logits.detach(), -1)
        if "own-graph" in self.chosen:
            return own
        assert passes.target is not None
        return (own + passes.target) / 2 if "mean-graph" in self.chosen else passes.target

    def _in_16_bits(self, features: Tensor) -> Output:
        layer = self.model.output
        features = features.bfloat16()
        y = layer.linear_map(features, layer.weight().bfloat16())
        return Output(layer.centred(y).float(), features.float())


def mean_over_branches(
    features: Tensor, W: Tensor, pairs: Pairs, margin: float = 1.0, known: Tensor | None = None
) -> Tensor:
    """The SNTG loss of each branch on the one graph."""
    return sntg_loss(features, W[:, None], pairs, margin, known).mean(-1)


def choose(names: str) -> None:
    """Puts a variant in the Pi model's place."""
    Variant.chosen = set(names.split("+"))
    if not names or Variant.chosen - VARIANTS.keys():
        lines = "\n".join(f"  {name:15}{what}" for name, what in VARIANTS.items())
        sys.exit(f"name variants, joined by +, before the options of sntg train:\n{lines}")
    METHODS["pi"] = Variant
    if "both-features" in Variant.chosen:
        objective.sntg_loss = mean_over_branches


if __name__ == "__main__":
    choose(sys.argv[1] if len(sys.argv) > 1 else "")
    sys.argv[1:] = ["train", "cifar10", "--labels", "4000", "--method", "pi+sntg", *sys.argv[2:]]
    main()
