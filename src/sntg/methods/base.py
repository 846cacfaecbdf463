"""What a method is: passes through the network, and the loss terms they give.

A method knows nothing of weights, ramps or optimisers. It says which views of a batch it looks at, what the teacher's
target is, and which terms follow; what the terms weigh is the schedule's business.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sntg.models import Classifier, Output


@dataclass(frozen=True)
class Batch:
    """One step's data, of every run of the stack.

    x (runs, n, *event); labels (runs, n) with -1 for unlabelled; rows (runs, n), their numbers in the training set.
    For methods with `separate_labelled`, a second batch of labelled rows only.
    """

    x: Tensor
    labels: Tensor
    rows: Tensor
    labelled: "Batch | None" = None


@dataclass(frozen=True)
class Passes:
    """What a method computed of a batch.

    student: the pass the graph and entropy terms act on; its features are h(x).
    target: the teacher's probabilities (runs, n, K) without gradient, or None where there is no teacher.
    known: (runs, n), False where the teacher has no opinion yet; None where it always has one.
    terms: the loss terms by name, each (runs,), not yet weighted.
    """

    student: Output
    target: Tensor | None
    terms: dict[str, Tensor]
    known: Tensor | None = None


Augment = Callable[[Tensor], Tensor]
Consistency = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass
class Setup:
    """What a method is made from."""

    model: Classifier
    augment: Augment
    consistency: Consistency
    points: int  # N, the size of the training set
    classes: int
    options: Mapping[str, Any]  # the run's settings by name; a method reads its own


class Method:
    """A self-ensembling method; each subclass is one file, readable top to bottom."""

    name: str
    line: str  # what it is, in one line, for `sntg methods`
    separate_labelled = False  # whether it wants labelled rows in a batch of their own

    def __init__(self, setup: Setup) -> None:
        self.model = setup.model
        self.augment = setup.augment
        self.consistency = setup.consistency

    def passes(self, batch: Batch) -> Passes:
        """Evaluates the networks on a batch and names the loss terms."""
        raise NotImplementedError

    def teacher(self, batch: Batch, passes: Passes) -> Tensor | None:
        """The probabilities the graph is built from; called only when there is a graph to build."""
        return passes.target

    def after_step(self) -> None:
        """Called after every optimiser step."""

    def after_epoch(self) -> None:
        """Called after every epoch."""

    def reported(self) -> Classifier:
        """The network whose error is the method's result."""
        return self.model
