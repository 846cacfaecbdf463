"""What the SNTG loss refuses, and that it says what is wrong."""

import pytest
import torch

from sntg.errors import UsageError
from sntg.graph import FixedGraph, KNNGraph, SNTGLoss, SoftGraph, sample_pairs

NAN, INF = float("nan"), float("inf")
H = torch.arange(20.0, dtype=torch.float64).view(4, 5)
P = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 1]]
Y = torch.tensor([0, -1, 2, -1])


@pytest.mark.parametrize("margin", [0.0, -1.0, NAN, INF, 10**400, "1", None, True])
def test_a_margin_that_means_nothing_is_refused(margin):
    with pytest.raises(UsageError, match=f"margin .* not {margin!r}"):
        SNTGLoss(margin=margin)


@pytest.mark.parametrize("graph", ["soft", SoftGraph, 3])
def test_what_is_no_graph_is_refused_at_once(graph):
    with pytest.raises(UsageError, match=r"such as HardGraph\(\) or SoftGraph\(\), not "):
        SNTGLoss(graph=graph)


@pytest.mark.parametrize("classes", [[0, 1], 3, None, torch.rand(20), torch.rand(20, 3), torch.tensor(3)])
def test_what_are_no_class_numbers_makes_no_fixed_graph(classes):
    with pytest.raises(UsageError, match=r"classes must be class numbers \(..., N\), of probabilities their argmax: "):
        FixedGraph(classes)


@pytest.mark.parametrize("neighbours", [3, [[0]], torch.zeros(4), torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)])
def test_what_are_no_row_numbers_makes_no_knn_graph(neighbours):
    with pytest.raises(UsageError, match=r"neighbours must be row numbers \(..., N, k\): "):
        KNNGraph(neighbours)


