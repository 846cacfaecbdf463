"""Temporal ensembling: bias-corrected averages of past predictions, row by row, as constant targets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from method_fixtures import (
    CLASSES,
    RUNS,
    N,
    Views,
    assert_term,
    cross_entropy,
    gradients,
    make_batch,
    make_model,
    make_setup,
    mse,
    pairs_of,
    references,
    sntg,
    softmax,
    take_step,
)
from torch import Tensor

from sntg.graph import HardGraph
from sntg.methods import Batch, GraphTerm, Objective
from sntg.methods.temporal_ensembling import STORE, TemporalEnsembling
from sntg.models import Classifier

EVERYTHING = torch.arange(10).expand(RUNS, 10)


class Echo(Classifier):
    """A network whose logits are its inputs: what it predicts is what it is shown."""

    event_dims = 1
    runs = (RUNS,)

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def h(self, x: Tensor) -> Tensor:
        return x

    def g(self, features: Tensor) -> Tensor:
        return features


def show(method: TemporalEnsembling, rows: np.ndarray, logits: np.ndarray) -> None:
    rows_ = torch.from_numpy(rows)
    method.passes(Batch(torch.from_numpy(logits), torch.full(rows.shape, -1), rows_))


def test_of_a_row_drawn_twice_the_draw_from_all_points_is_noted():
    """Two draws that wrote to one place at once would leave what came last, another on another day."""
    method = TemporalEnsembling(make_setup(Echo(), labelled_batch=2))
    logits = torch.randn(RUNS, 5, CLASSES)
    rows = torch.tensor([3, 7, 1, 3, 5]).expand(RUNS, 5)
    labels = torch.tensor([0, 1, -1, -1, -1]).expand(RUNS, 5)
    method.passes(Batch(logits, labels, rows, unlabelled=torch.arange(5) >= 2))
    assert method.seen.nonzero()[:, 1].tolist() == [1, 3, 5] * RUNS  # 7 has not come with the others yet
    torch.testing.assert_close(method.z[:, [1, 3, 5]], logits[:, 2:].softmax(-1))


def test_targets_over_epochs_match_a_row_by_row_reference():
    """Seven epochs of three batches of three: one of the ten rows is left out of every epoch, another in each run."""
    rng, alpha = np.random.default_rng(0), 0.6
    method = TemporalEnsembling(make_setup(Echo(), points=10, alpha=alpha))
    Z, visits = np.zeros((RUNS, 10, CLASSES)), np.zeros((RUNS, 10), int)
    for _ in range(7):
        orders = np.stack([rng.permutation(10) for _ in range(RUNS)])
        for step in range(3):
            rows, logits = orders[:, 3 * step : 3 * step + 3], rng.normal(size=(RUNS, 3, CLASSES))
            show(method, rows, logits)
            for run in range(RUNS):
                for position, row in enumerate(rows[run]):
                    Z[run, row] = alpha * Z[run, row] + (1 - alpha) * softmax(logits[run, position])
                    visits[run, row] += 1
        method.after_epoch()
        target, known = method.targets(EVERYTHING)
        np.testing.assert_array_equal(known, visits > 0)
        expected = Z / np.where(visits > 0, 1 - alpha**visits, 1.0)[..., None]
        np.testing.assert_allclose(target, expected, rtol=1e-12)
    assert len(np.unique(visits)) > 1  # rows did differ in how often they were seen


def test_targets_of_visited_rows_are_distributions():
    rng = np.random.default_rng(1)
    method = TemporalEnsembling(make_setup(Echo(), points=10))
    for epoch in range(4):
        show(method, np.stack([rng.permutation(10)[: 4 + epoch]] * RUNS), rng.normal(size=(RUNS, 4 + epoch, CLASSES)))
        method.after_epoch()
    target, known = method.targets(EVERYTHING)
    np.testing.assert_allclose(target.sum(-1)[known], 1.0, rtol=1e-12)


def test_targets_move_only_when_the_epoch_ends():
    rng = np.random.default_rng(2)
    method = TemporalEnsembling(make_setup(Echo(), points=10))
    rows = np.stack([np.arange(10)] * RUNS)
    show(method, rows, rng.normal(size=(RUNS, 10, CLASSES)))
    assert not method.targets(EVERYTHING)[1].any()
    method.after_epoch()
    before = method.targets(EVERYTHING)[0].clone()
    show(method, rows, rng.normal(size=(RUNS, 10, CLASSES)))
    assert torch.equal(method.targets(EVERYTHING)[0], before)
    method.after_epoch()
    assert not torch.equal(method.targets(EVERYTHING)[0], before)


def test_an_epoch_without_a_visit_leaves_a_rows_target_alone():
    rng = np.random.default_rng(3)
    method = TemporalEnsembling(make_setup(Echo(), points=10))
    show(method, np.stack([np.arange(10)] * RUNS), rng.normal(size=(RUNS, 10, CLASSES)))
    method.after_epoch()
    before = method.targets(EVERYTHING)[0].clone()
    show(method, np.stack([np.arange(5)] * RUNS), rng.normal(size=(RUNS, 5, CLASSES)))
    method.after_epoch()
    after = method.targets(EVERYTHING)[0]
    assert torch.equal(after[:, 5:], before[:, 5:])
    assert not torch.isclose(after[:, :5], before[:, :5]).any(-1).all(-1).any()


def test_an_epoch_may_end_before_any_batch():
    method = TemporalEnsembling(make_setup(Echo(), points=10))
    method.after_epoch()
    assert not method.targets(EVERYTHING)[1].any()


def test_consistency_gives_every_weight_the_gradient_towards_a_constant_target():
    step = take_step("tempens")
    values, expected = [], []
    for run, network in enumerate(step.networks):
        value, d_logits, _ = mse(step.student[run].logits, step.teacher[run])
        values.append(value)
        expected.append(network.backward(step.student[run], d_logits))
    assert_term(step.terms["consistency"], step.model, values, expected)


def test_cross_entropy_gives_every_weight_the_reference_gradient():
    step = take_step("tempens")
    values, expected = [], []
    for run, network in enumerate(step.networks):
        value, d_logits = cross_entropy(step.student[run].logits, step.batch.labels[run].numpy())
        values.append(value)
        expected.append(network.backward(step.student[run], d_logits))
    assert_term(step.terms["supervised"], step.model, values, expected)


def test_the_network_is_evaluated_once_a_step():
    assert len(take_step("tempens").views) == 1


def test_neither_target_nor_store_carries_a_gradient():
    step = take_step("tempens")
    method = step.objective.base
    assert not method.passes(step.batch).target.requires_grad
    assert not method.Z.requires_grad
    assert not method.z.requires_grad


def test_the_first_epoch_has_no_consistency():
    model = make_model(0)
    term = TemporalEnsembling(make_setup(model)).passes(make_batch(0)).terms["consistency"]
    assert term.tolist() == [0.0] * RUNS
    assert all(np.all(g == 0) for g in gradients(term, model).values())


# Batches of seeds 0 and 1 draw 12 of 16 rows each, so the second holds rows the first did not visit.
def half_visited(graph_term: GraphTerm, unlabelled: np.ndarray | None = None):
    """A step on a batch of which some rows, labelled and not, have never been visited."""
    model, views = make_model(0), Views(0)
    method = TemporalEnsembling(make_setup(model, views))
    mask = None if unlabelled is None else torch.from_numpy(unlabelled)
    first, second = make_batch(0), replace(make_batch(1), unlabelled=mask)
    method.passes(first)
    method.after_epoch()
    visited = np.stack([np.isin(s, f) for s, f in zip(second.rows.numpy(), first.rows.numpy(), strict=True)])
    labelled = second.labels.numpy() >= 0
    assert (~visited & labelled).any()
    assert (~visited & ~labelled).any()
    terms, seen = Objective(method, graph_term=graph_term)(second)
    networks, teacher = references(model), np.zeros((RUNS, second.rows.shape[1], CLASSES))
    for run, network in enumerate(networks):
        earlier = dict(zip(first.rows[run].tolist(), network.forward(views.given[0][run]).p, strict=True))
        for position, row in enumerate(second.rows[run].tolist()):
            teacher[run, position] = earlier.get(row, 0.0)
    students = [network.forward(views.given[1][run]) for run, network in enumerate(networks)]
    return model, terms, seen, networks, students, teacher, visited, second.labels.numpy()


def test_rows_never_visited_are_left_out_of_the_consistency():
    model, terms, _, networks, students, teacher, visited, _ = half_visited(GraphTerm(HardGraph()))
    values, expected = [], []
    for run in range(RUNS):
        value, d_logits, _ = mse(students[run].logits, teacher[run], visited[run])
        values.append(value)
        expected.append(networks[run].backward(students[run], d_logits))
    assert_term(terms["consistency"], model, values, expected)


def test_a_row_needs_a_target_and_a_place_in_the_consistency_to_count_there():
    """Never visited and kept out are different rows; either is enough to count as zero."""
    unlabelled = np.arange(N) % 4 > 0
    how = GraphTerm(HardGraph(), pairs="all", margin=2.0)
    model, terms, seen, networks, students, teacher, visited, _ = half_visited(how, unlabelled)
    values, expected = [], []
    for run in range(RUNS):
        both = visited[run] & unlabelled
        assert both.sum() < min(visited[run].sum(), unlabelled.sum())
        value, d_logits, _ = mse(students[run].logits, teacher[run], both)
        values.append(value)
        expected.append(networks[run].backward(students[run], d_logits))
    assert_term(terms["consistency"], model, values, expected)
    # The graph knows of visits alone.
    _, unmasked, seen_without, *_ = half_visited(how)
    assert torch.equal(terms["sntg"], unmasked["sntg"])
    assert torch.equal(seen.W, seen_without.W)


@pytest.mark.parametrize("merge_labels", [True, False])
def test_rows_never_visited_are_in_the_graph_only_by_a_true_label(merge_labels):
    how = GraphTerm(HardGraph(), pairs="all", margin=2.0, merge_labels=merge_labels)
    model, terms, _, networks, students, teacher, visited, labels = half_visited(how)
    values, expected = [], []
    for run in range(RUNS):
        classes, known = teacher[run].argmax(1), visited[run]
        if merge_labels:
            classes, known = np.where(labels[run] >= 0, labels[run], classes), known | (labels[run] >= 0)
        value, d_features = sntg(students[run].features, classes, pairs_of("all", len(known)), 2.0, known)
        values.append(value)
        expected.append(networks[run].backward(students[run], d_features=d_features))
    assert_term(terms["sntg"], model, values, expected)


def test_what_the_graph_saw_of_rows_never_visited_is_marked():
    how = GraphTerm(HardGraph(), merge_labels=False)
    *_, seen, _, _, teacher, visited, _ = half_visited(how)
    np.testing.assert_array_equal(seen.teacher, np.where(visited, teacher.argmax(-1), -1))
    half = visited.shape[1] // 2
    assert (seen.W.numpy()[~(visited[:, :half] & visited[:, half:])] == 0).all()


def test_the_store_takes_a_model_of_another_precision():
    """A float64 model under torch's usual default of float32."""
    torch.set_default_dtype(torch.float32)
    method, batch = TemporalEnsembling(make_setup(make_model(0).double())), make_batch(0)
    batch = Batch(batch.x.double(), batch.labels, batch.rows)
    method.passes(batch)
    method.after_epoch()
    target = method.targets(batch.rows)[0].double()
    torch.testing.assert_close(target, method.model(batch.x).logits.softmax(-1), rtol=1e-6, atol=1e-6)


def test_what_is_remembered_stays_where_it_is_in_memory():
    """A recorded step reads and writes the same memory at every replay: through epochs and loaded states."""
    method, batch = TemporalEnsembling(make_setup(make_model(0))), make_batch(0)
    where = {name: getattr(method, name).data_ptr() for name in STORE}
    start = {name: tensor.clone() for name, tensor in method.state().items()}
    for _ in range(2):
        method.passes(batch)
        method.after_epoch()
    method.load_state(start)
    method.passes(batch)
    assert {name: getattr(method, name).data_ptr() for name in STORE} == where
    assert all(torch.equal(start[name], torch.zeros_like(start[name])) for name in STORE)  # and is a copy of a state


def test_going_back_to_before_the_first_batch_forgets_every_target():
    method = TemporalEnsembling(make_setup(make_model(0)))
    start, batch = {name: tensor.clone() for name, tensor in method.state().items()}, make_batch(0)
    method.passes(batch)
    method.after_epoch()
    assert method.targets(batch.rows)[1].all()
    method.load_state(start)
    assert not method.targets(batch.rows)[1].any()
