"""The graphs: each says, for given pairs of a batch, how much of a neighbour j is to i (W_ij in [0, 1]).

All are called alike, `graph(nodes, pairs) -> W`, so the loss never asks which graph it has.
"""

import sys
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sntg.errors import UsageError
from sntg.graph.pairs import Pairs

WHOLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}  # PyTorch compares hardly any other


@dataclass(frozen=True)
class Nodes:
    """What a graph may know of a batch's rows; a graph reads only what it needs.

    teacher: (..., n, K) probabilities or (..., n) class numbers predicted by the teacher.
    labels: (..., n) true classes, -1 where unknown; they stand in for the teacher where known.
    rows: (..., n) the rows' numbers in the training set, for graphs built ahead of training.
    """

    teacher: Tensor | None = None
    labels: Tensor | None = None
    rows: Tensor | None = None


class Graph(Protocol):
    """W for given pairs. `needs_teacher` says whether the nodes must carry the teacher's predictions.

    One that is built ahead of training may say of how many points, `n_points`: then rows it does not have are refused.
    """

    needs_teacher: bool

    def __call__(self, nodes: Nodes, pairs: Pairs) -> Tensor: ...


class HardGraph:
    """The paper's 0/1 teacher graph: W_ij = 1 where the teacher predicts the same class (Eq. 6).

    >>> nodes = Nodes(teacher=torch.tensor([0, 1, 0]))
    >>> HardGraph()(nodes, Pairs(torch.tensor([0, 0]), torch.tensor([1, 2])))
    tensor([0., 1.])
    """

    needs_teacher = True

    def __call__(self, nodes: Nodes, pairs: Pairs) -> Tensor:
        return _agree(_merge(hard_target(_teacher(nodes)), nodes.labels), pairs)


class SoftGraph:
    """W_ij = exp(-(KL(p_i||p_j) + KL(p_j||p_i)) / T) on the teacher's probabilities; a label is a certain teacher.

    >>> nodes = Nodes(teacher=torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    >>> SoftGraph()(nodes, Pairs(torch.tensor([0]), torch.tensor([1])))
    tensor([1.])
    """

    needs_teacher = True

    def __init__(self, temperature: float = 1.0) -> None:
        check_positive("the soft graph's temperature", temperature)
        self.temperature = temperature

    def __call__(self, nodes: Nodes, pairs: Pairs) -> Tensor:
        p = _teacher(nodes)
        if not p.is_floating_point():
            raise UsageError("a soft graph needs the teacher's probabilities (n, K), not class numbers (n,)")
        p = p.detach().double() if p.dtype == torch.float64 else p.detach().float()
        if nodes.labels is not None:
            labels = nodes.labels[..., None]
            certain = (labels == torch.arange(p.shape[-1], device=p.device)).to(p.dtype)
            p = torch.where(labels >= 0, certain, p)
        # A floor under the logarithms: certainty (a label, a softmax that underflowed) is then no infinite divergence,
        # and a labelled point stays the neighbour of points the teacher is nearly sure of.
        log_p = p.clamp(min=torch.finfo(torch.float32).tiny).log()
        a, b = (p[..., end, :] for end in pairs)
        log_a, log_b = (log_p[..., end, :] for end in pairs)
        divergence = ((a - b) * (log_a - log_b)).sum(-1)  # KL(a||b) + KL(b||a)
        return torch.exp(-divergence / self.temperature)


