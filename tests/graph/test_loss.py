"""The SNTG loss in value and gradient against the paper's equations, and its laws."""

import numpy as np
import pytest
import references as reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from sntg.graph import FixedGraph, HardGraph, KNNGraph, Nodes, Pairs, SNTGLoss, SoftGraph, sample_pairs, sntg_loss

K = 3
NAN, INF = float("nan"), float("inf")


def features(n, p=5, seed=0):
    """Float64 features whose distances lie on both sides of the margins used here."""
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=0.8, size=(n, p)))


def teacher(n, seed=1):
    return torch.from_numpy(reference.softmax(2 * np.random.default_rng(seed).normal(size=(n, K))))


def some_labels(n, seed=2):
    """About half the labels, -1 for the rest."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.where(rng.random(n) < 0.5, rng.integers(K, size=n), -1))


def reference_graph(graph, p, labels):
    """The dense W of the reference that `graph` should agree with."""
    labels = np.full(len(p), -1) if labels is None else labels.numpy()
    if graph == "hard":
        return reference.hard_graph(reference.merged_classes(p.numpy().argmax(1), labels))
    return reference.soft_graph(reference.merged_probabilities(p.numpy(), labels), 1.0)


GRAPHS = {"hard": HardGraph, "soft": SoftGraph}


def value_and_gradient(function, h):
    h = h.clone().requires_grad_()
    loss = function(h)
    loss.sum().backward()
    return loss.detach(), h.grad


def assert_agrees(function, h, expected, rtol=1e-12, atol=1e-14):
    value, gradient = value_and_gradient(function, h)
    np.testing.assert_allclose(value.numpy(), expected[0], rtol=rtol, atol=atol)
    np.testing.assert_allclose(gradient.numpy(), expected[1], rtol=rtol, atol=atol)
    assert np.abs(expected[1]).max() > 1e-3  # a comparison of zeros would prove nothing


# ------------------------------------------------------------------------------------------------- value, gradient


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("graph", sorted(GRAPHS))
@pytest.mark.parametrize("mode", ["half", "random", "all"])
@pytest.mark.parametrize("n", [2, 8, 9])
@pytest.mark.parametrize("margin", [0.5, 1.0, 3.0])
def test_the_loss_and_its_gradient_are_the_equations(margin, n, mode, graph, labelled):
    h, p, labels = features(n, seed=n), teacher(n, seed=n), some_labels(n) if labelled else None
    loss = SNTGLoss(margin, mode, graph=GRAPHS[graph]())
    pairs = {"half": reference.half_pairs(n), "all": reference.all_pairs(n)}.get(mode)
    if pairs is None:  # the same seed draws the same pairs twice
        torch.manual_seed(5)
        pairs = list(zip(*(end.tolist() for end in sample_pairs(n, "random")), strict=True))
    value = reference.sntg(h.numpy(), reference_graph(graph, p, labels), pairs, margin)

    def ours(h):
        torch.manual_seed(5)
        return loss(h, p, labels)

    got = value_and_gradient(ours, h)
    np.testing.assert_allclose(got[0].numpy(), value[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(got[1].numpy(), value[1], rtol=1e-12, atol=1e-14)


def test_the_reference_gradient_is_the_slope_of_the_reference_value():
    """The references are written by hand: central differences vouch for them."""
    h, W = features(6).numpy(), reference.soft_graph(teacher(6).numpy(), 1.0)
    gradient = reference.sntg(h, W, reference.all_pairs(6))[1]
    for index in np.ndindex(h.shape):
        step = np.zeros_like(h)
        step[index] = 1e-6
        up, down = (reference.sntg(h + s, W, reference.all_pairs(6))[0] for s in (step, -step))
        assert (up - down) / 2e-6 == pytest.approx(gradient[index], abs=1e-8)


def test_neighbours_cost_their_squared_distance_and_others_their_missing_margin():
    h = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.3, 0.4]])

    def cost(j, W):
        return float(sntg_loss(h, torch.tensor([W]), Pairs(torch.tensor([0]), torch.tensor([j]))))

    # d is the root of the mean square over the two features: 5/sqrt(2) and 0.5/sqrt(2)
    assert cost(1, W=1.0) == pytest.approx(12.5, rel=1e-6)
    assert cost(2, W=0.0) == pytest.approx((1 - 0.5 / 2**0.5) ** 2, rel=1e-6)
    assert cost(1, W=0.0) == 0


@pytest.mark.parametrize("mode", ["half", "random", "all"])
@pytest.mark.parametrize("graph", sorted(GRAPHS))
def test_float32_is_the_equation_to_float32(mode, graph):
    h, p = features(100, 128), teacher(100)
    torch.manual_seed(5)
    pairs = sample_pairs(100, mode)
    rows = torch.arange(100)
    ordered = list(zip(rows[pairs.i].tolist(), rows[pairs.j].tolist(), strict=True))
    expected = reference.sntg(h.float().numpy(), reference_graph(graph, p.float(), None), ordered)

    def ours(h):
        torch.manual_seed(5)
        return SNTGLoss(pairs=mode, graph=GRAPHS[graph]())(h, p.float())

    value, gradient = value_and_gradient(ours, h.float())
    np.testing.assert_allclose(value.numpy(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), expected[1], rtol=1e-4, atol=1e-5 * np.abs(expected[1]).max())


def test_an_odd_batchs_last_row_is_left_out_of_half():
    h = features(7)
    _, gradient = value_and_gradient(lambda h: SNTGLoss()(h, teacher(7)), h)
    assert (gradient[6] == 0).all()
    assert (gradient[:6] != 0).any(1).all()


def test_labels_overrule_the_teacher_where_known():
    h, classes = features(6), torch.tensor([0, 1, 2, 2, 1, 0])
    labels = torch.tensor([-1, 0, -1, 0, -1, 2])
    merged = reference.merged_classes(classes.numpy(), labels.numpy())
    W = reference.hard_graph(merged)
    assert not np.array_equal(W, reference.hard_graph(classes.numpy()))
    loss = SNTGLoss(pairs="all")
    assert_agrees(lambda h: loss(h, classes, labels), h, reference.sntg(h.numpy(), W, reference.all_pairs(6)))


def test_fixed_and_knn_graphs_reach_the_loss_through_rows():
    h, rows = features(6), torch.tensor([4, 9, 0, 7, 2, 5])
    points = features(10, 2, seed=3)
    classes = torch.from_numpy(np.random.default_rng(0).integers(K, size=10))
    fixed, knn = (
        SNTGLoss(pairs="all", graph=FixedGraph(classes)),
        SNTGLoss(pairs="all", graph=KNNGraph.build(points, 3)),
    )
    W_fixed = reference.hard_graph(classes[rows].numpy())
    W_knn = reference.knn_graph(points.numpy(), 3)[np.ix_(rows, rows)]
    pairs = reference.all_pairs(6)
    assert_agrees(lambda h: fixed(h, rows=rows), h, reference.sntg(h.numpy(), W_fixed, pairs))
    assert_agrees(lambda h: knn(h, rows=rows), h, reference.sntg(h.numpy(), W_knn, pairs))


@pytest.mark.parametrize("mode", ["half", "all"])
@pytest.mark.parametrize("graph", ["hard", "soft", "fixed", "knn"])
def test_a_compiled_step_of_ones_own_has_the_same_loss_and_gradient(mode, graph):
    """As one graph: a look at the inputs' values, which may wait for the device, would break it in two."""
    numbered = {"fixed": lambda: FixedGraph(torch.arange(10) % K), "knn": lambda: KNNGraph.build(features(10, 2), 3)}
    loss = SNTGLoss(pairs=mode, graph=(numbered | GRAPHS)[graph]())
    rows = torch.tensor([4, 9, 0, 7, 2, 5]) if graph in numbered else None
    given = (None, None, rows) if graph in numbered else (teacher(6), some_labels(6))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    expected = value_and_gradient(lambda h: loss(h, *given), features(6))
    with torch._dynamo.config.patch(recompile_limit=64):  # the code is one for all of these
        assert_agrees(lambda h: compiled(h, *given), features(6), [part.numpy() for part in expected])
        with pytest.raises(Exception, match=r"labels must be \(6,\) whole numbers"):  # in the compiler's words as well
            compiled(features(6), given[0], torch.zeros(6), rows)


