"""The SNTG loss (Eq. 7 and 8): neighbours' features together, the others' a margin apart."""

import torch
from torch import Tensor, nn

from sntg.errors import UsageError
from sntg.graph.graphs import WHOLE, Graph, HardGraph, Nodes, check_positive
from sntg.graph.pairs import PairMode, Pairs, check_pairs, sample_pairs

REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def sntg_loss(features: Tensor, W: Tensor, pairs: Pairs, margin: float = 1.0, known: Tensor | None = None) -> Tensor:
    """The mean over the pairs of W d^2 + (1 - W) max(0, margin - d)^2, with d^2 averaged over the p features.

    features (..., n, p), W (..., s); leading axes are independent problems, each with a loss of its own.
    A pair with a row that is not `known` (..., n) counts as zero: nothing can be said of it yet.

    >>> h = torch.tensor([[0.0, 0.0], [2.0, 2.0], [0.0, 0.5]])
    >>> sntg_loss(h, torch.tensor([1.0, 0.0]), Pairs(torch.tensor([0, 0]), torch.tensor([1, 2])))
    tensor(2.2089)
    """
    if features.dtype in (torch.float16, torch.bfloat16):
        features = features.float()  # squares of 16-bit differences overflow or vanish
    squared = (features[..., pairs.i, :] - features[..., pairs.j, :]).square().mean(-1)
    pull = W * squared
    push = (1 - W) * (margin - _root(squared)).clamp(min=0).square()
    loss = pull + push
    if known is not None:
        loss = loss * (known[..., pairs.i] & known[..., pairs.j])
    return loss.mean(-1)


def _root(squared: Tensor) -> Tensor:
    """The square root with gradient 0 at 0, where the distance has no direction."""
    zero = squared == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squared).sqrt())


