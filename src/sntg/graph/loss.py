"""The SNTG loss (Eq. 7 and 8): neighbours' features together, the others' a margin apart."""

import torch
from torch import Tensor, nn

from sntg.errors import UsageError
from sntg.graph.checks import check_shapes, check_values
from sntg.graph.graphs import Graph, HardGraph, Nodes, check_positive
from sntg.graph.pairs import PairMode, Pairs, check_pairs, sample_pairs


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
    This class checks its inputs' values, which waits for the device; `sntg_loss` is the same without the checks. Where
    `torch.compile` compiles a step, it checks their shapes alone: that step cannot stop to look at values.

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
        check_shapes(features, teacher, labels, rows)
        if not torch.compiler.is_compiling():
            check_values(features, teacher, labels, rows, getattr(self.graph, "n_points", None))
        teacher = None if teacher is None else teacher.detach()
        pairs = sample_pairs(features.shape[-2], self.pairs, self.n_pairs, features.device)
        W = self.graph(Nodes(teacher, labels, rows), pairs)
        return sntg_loss(features, W, pairs, self.margin)