def test_a_pair_with_an_unknown_row_counts_as_zero_but_is_counted():
    h, W = features(6), reference.hard_graph([0, 1, 0, 1, 1, 0])
    known = torch.tensor([True, True, False, True, False, True])
    pairs = reference.half_pairs(6)  # (0, 3), (1, 4), (2, 5): only the first is known at both ends
    value, gradient = reference.sntg(h.numpy(), W, pairs[:1])
    chosen = torch.tensor([W[i, j] for i, j in pairs])
    half = sample_pairs(6, "half")
    assert_agrees(lambda h: sntg_loss(h, chosen, half, known=known), h, (value / 3, gradient / 3))


@pytest.mark.parametrize("mode", ["half", "all"])
@pytest.mark.parametrize("graph", sorted(GRAPHS))
def test_leading_axes_are_independent_problems(mode, graph):
    R, n = 3, 7
    h, p, labels = features(R * n).view(R, n, -1), teacher(R * n).view(R, n, K), some_labels(R * n).view(R, n)
    loss = SNTGLoss(pairs=mode, graph=GRAPHS[graph]())
    value, gradient = value_and_gradient(lambda h: loss(h, p, labels), h)
    assert value.shape == (R,)
    for r in range(R):
        one = value_and_gradient(lambda h, r=r: loss(h, p[r], labels[r]), h[r])
        torch.testing.assert_close((value[r], gradient[r]), one, rtol=1e-12, atol=1e-15)


