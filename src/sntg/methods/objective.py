"""A method as its name composes it: a base method, optionally with the entropy term and the graph term on top."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sntg.graph import Graph, Nodes, Pairs, hard_target, sample_pairs, sntg_loss
from sntg.losses import entropy
from sntg.methods.base import Batch, Method, Passes


@dataclass(frozen=True)
class GraphTerm:
    """How `+sntg` is computed: which graph, which pairs, what margin, and whether true labels replace the teacher's."""

    graph: Graph
    pairs: str = "half"
    n_pairs: int | None = None
    margin: float = 1.0
    merge_labels: bool = True


@dataclass(frozen=True)
class Seen:
    """What the graph term looked at in one step, kept to measure the graph against the hidden labels."""

    teacher: Tensor | None  # (runs, n) class numbers, -1 where the teacher has none yet
    pairs: Pairs | None = None
    W: Tensor | None = None
    judged: Tensor | None = None  # (runs, s), False for a pair with a row nobody has an opinion on; None = all are


class Objective:
    """The loss terms of one step of `base [+ent] [+sntg]`."""

    def __init__(self, base: Method, ent: bool = False, graph_term: GraphTerm | None = None) -> None:
        self.base = base
        self.ent = ent
        self.graph_term = graph_term

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the loss terms."""
        return (*self.base.terms, *("entropy",) * self.ent, *("sntg",) * (self.graph_term is not None))

    def __call__(self, batch: Batch) -> tuple[dict[str, Tensor], Seen]:
        passes = self.base.passes(batch)
        terms = dict(passes.terms)
        if self.ent:
            terms["entropy"] = entropy(passes.student.logits)
        if self.graph_term is None:
            return terms, Seen(_opinions(passes.target, passes.known))
        terms["sntg"], seen = self._smooth_neighbours(batch, passes, self.graph_term)
        return terms, seen

    def _smooth_neighbours(self, batch: Batch, passes: Passes, how: GraphTerm) -> tuple[Tensor, Seen]:
        """R_S of the student's features on the graph, and what the graph looked like."""
        labels = batch.labels if how.merge_labels else None
        teacher = self.base.teacher(batch, passes) if how.graph.needs_teacher else passes.target
        known = passes.known if how.graph.needs_teacher else None
        if known is not None and labels is not None:
            known = known | (labels >= 0)  # a true label is an opinion too
        pairs = sample_pairs(batch.rows.shape[-1], how.pairs, how.n_pairs, batch.rows.device)
        W = how.graph(Nodes(teacher, labels, batch.rows), pairs)
        loss = sntg_loss(passes.student.features, W, pairs, how.margin, known)
        judged = None if known is None else known[..., pairs.i] & known[..., pairs.j]
        counted = W if judged is None else W * judged
        return loss, Seen(_opinions(teacher, passes.known), pairs, counted, judged)


def _opinions(teacher: Tensor | None, known: Tensor | None) -> Tensor | None:
    """The teacher's classes, -1 where it has no opinion."""
    if teacher is None:
        return None
    classes = hard_target(teacher)
    return classes if known is None else torch.where(known, classes, -1)
