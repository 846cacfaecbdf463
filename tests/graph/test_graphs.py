"""W_ij of every graph against a dense reference, through the one interface graph(nodes, pairs)."""

import numpy as np
import pytest
import references as reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from sntg.errors import UsageError
from sntg.graph import GRAPHS, FixedGraph, HardGraph, KNNGraph, Nodes, Pairs, SoftGraph, hard_target, sample_pairs


def every_ordered_pair(n):
    i, j = np.array(reference.all_pairs(n)).T
    return Pairs(torch.from_numpy(i), torch.from_numpy(j))


def dense(graph, nodes, n):
    """The graph's answers for all i != j, put in a matrix with ones on the diagonal."""
    pairs = every_ordered_pair(n)
    W = np.eye(n)
    W[pairs.i, pairs.j] = graph(nodes, pairs).numpy()
    return W


def teacher(n, K, seed=0):
    """Float64 probabilities of random confidence."""
    return torch.from_numpy(reference.softmax(3 * np.random.default_rng(seed).normal(size=(n, K))))


# ------------------------------------------------------------------------------------------------------------ hard


def test_hard_graph_joins_rows_of_the_same_predicted_class():
    p = teacher(12, 3)
    expected = reference.hard_graph(p.numpy().argmax(1))
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(dense(HardGraph(), Nodes(p), 12), expected)


def test_hard_graph_takes_class_numbers_as_well():
    p = teacher(12, 3)
    np.testing.assert_array_equal(
        dense(HardGraph(), Nodes(p.argmax(1)), 12),
        dense(HardGraph(), Nodes(p), 12),
    )


def test_hard_target_is_the_most_probable_class_or_the_class_itself():
    p = teacher(9, 4)
    assert hard_target(p).tolist() == p.numpy().argmax(1).tolist()
    assert hard_target(torch.tensor([3, 0])).tolist() == [3, 0]


def test_a_known_label_stands_in_for_the_teachers_class():
    classes, labels = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([-1, 0, -1, 2, -1])
    expected = reference.hard_graph(reference.merged_classes(classes.numpy(), labels.numpy()))
    assert expected[0, 1] == 1  # the label 0 overrules the teacher's 1
    assert expected[0, 3] == 0
    np.testing.assert_array_equal(dense(HardGraph(), Nodes(classes, labels), 5), expected)


# ------------------------------------------------------------------------------------------------------------ soft


@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.5])
def test_soft_graph_is_exp_of_minus_the_symmetric_divergence(temperature):
    p = teacher(10, 4)
    expected = reference.soft_graph(p.numpy(), temperature)
    np.testing.assert_allclose(dense(SoftGraph(temperature), Nodes(p), 10), expected, rtol=1e-12, atol=1e-300)