class SNTGLoss(nn.Module):
    """The graph term as a part for anybody's training loop: R_S of a batch, estimated on sampled pairs.

    Called as `loss(features, teacher, labels)`:
    features (n, p) of the student, the penultimate layer's output;
    teacher (n, K) probabilities or (n,) class numbers; no gradient flows into it;
    labels (n,) with -1 for unknown, used in place of the teacher where known;
    rows (n,), the rows' numbers in the training set, only for a kNN or a fixed graph.

    `pairs` is "half" (the default, as the reference code), "random" (`n_pairs` of them) or "all".
    This class checks its inputs' values, which waits for the device; `sntg_loss` is the same without the checks. So is
    what `torch.compile` makes of this class: a compiled step cannot stop to look at values.

    >>> loss = SNTGLoss(margin=1.0)
    >>> h = torch.tensor([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0], [1.0, 1.5]], requires_grad=True)
    >>> loss(h, teacher=torch.tensor([0, 1, 1, 1]))
    tensor(0.0625, grad_fn=<MeanBackward1>)
    """

    def __init__(
        self,
        margin: float = 1.0,
        pairs: PairMode = "half",
        n_pairs: int | None = None,
        graph: Graph | None = None,
    ) -> None:
        super().__init__()
        check_positive("the margin", margin)
        if graph is not None and (isinstance(graph, type) or not callable(graph)):
            raise UsageError(f"graph must be a graph, such as HardGraph() or SoftGraph(), not {graph!r}")
        check_pairs(n=None, mode=pairs, n_pairs=n_pairs)  # with the batch's size again, when it is known
        self.margin = margin
        self.pairs = pairs
        self.n_pairs = n_pairs
        self.graph = graph or HardGraph()

    def forward(
        self,
        features: Tensor,
        teacher: Tensor | None = None,
        labels: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        if not torch.compiler.is_compiling():
            check_loss_inputs(features, teacher, labels, rows, getattr(self.graph, "n_points", None))
        teacher = None if teacher is None else teacher.detach()
        pairs = sample_pairs(features.shape[-2], self.pairs, self.n_pairs, features.device)
        W = self.graph(Nodes(teacher, labels, rows), pairs)
        return sntg_loss(features, W, pairs, self.margin)


def check_loss_inputs(
    features: Tensor,
    teacher: Tensor | None,
    labels: Tensor | None = None,
    rows: Tensor | None = None,
    n_points: int | None = None,
) -> None:
    """Says in one sentence what is wrong with a batch, if anything is. n_points: of the graph, where rows are its."""
    for name, value in {"features": features, "teacher": teacher, "labels": labels, "rows": rows}.items():
        if not isinstance(value, Tensor) and (value is not None or name == "features"):
            raise UsageError(f"{name} must be a tensor, not {type(value).__name__}")
        if value is not None and value.layout != torch.strided:
            raise UsageError(f"{name} must be a dense tensor, not one of the layout {value.layout}")
    if features.ndim < 2 or features.dtype not in REAL or features.shape[-1] == 0:
        raise UsageError(f"features must be real numbers of shape (n, p), not {features.dtype} {tuple(features.shape)}")
    _check_sizes(features)
    batch = features.shape[:-1]
    if teacher is not None:
        _check_teacher(teacher, batch)
    if rows is not None and (rows.shape != batch or rows.dtype not in WHOLE):
        what = f"{rows.dtype} {tuple(rows.shape)}"
        raise UsageError(f"rows must be {tuple(batch)} whole numbers of training points, not {what}")
    if rows is not None and n_points is not None:
        _check_rows(rows, n_points)
    if labels is not None:
        _check_labels(labels, batch, teacher)


def _check_sizes(features: Tensor) -> None:
    """Refuses numbers so large that squares of their differences, added up over features or pairs, overflow."""
    if not torch.isfinite(features).all():
        raise UsageError("features hold NaN or infinite values")
    largest = float(features.detach().abs().max()) if features.numel() else 0.0
    exact = torch.finfo(torch.promote_types(features.dtype, torch.float32))
    n, p = features.shape[-2:]
    if largest > (exact.max / max(n * n, p)) ** 0.5 / 2:
        raise UsageError(f"features are as large as {largest:.3g}: the squares of their distances overflow")


def _check_teacher(teacher: Tensor, batch: torch.Size) -> None:
    shape = teacher.shape[:-1] if teacher.is_floating_point() else teacher.shape
    if shape != batch or teacher.dtype not in REAL | WHOLE | {torch.bool}:
        raise UsageError(
            "teacher must hold (n, K) probabilities or (n,) whole class numbers "
            f"for n = {batch[-1]}, not {teacher.dtype} {tuple(teacher.shape)}"
        )
    if teacher.is_floating_point() and not torch.isfinite(teacher).all():
        raise UsageError("teacher holds NaN or infinite values")
    if (teacher < 0).any():
        raise UsageError(
            "teacher holds negative values: give probabilities (the softmax of the logits) or class numbers"
        )
    if teacher.is_floating_point() and teacher.shape[-1] == 0:
        raise UsageError(f"teacher must hold probabilities of at least one class, not {tuple(teacher.shape)}")


def _check_rows(rows: Tensor, n_points: int) -> None:
    """On a GPU a row that does not exist would end the process, not the call."""
    if rows.numel() == 0:
        return
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= n_points:
        raise UsageError(f"rows run from {low} to {high}, and the graph was built of the points 0 to {n_points - 1}")


def _check_labels(labels: Tensor, batch: torch.Size, teacher: Tensor | None) -> None:
    if labels.shape != batch or labels.dtype not in WHOLE:
        raise UsageError(f"labels must be {tuple(batch)} whole numbers, not {labels.dtype} {tuple(labels.shape)}")
    if labels.numel() == 0:
        return
    classes = teacher.shape[-1] if teacher is not None and teacher.is_floating_point() else None
    low, high = int(labels.min()), int(labels.max())
    if low < -1 or (classes is not None and high >= classes):
        valid = f"0 to {classes - 1}" if classes else "0 and up"
        raise UsageError(f"labels run from {low} to {high}: a class is {valid}, and -1 means unknown")
