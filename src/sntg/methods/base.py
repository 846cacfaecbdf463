"""What a method is: passes through the network, and the loss terms they give.

A method knows nothing of weights, ramps or optimisers. It says which views of a batch it looks at, what the teacher's
target is, and which terms follow; what the terms weigh is the schedule's business. Every method keeps an exponential
average of the student's weights: evaluation reports it beside the student, and for Mean Teacher it is the teacher.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sntg.models import Classifier, Output, flatten


@dataclass(frozen=True)
class Batch:
    """One step's data, of every run of the stack.

    x (runs, n, *event); labels (runs, n) with -1 for unlabelled; rows (runs, n), their numbers in the training set.
    labelled: for methods with `separate_labelled`, a second batch of labelled rows only.
    unlabelled: (n,), False for rows that are there for their label alone and stay out of the consistency; None = none.
    """

    x: Tensor
    labels: Tensor
    rows: Tensor
    labelled: "Batch | None" = None
    unlabelled: Tensor | None = None


@dataclass(frozen=True)
class Passes:
    """What a method computed of a batch.

    student: what is smoothed: the entropy term acts on its logits, the graph term on its features, h(x).
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
    augment: Augment  # what differs from view to view: translation
    consistency: Consistency
    points: int  # N, the size of the training set
    classes: int
    options: Mapping[str, Any]  # the run's settings by name; a method reads its own
    flip: Augment = lambda x: x  # what two views may share
    theta: Tensor | None = None  # the model's parameters in one tensor, where someone has put them into one


class Method:
    """A self-ensembling method; each subclass is one file, readable top to bottom."""

    name: str
    line: str  # what it is, in one line, for `sntg methods`
    terms: tuple[str, ...] = ("supervised", "consistency")  # the names of its loss terms
    separate_labelled = False  # whether it wants labelled rows in a batch of their own
    from_all = False  # whether it wants rows drawn from all of the training points
    sixteen_bits = "bfloat16"  # the 16-bit format that is exact enough for it
    many_calls = False  # whether a step has so many operations that even a CPU gains by compiling them, if small

    def __init__(self, setup: Setup) -> None:
        self.model = setup.model
        self.augment = setup.augment
        self.flip = setup.flip
        self.consistency = setup.consistency
        self.average = deepcopy(setup.model).requires_grad_(False)
        self._averaged = flatten(list(self.average.parameters()))
        self._theta = flatten(list(self.model.parameters())) if setup.theta is None else setup.theta

    def view(self, x: Tensor) -> Tensor:
        """A view of the batch with a flip and a translation of its own."""
        return self.augment(self.flip(x))

    def passes(self, batch: Batch) -> Passes:
        """Evaluates the networks on a batch and names the loss terms."""
        raise NotImplementedError

    def teacher(self, batch: Batch, passes: Passes) -> Tensor | None:
        """The probabilities the graph is built from; called only when there is a graph to build."""
        return passes.target

    @torch.no_grad()
    def after_step(self, ema: Tensor | float) -> None:
        """Called after every optimiser step: theta' <- ema theta' + (1 - ema) theta."""
        share = 1 - ema
        self._averaged.lerp_(self._theta, share.to(self._theta.dtype) if isinstance(share, Tensor) else share)

    def after_epoch(self) -> None:
        """Called after every epoch."""

    @torch.no_grad()
    def averaged(self) -> Classifier:
        """The averaged weights, with the student's running statistics."""
        torch._foreach_copy_(list(self.average.buffers()), list(self.model.buffers()))
        return self.average

    def state(self) -> dict[str, Tensor]:
        """What the method carries from step to step, for a checkpoint."""
        return {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Goes back to what `state` gave."""
        prefix = "average."
        average = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
        self.average.load_state_dict(average)