def test_the_teacher_gets_no_gradient_and_the_student_does():
    h, p = features(6).requires_grad_(), teacher(6).requires_grad_()
    for graph in GRAPHS.values():
        SNTGLoss(graph=graph())(h, p).backward()
    assert p.grad is None
    assert h.grad.abs().sum() > 0
    assert not SNTGLoss(graph=SoftGraph())(h.detach(), p).requires_grad


def test_the_teacher_gets_no_gradient_even_from_a_graph_of_ones_own():
    class Agreement:
        needs_teacher = True

        def __call__(self, nodes, pairs):
            return (nodes.teacher[pairs.i] * nodes.teacher[pairs.j]).sum(-1)

    h, p = features(6).requires_grad_(), teacher(6).requires_grad_()
    SNTGLoss(graph=Agreement())(h, p).backward()
    assert p.grad is None
    assert h.grad.abs().sum() > 0


# ------------------------------------------------------------------------------------------------------------ laws


@st.composite
def batches(draw):
    """A small float64 batch, equal rows and tiny distances included, with hard or soft predictions."""
    n, p = draw(st.integers(2, 7)), draw(st.integers(1, 4))
    value = st.floats(-2, 2) | st.sampled_from([0.0, 1.0, 1e-160])
    h = torch.tensor(draw(st.lists(st.lists(value, min_size=p, max_size=p), min_size=n, max_size=n))).double()
    return h, teacher(n, draw(st.integers(0, 50))), GRAPHS[draw(st.sampled_from(sorted(GRAPHS)))]()


