"""What +ent and +sntg add to every base method, term by term."""

import numpy as np
import pytest
import torch
from method_fixtures import (
    BASES,
    RUNS,
    N,
    Step,
    assert_term,
    entropy,
    gradients,
    make_batch,
    make_model,
    make_setup,
    pairs_of,
    sntg,
    take_step,
)

from sntg.graph import FixedGraph, HardGraph, KNNGraph
from sntg.methods import METHODS, GraphTerm, Objective

MARGIN = 2.0
HARD = GraphTerm(HardGraph(), margin=MARGIN)
EXPECTED_TERMS = {base: ["supervised", "consistency"] for base in BASES} | {"supervised": ["supervised"]}


def graph_labels(step: Step, run: int, merge_labels: bool) -> np.ndarray:
    """The true label where known, else the teacher's class."""
    labels, predicted = step.batch.labels[run].numpy(), step.teacher[run].argmax(1)
    return np.where(labels >= 0, labels, predicted) if merge_labels else predicted


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("ent", [False, True])
@pytest.mark.parametrize("graph_term", [None, HARD])
def test_a_method_has_its_own_terms_and_what_its_name_adds(base, ent, graph_term):
    terms = take_step(base, ent, graph_term).terms
    assert list(terms) == EXPECTED_TERMS[base] + ["entropy"] * ent + ["sntg"] * (graph_term is not None)
    assert all(term.shape == (RUNS,) for term in terms.values())


@pytest.mark.parametrize("base", BASES)
def test_what_is_added_does_not_change_the_base_terms(base):
    plain, full = take_step(base), take_step(base, True, HARD)
    for name, term in plain.terms.items():
        assert torch.equal(term, full.terms[name])


@pytest.mark.parametrize("graph_term", [None, HARD])
@pytest.mark.parametrize("base", BASES)
def test_entropy_gives_every_weight_the_reference_gradient_through_the_student(base, graph_term):
    step = take_step(base, ent=True, graph_term=graph_term)
    values, expected = [], []
    for run, network in enumerate(step.networks):
        value, d_logits = entropy(step.student[run].logits)
        values.append(value)
        expected.append(network.backward(step.student[run], d_logits))
    assert_term(step.terms["entropy"], step.model, values, expected)


@pytest.mark.parametrize("ent", [False, True])
@pytest.mark.parametrize("merge_labels", [True, False])
@pytest.mark.parametrize("pairs", ["half", "all"])
@pytest.mark.parametrize("base", BASES)
def test_sntg_gives_every_weight_the_reference_gradient_through_the_students_features(base, pairs, merge_labels, ent):
    step = take_step(base, ent, GraphTerm(HardGraph(), pairs, margin=MARGIN, merge_labels=merge_labels))
    values, expected = [], []
    for run, network in enumerate(step.networks):
        classes = graph_labels(step, run, merge_labels)
        value, d_features = sntg(step.student[run].features, classes, pairs_of(pairs, N), MARGIN)
        values.append(value)
        expected.append(network.backward(step.student[run], d_features=d_features))
    assert_term(step.terms["sntg"], step.model, values, expected)


@pytest.mark.parametrize("base", BASES)
def test_these_steps_tell_the_right_graph_from_the_wrong_ones(base):
    """The other tests' eyesight: another teacher or other labels would make another graph, and both losses act."""
    step = take_step(base, graph_term=HARD)
    for run in range(RUNS):
        student = step.student[run].p.argmax(1)
        merged, unmerged = (graph_labels(step, run, merge) for merge in (True, False))
        graphs = [[classes[i] == classes[j] for i, j in pairs_of("all", N)] for classes in (merged, unmerged, student)]
        assert graphs[0] != graphs[1]
        if base != "vat":  # there the student's clean pass is the teacher
            assert graphs[1] != graphs[2]
        h, half = step.student[run].features, pairs_of("half", N)
        neighbours = [merged[i] == merged[j] for i, j in half]
        near = [np.sqrt(((h[i] - h[j]) ** 2).mean()) < MARGIN for i, j in half]
        assert any(neighbours)
        assert any(close and not same for close, same in zip(near, neighbours, strict=True))