@pytest.mark.parametrize("row", [-1, 4])
def test_a_neighbour_that_is_none_of_the_points_is_refused(row):
    with pytest.raises(UsageError, match="neighbours must be rows of the 4 points, 0 to 3"):
        KNNGraph(torch.tensor([[1], [0], [3], [row]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pairs": "both"}, "unknown pairs 'both'"),
        ({"pairs": "half", "n_pairs": 3}, "n_pairs = 3"),
        ({"pairs": None}, "unknown pairs 'None'"),
        ({"pairs": ["half"]}, "unknown pairs"),
        ({"pairs": "random", "n_pairs": 0}, "n_pairs = 0 is not a whole number from 1 on$"),
    ],
)
def test_pairs_that_no_batch_can_give_are_refused_at_once(arguments, message):
    with pytest.raises(UsageError, match=message):
        SNTGLoss(**arguments)


def test_more_pairs_than_the_batch_has_are_refused():
    with pytest.raises(UsageError, match=r"n_pairs = 13 .* n\(n-1\) = 12 for a batch of n = 4"):
        SNTGLoss(pairs="random", n_pairs=13)(H, P)


def with_one(value, like):
    spoiled = like.clone()
    spoiled[1, 0] = value
    return spoiled


@pytest.mark.parametrize(
    ("h", "p", "labels", "message"),
    [
        (with_one(NAN, H), P, None, "features hold NaN or infinite"),
        (with_one(-INF, H), P, None, "features hold NaN or infinite"),
        (H, with_one(NAN, P), None, "teacher holds NaN or infinite"),
        (H, with_one(INF, P), None, "teacher holds NaN or infinite"),
        (1e154 * H, P, None, "features are as large as 1.9e\\+155: the squares of their distances overflow"),
        ((1e19 * H).float(), P, None, "features are as large as 1.9e\\+20"),
        (H[:1], P[:1], None, "a batch of 1 has no pairs"),
        (H[:0], P[:0], None, "a batch of 0 has no pairs"),
        (H[:0], P[:0], Y[:0], "a batch of 0 has no pairs"),
        (H[0], P, None, r"features must be .* \(5,\)"),
        (H.long(), P, None, r"features must be .* torch.int64 \(4, 5\)"),
        (H[:, :0], P, None, r"features must be .* \(4, 0\)"),
        (H, P[:3], None, r"n = 4, not torch.float64 \(3, 3\)"),
        (H, P[:, 0], None, r"n = 4, not torch.float64 \(4,\)"),
        (H, P.long(), None, r"n = 4, not torch.int64 \(4, 3\)"),
        (H, P.argmax(1)[:3], None, r"n = 4, not torch.int64 \(3,\)"),
        (H, P, Y[:3], r"labels must be \(4,\) whole numbers, not torch.int64 \(3,\)"),
        (H, P, Y.float(), "labels must be .* whole numbers, not torch.float32"),
        (H, P, torch.tensor([0, -1, 3, -1]), "labels run from -1 to 3: a class is 0 to 2"),
        (H, P, torch.tensor([0, -2, 1, -1]), "labels run from -2 to 1: a class is 0 to 2"),
        (H, P.argmax(1), torch.tensor([0, -2, 1, -1]), "labels run from -2 to 1"),
        (H, None, None, "teacher's predictions"),
    ],
)
def test_a_bad_batch_is_refused_with_what_is_wrong(h, p, labels, message):
    with pytest.raises(UsageError, match=message):
        SNTGLoss()(h, p, labels)


@pytest.mark.parametrize("p", [1, 5, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_are_refused_only_where_their_loss_would_overflow(p, dtype):
    loss, limit = SNTGLoss(pairs="all"), (torch.finfo(dtype).max / max(8 * 8, p)) ** 0.5 / 2
    ends = torch.ones(8, p, dtype=dtype) * torch.tensor([1, -1], dtype=dtype).repeat(4)[:, None]
    for same in (torch.zeros(8, dtype=torch.long), torch.arange(8)):
        assert torch.isfinite(loss(0.999 * limit * ends, same))
    with pytest.raises(UsageError, match="features are as large as"):
        loss(1.001 * limit * ends, same)


@pytest.mark.parametrize("count", [3, 5, 9])
def test_rows_of_another_length_than_the_batch_are_refused(count):
    """Slices of a longer list would pair the wrong rows without a word."""
    loss = SNTGLoss(graph=FixedGraph(torch.zeros(20, dtype=torch.long)))
    with pytest.raises(UsageError, match=rf"rows .*\({count},\)"):
        loss(H, rows=torch.arange(count))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_rows_that_are_no_whole_numbers_are_refused(dtype):
    loss = SNTGLoss(graph=FixedGraph(torch.zeros(20, dtype=torch.long)))
    with pytest.raises(UsageError, match=rf"rows must be \(4,\) whole numbers .*, not {dtype} \(4,\)"):
        loss(H, rows=torch.ones(4, dtype=dtype))


@pytest.mark.parametrize("rows", [[17, 18, 19, 20], [-1, 0, 1, 2]])
@pytest.mark.parametrize(
    "graph", [FixedGraph(torch.zeros(20, dtype=torch.long)), KNNGraph.build(torch.rand(20, 5), k=2)]
)
def test_rows_that_the_graph_does_not_have_are_refused(graph, rows):
    SNTGLoss(graph=graph)(H, rows=torch.tensor([0, 1, 18, 19]))
    with pytest.raises(UsageError, match=rf"rows run from {rows[0]} to {rows[3]}, .* of the points 0 to 19"):
        SNTGLoss(graph=graph)(H, rows=torch.tensor(rows))


WIDE = [torch.uint16, torch.uint32, torch.uint64]  # PyTorch has next to no operations on them
NOT_WHOLE = [*WIDE, torch.bool, torch.float32, torch.complex64]


@pytest.mark.parametrize("dtype", NOT_WHOLE, ids=str)
def test_labels_that_are_no_whole_numbers_are_refused(dtype):
    """A mask of the labelled rows is none either: it would be read as classes 0 and 1."""
    with pytest.raises(UsageError, match=rf"labels must be \(4,\) whole numbers, not {dtype} \(4,\)"):
        SNTGLoss()(H, P, torch.ones(4).to(dtype))


@pytest.mark.parametrize("dtype", [*WIDE, torch.complex64], ids=str)
def test_a_teacher_that_is_no_numbers_to_count_with_is_refused(dtype):
    with pytest.raises(UsageError, match=rf"teacher must hold .* class numbers for n = 4, not {dtype} \(4,\)"):
        SNTGLoss()(H, torch.ones(4).to(dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_whole_numbers_may_have_any_size(dtype):
    classes, graph = torch.tensor([0, 1, 2, 1]).to(dtype), FixedGraph(torch.tensor([0, 1, 2, 1]))
    expected = SNTGLoss()(H, P)
    assert (
        SNTGLoss()(H, classes) == SNTGLoss()(H, P, classes) == SNTGLoss(graph=graph)(H, rows=torch.arange(4).to(dtype))
    )
    assert SNTGLoss()(H, classes) == expected


def test_features_of_a_kind_nothing_is_computed_in_are_refused():
    with pytest.raises(UsageError, match=r"features must be real numbers .*, not torch.float8_e4m3fn"):
        SNTGLoss()(H.to(torch.float8_e4m3fn), P)
    with pytest.raises(UsageError, match=r"features must be a dense tensor, not one of the layout torch.sparse_coo"):
        SNTGLoss()(H.to_sparse(), P)


@pytest.mark.parametrize("batch", [(H.to("meta"), P), (H, P.to("meta")), (H, P, torch.zeros(4).long().to("meta"))])
def test_tensors_that_hold_nothing_are_refused(batch):
    with pytest.raises(UsageError, match="on the meta device they hold none"):
        SNTGLoss()(*batch)


@pytest.mark.parametrize("n", [5.0, "5", True])
def test_a_batch_of_no_whole_number_of_rows_is_refused(n):
    with pytest.raises(UsageError, match=f"n = {n!r} is not a whole number of rows"):
        sample_pairs(n)


def test_true_is_no_number_of_pairs():
    with pytest.raises(UsageError, match="n_pairs = True is not a whole number"):
        SNTGLoss(pairs="random", n_pairs=True)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (torch.randn(5, 0), r"points must be real numbers \(N, ...\), not torch.float32 \(5, 0\)"),
        (torch.randn(5, 2, dtype=torch.complex64), "points must be real numbers .*, not torch.complex64"),
        (torch.tensor([[1e200], [2e200], [3e200]], dtype=torch.float64), "points hold values that are .* too large"),
        (torch.tensor([[0.0], [NAN], [1.0]]), "points hold values that are NaN"),
    ],
)
def test_points_that_have_no_distances_are_refused(points, message):
    with pytest.raises(UsageError, match=message):
        KNNGraph.build(points, k=1)


@pytest.mark.parametrize("name", ["features", "teacher", "labels", "rows"])
def test_what_is_no_tensor_is_refused(name):
    batch = {"features": H, "teacher": P, "labels": Y, "rows": torch.arange(4)}
    with pytest.raises(UsageError, match=f"{name} must be a tensor, not ndarray"):
        SNTGLoss()(**{**batch, name: batch[name].numpy()})


def test_a_graph_of_rows_says_when_it_has_none():
    with pytest.raises(UsageError, match="rows' numbers"):
        SNTGLoss(graph=FixedGraph(torch.zeros(4, dtype=torch.long)))(H, P)


def test_a_teacher_of_negative_class_numbers_or_of_no_class_is_refused():
    features = torch.randn(4, 3)
    with pytest.raises(UsageError, match="negative values"):
        SNTGLoss()(features, torch.tensor([0, -1, 1, 0]))
    with pytest.raises(UsageError, match="at least one class"):
        SNTGLoss()(features, torch.zeros(4, 0))