@given(batches(), st.randoms(use_true_random=False))
def test_all_does_not_depend_on_the_order_of_the_batch(batch, random):
    h, p, graph = batch
    order = random.sample(range(len(h)), len(h))
    loss = SNTGLoss(pairs="all", graph=graph)
    value, gradient = value_and_gradient(lambda h: loss(h, p), h)
    shuffled, shuffled_gradient = value_and_gradient(lambda h: loss(h, p[order]), h[order])
    torch.testing.assert_close(shuffled, value, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(shuffled_gradient, gradient[order], rtol=1e-10, atol=1e-12)


@given(batches())
def test_the_order_of_a_pairs_ends_does_not_matter(batch):
    h, p, graph = batch
    pairs = sample_pairs(len(h), "all")
    loss = SNTGLoss(pairs="all", graph=graph)(h, p)
    swapped = Pairs(pairs.j, pairs.i)
    torch.testing.assert_close(sntg_loss(h, graph(Nodes(p), swapped), swapped), loss, rtol=1e-12, atol=1e-15)


@given(batches())
def test_random_with_every_pair_is_all(batch):
    h, p, graph = batch
    n = len(h)
    everything = SNTGLoss(pairs="random", n_pairs=n * (n - 1), graph=graph)
    random = value_and_gradient(lambda h: everything(h, p), h)
    torch.testing.assert_close(
        random, value_and_gradient(lambda h: SNTGLoss(pairs="all", graph=graph)(h, p), h), rtol=1e-10, atol=1e-12
    )


@given(batches())
def test_random_is_unbiased_by_enumeration(batch):
    """Every ordered pair is equally likely (test_pairs), so the mean of the one-pair losses is the expectation."""
    h, p, graph = batch
    each = []
    for i, j in reference.all_pairs(len(h)):
        pair = Pairs(torch.tensor([i]), torch.tensor([j]))
        each.append(sntg_loss(h, graph(Nodes(p), pair), pair))
    expected = SNTGLoss(pairs="all", graph=graph)(h, p)
    torch.testing.assert_close(torch.stack(each).mean(), expected, rtol=1e-12, atol=1e-14)


def test_random_is_unbiased_over_many_draws():
    """The mean of many draws lies within five standard errors of `all`, far closer than a left-out row would."""
    h, p, draws = features(6), teacher(6), 3000
    expected = SNTGLoss(pairs="all", margin=2.0)(h, p)
    without_last_row = SNTGLoss(pairs="all", margin=2.0)(h[:5], p[:5])
    torch.manual_seed(0)
    loss = SNTGLoss(pairs="random", margin=2.0)
    values = torch.stack([loss(h, p) for _ in range(draws)])
    error = 5 * values.std() / draws**0.5
    assert (values.mean() - expected).abs() < error
    assert (without_last_row - expected).abs() > 2 * error


# ------------------------------------------------------------------------------------------------ hard arithmetic


@pytest.mark.parametrize("p", [1, 128, 4096])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equal_features_of_different_classes_have_a_finite_zero_gradient(p, dtype):
    """At distance 0 the root has no slope; the loss is the whole margin and the gradient 0, not NaN."""
    value, gradient = value_and_gradient(
        lambda h: SNTGLoss(pairs="all")(h, torch.arange(4)), torch.full((4, p), 0.7, dtype=dtype)
    )
    assert float(value) == 1.0
    assert (gradient == 0).all()


@pytest.mark.parametrize("distance", [1e-3, 1e-10, 1e-18, 1e-19, 1e-22, 1e-25, 1e-38])
def test_tiny_distances_have_a_finite_gradient(distance):
    """Down to where the square leaves float32's range; on the way it loses digits, so the bound has 10 % of slack."""
    h = torch.zeros(2, 4096)
    h[1] = distance
    _, gradient = value_and_gradient(lambda h: SNTGLoss()(h, torch.tensor([0, 1])), h)
    assert torch.isfinite(gradient).all()
    assert gradient.norm() <= 2 / 4096**0.5 * 2**0.5 * 1.1  # 2 (m - d) |grad d|, |grad d| = sqrt(2/p)


def test_one_equal_pair_does_not_spoil_the_others():
    h, W = features(6, 4), reference.hard_graph(range(6))
    h[3] = h[0]
    loss = SNTGLoss(margin=2.0)
    assert_agrees(lambda h: loss(h, torch.arange(6)), h, reference.sntg(h.numpy(), W, reference.half_pairs(6), 2.0))


def test_4096_features_are_exact_in_float32():
    h, p = features(10, 4096).float(), teacher(10)
    value, gradient = value_and_gradient(lambda h: SNTGLoss(margin=2.0)(h, p), h)
    expected = reference.sntg(h.numpy(), reference_graph("hard", p, None), reference.half_pairs(10), 2.0)
    np.testing.assert_allclose(value.numpy(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), expected[1], rtol=1e-4, atol=1e-5 * np.abs(expected[1]).max())


@pytest.mark.parametrize("graph", sorted(GRAPHS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_features_are_computed_in_float32(dtype, graph):
    h, p = features(9, 128).to(dtype), teacher(9).float()
    loss = SNTGLoss(pairs="all", margin=2.0, graph=GRAPHS[graph]())
    value, gradient = value_and_gradient(lambda h: loss(h, p), h)
    value32, gradient32 = value_and_gradient(lambda h: loss(h, p), h.float())
    assert value.dtype == torch.float32
    assert torch.equal(value, value32)
    assert gradient.dtype == dtype
    assert torch.equal(gradient, gradient32.to(dtype))


def test_float16_does_not_overflow():
    """300^2 is beyond float16's 65504."""
    h = torch.tensor([[0.0] * 4, [300.0] * 4], dtype=torch.float16)
    assert float(SNTGLoss()(h, torch.tensor([1, 1]))) == 90_000.0