@pytest.mark.parametrize("base", BASES)
def test_sntg_leaves_the_output_layer_alone(base):
    step = take_step(base, graph_term=HARD)
    actual = gradients(step.terms["sntg"], step.model)
    assert all(np.all(actual[f"output.{p}"] == 0) for p in "Vgb")


@pytest.mark.parametrize("base", BASES)
def test_added_terms_give_the_teacher_nothing(base):
    step = take_step(base, True, HARD)
    assert not step.seen.teacher.requires_grad
    gradients(step.terms["sntg"] + step.terms["entropy"], step.model)
    assert all(p.grad is None for p in step.objective.base.average.parameters())


@pytest.mark.parametrize("merge_labels", [True, False])
@pytest.mark.parametrize("base", BASES)
def test_what_was_seen_is_the_teachers_classes_and_the_graph(base, merge_labels):
    step = take_step(base, graph_term=GraphTerm(HardGraph(), merge_labels=merge_labels))
    assert step.seen.teacher.tolist() == [p.argmax(1).tolist() for p in step.teacher]
    for run in range(RUNS):
        classes = graph_labels(step, run, merge_labels)
        assert step.seen.W[run].tolist() == [float(classes[i] == classes[j]) for i, j in pairs_of("half", N)]


@pytest.mark.parametrize("base", [b for b in BASES if b != "supervised"])
def test_without_a_graph_the_teachers_classes_are_seen_all_the_same(base):
    seen = take_step(base).seen
    assert seen.W is None
    assert seen.pairs is None
    assert seen.teacher.shape == (RUNS, N)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("graph", ["knn", "fixed"])
def test_a_graph_made_ahead_of_training_asks_no_teacher(base, graph):
    """It knows the points by their row numbers; temporal ensembling's rows count from the first epoch on."""
    classes = torch.arange(16).expand(RUNS, 16) % 3
    neighbours = torch.stack([torch.roll(torch.arange(16), -1), torch.roll(torch.arange(16), -2)])[..., None]
    made = FixedGraph(classes) if graph == "fixed" else KNNGraph(neighbours)
    model, batch = make_model(0), make_batch(0)
    how = GraphTerm(made, "all", margin=MARGIN, merge_labels=False)
    terms, seen = Objective(METHODS[base](make_setup(model)), graph_term=how)(batch)
    for run in range(RUNS):
        rows = batch.rows[run].tolist()
        pairs = sorted(pairs_of("all", N))
        if graph == "fixed":
            expected = [float(rows[i] % 3 == rows[j] % 3) for i, j in pairs]
        else:
            expected = [float((rows[i] - rows[j]) % 16 in (run + 1, 15 - run)) for i, j in pairs]
        assert seen.W[run].tolist() == expected
    assert all(np.abs(g).max() > 1e-4 for name, g in gradients(terms["sntg"], model).items() if name == "hidden.0.V")


def test_supervised_with_a_graph_made_ahead_needs_no_second_branch():
    calls = []
    augment = lambda x: (calls.append(1), x)[1]  # noqa: E731
    graph_term = GraphTerm(FixedGraph(torch.zeros(RUNS, 16, dtype=torch.long)))
    _, seen = Objective(METHODS["supervised"](make_setup(make_model(0), augment)), graph_term=graph_term)(make_batch(0))
    assert len(calls) == 1
    assert seen.teacher is None


def test_random_pairs_are_as_many_as_asked_for():
    step = take_step("pi", graph_term=GraphTerm(HardGraph(), "random", n_pairs=7))
    assert step.seen.W.shape == (RUNS, 7)
    assert len(step.seen.pairs.i) == 7
