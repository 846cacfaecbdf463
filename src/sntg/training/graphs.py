"""The graph of a run's settings: built anew in every step, or once before training."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from sntg.errors import UsageError
from sntg.graph import FixedGraph, Graph, HardGraph, KNNGraph, SoftGraph
from sntg.training.config import Config
from sntg.training.evaluation import predict
from sntg.training.run_folder import load, read_config

SAME_SPLIT = ("dataset", "labels", "seed", "split", "split_file", "label_noise", "validation", "whitening")


def build_graph(configs: Sequence[Config], x: Tensor) -> Graph:
    """The graph of a stack of runs with training points x (runs, N, *event)."""
    return BUILDERS[configs[0].graph](configs, x)


def _knn(configs: Sequence[Config], x: Tensor) -> Graph:
    return KNNGraph(torch.stack([KNNGraph.build(points, configs[0].neighbours).neighbours for points in x]))


def _fixed(configs: Sequence[Config], x: Tensor) -> Graph:
    """What an earlier run predicts for the points."""
    folder = configs[0].fixed_from
    check_same_split(configs, read_config(Path(folder)))
    earlier = load(folder).to(x.device)
    return FixedGraph(predict(earlier, x.flatten(0, 1)).logits.argmax(-1).view(x.shape[:2]))


def check_same_split(configs: Sequence[Config], earlier: Config) -> None:
    """Refuses a fixed graph from a run that saw other points or other labels: it would give hidden labels away."""
    for config in configs:
        for key in SAME_SPLIT:
            ours, theirs = getattr(config, key), getattr(earlier, key)
            if ours != theirs:
                raise UsageError(f"fixed_from is a run with {key} = {theirs}, and this run has {key} = {ours}")


BUILDERS: dict[str, Callable[[Sequence[Config], Tensor], Graph]] = {
    "hard": lambda configs, x: HardGraph(),
    "soft": lambda configs, x: SoftGraph(configs[0].temperature),
    "knn": _knn,
    "fixed": _fixed,
}
