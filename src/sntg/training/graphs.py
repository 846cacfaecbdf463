"""The graph of a run's settings: built anew in every step, or once before training."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from sntg.data import Split, entry, read_split
from sntg.errors import UsageError
from sntg.graph import FixedGraph, Graph, HardGraph, KNNGraph, SoftGraph
from sntg.methods import GraphTerm, parse
from sntg.training.config import Config
from sntg.training.evaluation import predict
from sntg.training.run_folder import SPLIT, load, read_config

SAME_SPLIT = ("dataset", "labels", "seed", "split", "label_noise", "validation", "whitening")


def build_graph(configs: Sequence[Config], points: Sequence[Tensor], splits: Sequence[Split]) -> Graph:
    """The graph of a stack of runs with each run's training points (N, *event), in the host's memory, and its split."""
    return BUILDERS[configs[0].graph](configs, points, splits)


def _knn(configs: Sequence[Config], points: Sequence[Tensor], splits: Sequence[Split]) -> Graph:
    wanted, there = configs[0].neighbours, len(points[0])
    if wanted >= there:
        raise UsageError(
            f"neighbours = {wanted} is out of range: of {there} training points, one has {there - 1} others"
        )
    neighbours = torch.stack([KNNGraph.build(x, configs[0].neighbours).neighbours for x in points])
    return KNNGraph(neighbours.to(configs[0].device))


def _fixed(configs: Sequence[Config], points: Sequence[Tensor], splits: Sequence[Split]) -> Graph:
    """What an earlier run predicts for the points."""
    folder = configs[0].fixed_from
    check_graph(configs)
    for split in splits:
        stored = read_split(Path(folder) / SPLIT, split.labels, entry(configs[0].dataset).classes)
        if not torch.equal(stored.labels, split.labels):
            raise UsageError(f"fixed_from is a run that saw other labels: compare its {SPLIT} with this run's")
    earlier = load(folder).to(configs[0].device)
    return FixedGraph(torch.stack([predict(earlier, x).logits.argmax(-1) for x in points]))


def graph_state(term: GraphTerm | None) -> dict[str, Tensor]:
    """What a checkpoint has of a graph: a fixed one's classes, since the run that predicted them may be made again.

    >>> graph_state(GraphTerm(FixedGraph(torch.tensor([0, 1]))))
    {'classes': tensor([0, 1])}
    """
    return {"classes": term.graph.classes} if term and isinstance(term.graph, FixedGraph) else {}


def check_graph(configs: Sequence[Config]) -> None:
    """Refuses runs that a graph built before training cannot serve; of a fixed one that can be told without data."""
    if configs[0].graph != "fixed" or not parse(configs[0].method).sntg:
        return
    try:
        earlier = read_config(Path(configs[0].fixed_from))
    except UsageError as e:
        raise UsageError(f"fixed_from: {e}") from None
    check_same_split(configs, earlier)


def check_same_split(configs: Sequence[Config], earlier: Config) -> None:
    """Refuses a fixed graph from a run that saw other points or other labels: it would give hidden labels away."""
    for config in configs:
        for key in SAME_SPLIT:
            ours, theirs = getattr(config, key), getattr(earlier, key)
            if ours != theirs:
                raise UsageError(
                    f"fixed_from is a run with {key} = {theirs}, and this run has {key} = {ours}: "
                    "it takes an earlier run on the same points and labels"
                )


BUILDERS: dict[str, Callable[[Sequence[Config], Sequence[Tensor], Sequence[Split]], Graph]] = {
    "hard": lambda configs, points, splits: HardGraph(),
    "soft": lambda configs, points, splits: SoftGraph(configs[0].temperature),
    "knn": _knn,
    "fixed": _fixed,
}
