"""The graph of a run's settings: built anew in every step, or once before training."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from sntg.data import Split, entry, read_split
from sntg.errors import UsageError
from sntg.graph import FixedGraph, Graph, HardGraph, KNNGraph, SoftGraph
from sntg.training.config import Config
from sntg.training.evaluation import predict
from sntg.training.run_folder import SPLIT, load, read_config

SAME_SPLIT = ("dataset", "labels", "seed", "split", "label_noise", "validation", "whitening")


def build_graph(configs: Sequence[Config], x: Tensor, splits: Sequence[Split] = ()) -> Graph:
    """The graph of a stack of runs with training points x (runs, N, *event) and the splits they come from."""
    return BUILDERS[configs[0].graph](configs, x, splits)


def _knn(configs: Sequence[Config], x: Tensor, splits: Sequence[Split]) -> Graph:
    return KNNGraph(torch.stack([KNNGraph.build(points, configs[0].neighbours).neighbours for points in x]))


def _fixed(configs: Sequence[Config], x: Tensor, splits: Sequence[Split]) -> Graph:
    """What an earlier run predicts for the points."""
    folder = configs[0].fixed_from
    check_same_split(configs, read_config(Path(folder)))
    for split in splits:
        stored = read_split(Path(folder) / SPLIT, split.labels, entry(configs[0].dataset).classes)
        if not torch.equal(stored.labels, split.labels):
            raise UsageError(f"fixed_from is a run that saw other labels: compare its {SPLIT} with this run's")
    earlier = load(folder).to(x.device)
    return FixedGraph(predict(earlier, x.flatten(0, 1)).logits.argmax(-1).view(x.shape[:2]))


def check_same_split(configs: Sequence[Config], earlier: Config) -> None:
    """Refuses a fixed graph from a run that saw other points or other labels: it would give hidden labels away."""
    for config in configs:
        for key in SAME_SPLIT:
            ours, theirs = getattr(config, key), getattr(earlier, key)
            if ours != theirs:
                raise UsageError(f"fixed_from is a run with {key} = {theirs}, and this run has {key} = {ours}")


BUILDERS: dict[str, Callable[[Sequence[Config], Tensor, Sequence[Split]], Graph]] = {
    "hard": lambda configs, x, splits: HardGraph(),
    "soft": lambda configs, x, splits: SoftGraph(configs[0].temperature),
    "knn": _knn,
    "fixed": _fixed,
}