class KNNGraph:
    """W_ij = 1 where either point is among the other's k nearest in input space: EmbedNN's fixed graph (Sec. 5.3).

    Kept as each point's list of neighbours, (..., N, k): 50,000 points take 4 MB, a dense matrix would take 10 GB.

    >>> graph = KNNGraph.build(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), k=1)
    >>> graph(Nodes(rows=torch.arange(4)), Pairs(torch.tensor([0, 0]), torch.tensor([1, 2])))
    tensor([1., 0.])
    """

    needs_teacher = False

    def __init__(self, neighbours: Tensor) -> None:
        _check_numbers("neighbours must be row numbers (..., N, k)", neighbours, axes=2)
        rows, points = neighbours.long(), neighbours.shape[-2]
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < points:
            raise UsageError(f"neighbours must be rows of the {points} points, 0 to {points - 1}")
        self.neighbours = rows

    @classmethod
    def build(cls, points: Tensor, k: int = 10) -> "KNNGraph":
        """Finds each point's k nearest others; `points` (N, ...) are the inputs before augmentation."""
        if not isinstance(points, Tensor):
            raise UsageError(f"points must be a tensor (N, ...), not {type(points).__name__}")
        if points.ndim < 2 or points.is_complex() or not points.numel():
            raise UsageError(f"points must be real numbers (N, ...), not {points.dtype} {tuple(points.shape)}")
        points = points.float()
        if not torch.isfinite(points).all():
            raise UsageError("points hold values that are NaN, infinite, or too large for float32")
        if not isinstance(k, int | np.integer):
            raise UsageError(f"k = {k!r} nearest neighbours is not a whole number")
        if not 1 <= k < len(points):
            raise UsageError(f"k = {k} nearest neighbours: of {len(points)} points each has 1 to {len(points) - 1}")
        from sklearn.neighbors import NearestNeighbors  # here: scikit-learn takes a second to load

        flat = np.ascontiguousarray(points.flatten(1).numpy(force=True))
        nearest = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(flat).kneighbors(return_distance=False)
        return cls(torch.from_numpy(nearest).to(points.device))

    @property
    def n_points(self) -> int:
        """N, how many training points it was built of."""
        return self.neighbours.shape[-2]

    def __call__(self, nodes: Nodes, pairs: Pairs) -> Tensor:
        a, b = _rows(nodes)[..., pairs.i], _rows(nodes)[..., pairs.j]
        return (self._lists(a, b) | self._lists(b, a)).float()

    def _lists(self, a: Tensor, b: Tensor) -> Tensor:
        """Whether a's list of neighbours has b in it."""
        k = self.neighbours.shape[-1]
        listed = self.neighbours.gather(-2, a[..., None].expand(*a.shape, k))
        return (listed == b[..., None]).any(-1)


class FixedGraph:
    """The 0/1 graph of predictions made once by a model trained earlier (Sec. 5.3); `classes` is (..., N).

    >>> graph = FixedGraph(torch.tensor([0, 1, 1]))
    >>> graph(Nodes(rows=torch.tensor([1, 2])), Pairs(torch.tensor([0]), torch.tensor([1])))
    tensor([1.])
    """

    needs_teacher = False

    def __init__(self, classes: Tensor) -> None:
        _check_numbers("classes must be class numbers (..., N), of probabilities their argmax", classes, axes=1)
        self.classes = classes

    @property
    def n_points(self) -> int:
        """N, how many training points it was built of."""
        return self.classes.shape[-1]

    def __call__(self, nodes: Nodes, pairs: Pairs) -> Tensor:
        return _agree(_merge(self.classes.gather(-1, _rows(nodes)), nodes.labels), pairs)


GRAPHS: dict[str, str] = {
    "hard": "0/1: neighbours where the teacher predicts the same class (the paper's graph)",
    "soft": "exp(-symmetric KL / temperature) of the teacher's probabilities",
    "knn": "0/1: k nearest neighbours in input space, fixed (EmbedNN)",
    "fixed": "0/1: same class predicted by a run trained earlier, fixed",
}


def _check_numbers(wanted: str, values: object, axes: int) -> None:
    """Refuses what is no tensor of whole numbers with so many axes at least."""
    if not isinstance(values, Tensor):
        raise UsageError(f"{wanted}: a tensor, not {type(values).__name__}")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool or values.ndim < axes:
        raise UsageError(f"{wanted}: these are {tuple(values.shape)} of {values.dtype}")


def check_positive(name: str, value: object) -> None:
    """Refuses what is no positive number.

    >>> check_positive("the margin", 0.5)
    """
    number = value.item() if isinstance(value, np.integer | np.floating) else value
    if isinstance(number, bool) or not (isinstance(number, int | float) and 0 < number <= sys.float_info.max):
        raise UsageError(f"{name} must be a positive number, not {value!r}")


def hard_target(teacher: Tensor) -> Tensor:
    """The teacher's class numbers, whether it gave probabilities or class numbers.

    >>> hard_target(torch.tensor([[0.2, 0.8], [0.6, 0.4]]))
    tensor([1, 0])
    """
    return teacher.argmax(-1) if teacher.is_floating_point() else teacher


def _merge(classes: Tensor, labels: Tensor | None) -> Tensor:
    """The true label where it is known, else the predicted class."""
    return classes if labels is None else torch.where(labels >= 0, labels, classes)


def _agree(classes: Tensor, pairs: Pairs) -> Tensor:
    return (classes[..., pairs.i] == classes[..., pairs.j]).float()


def _teacher(nodes: Nodes) -> Tensor:
    if nodes.teacher is None:
        raise UsageError("this graph needs the teacher's predictions, and none were given")
    return nodes.teacher


def _rows(nodes: Nodes) -> Tensor:
    if nodes.rows is None:
        raise UsageError(
            "a graph built before training needs the rows' numbers in the training set, and none were given"
        )
    return nodes.rows.long()