def test_soft_graph_in_float32_is_the_same_to_float32():
    p = teacher(10, 4)
    W = dense(SoftGraph(), Nodes(p.float()), 10)
    np.testing.assert_allclose(W, reference.soft_graph(p.numpy(), 1.0), rtol=3e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_soft_graph_computes_16_bit_teachers_in_float32(dtype):
    p = teacher(10, 4).to(dtype)
    pairs = every_ordered_pair(10)
    W = SoftGraph()(Nodes(p), pairs)
    assert W.dtype == torch.float32
    assert torch.equal(W, SoftGraph()(Nodes(p.float()), pairs))


def distributions(K):
    """Distributions over K classes, zeros included."""
    weights = st.lists(st.floats(0, 1), min_size=K, max_size=K).filter(lambda w: sum(w) > 1e-3)
    return weights.map(lambda w: [v / sum(w) for v in w])


@given(st.lists(distributions(3), min_size=2, max_size=6), st.floats(0.05, 20))
def test_soft_graph_lies_in_0_to_1_and_is_symmetric(rows, temperature):
    p, graph = torch.tensor(rows, dtype=torch.float64), SoftGraph(temperature)
    pairs = every_ordered_pair(len(rows))
    W = graph(Nodes(p), pairs)
    assert ((W >= 0) & (W <= 1)).all()
    torch.testing.assert_close(W, graph(Nodes(p), Pairs(pairs.j, pairs.i)), rtol=1e-12, atol=0)


@given(distributions(4))
def test_soft_graph_is_exactly_1_for_equal_rows(row):
    p = torch.tensor([row, row])
    assert SoftGraph()(Nodes(p), every_ordered_pair(2)).tolist() == [1.0, 1.0]


def test_zeros_in_probabilities_are_fine():
    """Shared zeros cost nothing; a class that only one end believes in cuts the edge."""
    p = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    W = dense(SoftGraph(), Nodes(p), 4)
    np.testing.assert_allclose(W, reference.soft_graph(p.numpy(), 1.0), rtol=1e-12)
    assert 0 < W[0, 1] < 1
    assert max(W[0, 2], W[0, 3]) < 1e-15


def test_soft_graph_takes_a_known_label_as_certain():
    p, labels = teacher(6, 3), torch.tensor([-1, 2, -1, 2, 0, -1])
    expected = reference.soft_graph(reference.merged_probabilities(p.numpy(), labels.numpy()), 1.0)
    W = dense(SoftGraph(), Nodes(p, labels), 6)
    np.testing.assert_allclose(W, expected, rtol=1e-12, atol=1e-300)
    assert W[1, 3] == 1
    assert W[1, 4] < 1e-15


def test_a_labelled_point_stays_the_neighbour_of_those_the_teacher_is_nearly_sure_of():
    p = torch.tensor([[0.3, 0.7], [0.999, 0.001], [0.001, 0.999]], dtype=torch.float64)
    W = dense(SoftGraph(), Nodes(p, torch.tensor([0, -1, -1])), 3)
    assert W[0, 1] > 0.9
    assert W[0, 2] < 1e-15


def test_soft_graph_takes_labels_of_any_whole_number_type():
    """The hard graph does, and the loss's check lets them through."""
    p, labels = teacher(6, 3), torch.tensor([-1, 2, -1, 2, 0, -1])
    pairs = every_ordered_pair(6)
    assert torch.equal(SoftGraph()(Nodes(p, labels.int()), pairs), SoftGraph()(Nodes(p, labels), pairs))


def test_rounding_does_not_take_the_soft_graph_above_1():
    """Rows that differ in their last digits: the divergence of some comes out a little below zero."""
    p = teacher(500, 10).float()
    nearly = p * (1 + 1e-6 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    W = SoftGraph(temperature=0.1)(Nodes(torch.cat([p, nearly])), sample_pairs(1000, "half"))
    assert W.max() <= 1
    assert W.min() > 0.999


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_soft_graph_passes_no_gradient_to_the_teacher(dtype):
    p = teacher(4, 3).to(dtype).requires_grad_()
    assert not SoftGraph()(Nodes(p), every_ordered_pair(4)).requires_grad


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf"), 10**400, "1"])
def test_a_temperature_that_means_nothing_is_refused(temperature):
    """An infinite one would give 0/0 = NaN where two rows share no class."""
    with pytest.raises(UsageError, match=f"temperature .* not {temperature!r}"):
        SoftGraph(temperature)


def test_soft_graph_refuses_class_numbers():
    with pytest.raises(UsageError, match="probabilities"):
        SoftGraph()(Nodes(torch.tensor([0, 1])), every_ordered_pair(2))


# ------------------------------------------------------------------------------------------------------------- kNN


@pytest.mark.parametrize("shape", [(60, 2), (60, 1, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_knn_graph_is_the_brute_force_one(shape, dtype):
    points = torch.from_numpy(np.random.default_rng(1).normal(size=shape)).to(dtype)
    W = dense(KNNGraph.build(points), Nodes(rows=torch.arange(60)), 60)
    np.fill_diagonal(W, 0)
    np.testing.assert_array_equal(W, reference.knn_graph(points.numpy(), k=10))


@given(st.integers(1, 7), st.integers(0, 99))
def test_knn_graph_is_symmetric_for_any_k(k, seed):
    points = torch.from_numpy(np.random.default_rng(seed).normal(size=(8, 3)))
    W = dense(KNNGraph.build(points, k), Nodes(rows=torch.arange(8)), 8)
    np.testing.assert_array_equal(W, W.T)
    np.testing.assert_array_equal(W - np.eye(8), reference.knn_graph(points.numpy(), k))


def test_either_end_listing_the_other_makes_a_neighbour():
    """The outlier 2 lists 1 as its nearest, 1 lists 0: still 1 and 2 are neighbours, whichever comes first."""
    graph = KNNGraph.build(torch.tensor([[0.0], [1.0], [9.0]]), k=1)
    assert graph.neighbours.tolist() == [[1], [0], [1]]
    W = dense(graph, Nodes(rows=torch.arange(3)), 3)
    assert W.tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]


def test_knn_graph_looks_rows_up_by_their_number_in_the_training_set():
    points = torch.from_numpy(np.random.default_rng(2).normal(size=(40, 2)))
    rows = torch.tensor([31, 4, 17, 9, 25, 38])
    W = dense(KNNGraph.build(points), Nodes(rows=rows), 6)
    expected = reference.knn_graph(points.numpy(), 10)[np.ix_(rows, rows)]
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(W - np.eye(6), expected)


def test_a_point_is_not_its_own_neighbour_even_among_duplicates():
    graph = KNNGraph.build(torch.zeros(5, 2), k=4)
    assert [sorted(row) for row in graph.neighbours.tolist()] == [[j for j in range(5) if j != i] for i in range(5)]


@pytest.mark.parametrize(
    ("k", "message"),
    [
        (0, "k = 0"),
        (-2, "k = -2"),
        (5, "k = 5 nearest neighbours: of 5 points each has 1 to 4"),
        (1.5, "k = 1.5 .* is not a whole number"),
    ],
)
def test_a_number_of_neighbours_that_cannot_be_is_refused(k, message):
    with pytest.raises(UsageError, match=message):
        KNNGraph.build(torch.randn(5, 2), k)


def test_50_000_points_are_kept_as_lists_and_never_as_a_matrix():
    resource = pytest.importorskip("resource", reason="no peak memory on this platform")
    N = 50_000
    points = torch.from_numpy(np.random.default_rng(3).normal(size=(N, 2)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = KNNGraph.build(points)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < N * N / 8  # a dense matrix of single bits would take more

    assert graph.neighbours.shape == (N, 10)
    for row in (0, 12_345, N - 1):
        squared = ((points - points[row]) ** 2).sum(1)
        squared[row] = torch.inf
        assert sorted(graph.neighbours[row].tolist()) == sorted(squared.argsort()[:10].tolist())


# ----------------------------------------------------------------------------------------------------------- fixed


def test_fixed_graph_joins_rows_predicted_alike_by_the_earlier_model():
    classes = torch.from_numpy(np.random.default_rng(4).integers(3, size=30))
    rows = torch.tensor([22, 3, 17, 9, 0, 29])
    expected = reference.hard_graph(classes[rows].numpy())
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(dense(FixedGraph(classes), Nodes(rows=rows), 6), expected)


def test_fixed_graph_takes_true_labels_where_known():
    classes, rows, labels = torch.tensor([0, 1, 1, 2]), torch.tensor([3, 2, 1]), torch.tensor([-1, 2, -1])
    expected = reference.hard_graph([2, 2, 1])
    np.testing.assert_array_equal(dense(FixedGraph(classes), Nodes(labels=labels, rows=rows), 3), expected)


# --------------------------------------------------------------------------------------------------- one interface

RUNS, N, K, POINTS = 3, 20, 2, 30


def nodes_of_three_runs():
    rng = np.random.default_rng(5)
    return Nodes(
        teacher=teacher(RUNS * N, K, seed=6).reshape(RUNS, N, K),
        labels=torch.from_numpy(np.where(rng.random((RUNS, N)) < 0.2, rng.integers(K, size=(RUNS, N)), -1)),
        rows=torch.from_numpy(np.stack([rng.permutation(POINTS)[:N] for _ in range(RUNS)])),
    )


def three_runs(name):
    """The graph of three runs, and those of each run alone."""
    if name == "hard":
        return HardGraph(), [HardGraph()] * RUNS
    if name == "soft":
        return SoftGraph(2.0), [SoftGraph(2.0)] * RUNS
    rng = np.random.default_rng(7)
    if name == "fixed":
        classes = torch.from_numpy(rng.integers(K, size=(RUNS, POINTS)))
        return FixedGraph(classes), [FixedGraph(c) for c in classes]
    each = [KNNGraph.build(torch.from_numpy(rng.normal(size=(POINTS, 2))), 4) for _ in range(RUNS)]
    return KNNGraph(torch.stack([g.neighbours for g in each])), each


@pytest.mark.parametrize("mode", ["half", "random", "all"])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_a_leading_run_axis_gives_each_run_its_own_graph(name, mode):
    together, alone = three_runs(name)
    nodes = nodes_of_three_runs()
    pairs = sample_pairs(N, mode, generator=torch.Generator().manual_seed(0))
    W = together(nodes, pairs)
    for run in range(RUNS):
        one = Nodes(nodes.teacher[run], nodes.labels[run], nodes.rows[run])
        assert torch.equal(W[run], alone[run](one, pairs))
    assert not torch.equal(W[0], W[1])


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_swapping_the_ends_of_a_pair_changes_no_edge(name):
    graph, _ = three_runs(name)
    nodes, pairs = nodes_of_three_runs(), every_ordered_pair(N)
    W = graph(nodes, pairs)
    assert W.shape == (RUNS, N * (N - 1))
    torch.testing.assert_close(W, graph(nodes, Pairs(pairs.j, pairs.i)), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("name", "wants"), [("hard", True), ("soft", True), ("knn", False), ("fixed", False)])
def test_a_graph_says_whether_it_needs_a_teacher_and_says_so_when_it_has_none(name, wants):
    graph, _ = three_runs(name)
    assert graph.needs_teacher is wants
    with pytest.raises(UsageError, match="teacher's predictions" if wants else "rows' numbers"):
        graph(Nodes(), every_ordered_pair(2))
