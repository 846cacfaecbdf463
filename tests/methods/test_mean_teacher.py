"""Mean Teacher: a constant target from averaged weights, in training mode with views of its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from method_fixtures import (
    RUNS,
    N,
    Recorder,
    ReferenceMLP,
    Views,
    assert_term,
    changes,
    cross_entropy,
    distinct_images,
    gradients,
    make_batch,
    make_model,
    make_setup,
    mse,
    randomise,
    references,
    take_step,
)

from sntg.data import flip, translate
from sntg.methods import Batch
from sntg.methods.mean_teacher import MeanTeacher
from sntg.training import resolve, train


def test_consistency_gives_every_weight_the_gradient_towards_a_constant_target():
    """The teacher has other weights and another view; a target that followed the student would be noticed."""
    step = take_step("mt")
    values, expected = [], []
    for run, network in enumerate(step.networks):
        value, d_logits, _ = mse(step.student[run].logits, step.teacher[run])
        values.append(value)
        expected.append(network.backward(step.student[run], d_logits))
    assert_term(step.terms["consistency"], step.model, values, expected)


def test_cross_entropy_gives_every_weight_the_reference_gradient():
    step = take_step("mt")
    values, expected = [], []
    for run, network in enumerate(step.networks):
        value, d_logits = cross_entropy(step.student[run].logits, step.batch.labels[run].numpy())
        values.append(value)
        expected.append(network.backward(step.student[run], d_logits))
    assert_term(step.terms["supervised"], step.model, values, expected)


def test_the_teachers_weights_get_no_gradient():
    step = take_step("mt")
    for term in step.terms.values():
        gradients(term, step.model)
    assert all(p.grad is None for p in step.objective.base.average.parameters())


class FirstStepError(Exception):
    """Stops training when the first step asks for its passes."""


def test_in_training_the_teacher_starts_after_the_data_dependent_initialisation(monkeypatch):
    torch.set_default_dtype(torch.float32)  # as training runs
    caught = []

    def passes(method, batch):
        caught.append(method)
        raise FirstStepError

    monkeypatch.setattr(MeanTeacher, "passes", passes)
    with pytest.raises(FirstStepError):
        train([resolve("two-moons", 12, "mt", epochs=1)])
    student, teacher = caught[0].model, caught[0].average
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), student.parameters(), strict=True))
    assert all((layer.g - 1).abs().min() > 0 for layer in [*teacher.hidden, teacher.output])  # 1 before the data


def test_with_equal_weights_and_no_noise_there_is_nothing_to_agree_on():
    passes = MeanTeacher(make_setup(make_model(0))).passes(make_batch(0))
    assert passes.terms["consistency"].tolist() == [0.0] * RUNS


def test_the_teacher_draws_noise_of_its_own():
    passes = MeanTeacher(make_setup(make_model(0, noise=0.3))).passes(make_batch(0))
    assert (passes.terms["consistency"] > 1e-3).all()


def test_the_teacher_uses_its_own_batch_means_and_keeps_running_means():
    """Training mode: a constant shift of the teacher's view is taken out, and its running means move."""
    offsets = iter([0.0, 100.0])
    method = MeanTeacher(make_setup(make_model(0), lambda x: x + next(offsets)))
    passes = method.passes(make_batch(0))
    np.testing.assert_allclose(passes.terms["consistency"].detach(), 0.0, atol=1e-20)
    student, teacher = method.model.hidden[0].running_mean, method.average.hidden[0].running_mean
    assert (teacher - student).abs().min() > 1e-3


@pytest.mark.parametrize("attribute", ["logits", "features"])
def test_the_graph_and_entropy_terms_act_on_the_student(attribute):
    step = take_step("mt")
    passes = step.objective.base.passes(step.batch)
    assert getattr(passes.student, attribute).requires_grad
    assert not passes.target.requires_grad


def test_the_target_is_the_averaged_weights_prediction_after_every_step():
    """Three steps: what the teacher says follows from the NumPy average of the student's weights."""
    model, views, ema = make_model(0), Views(0), 0.7
    method, batch = MeanTeacher(make_setup(model, views)), make_batch(0)
    mean = [network.parameters for network in references(model)]
    for step in range(3):
        randomise(model)
        method.after_step(ema)
        for run, network in enumerate(references(model)):
            mean[run] = {name: ema * mean[run][name] + (1 - ema) * p for name, p in network.parameters.items()}
        target = method.passes(batch).target
        for run in range(RUNS):
            expected = ReferenceMLP(mean[run]).forward(views.given[2 * step + 1][run]).p
            np.testing.assert_allclose(target[run], expected, rtol=1e-9)


# --- rows that are there for their label alone -----------------------------------------------------------------------

MASKS = [np.arange(N) >= 1, np.arange(N) % 3 > 0, np.zeros(N, bool)]


@pytest.mark.parametrize("mask", MASKS, ids=["1 labelled row first", "a third of the rows", "every row"])
def test_rows_kept_out_of_the_consistency_count_as_zero_in_a_mean_over_all(mask):
    """Mean Teacher on SVHN: 1 labelled row beside 99 others, divided by all 100."""
    model, views = make_model(0), Views(0)
    method = MeanTeacher(make_setup(model, views))
    randomise(method.average)
    teachers = references(method.average)
    term = method.passes(replace(make_batch(0), unlabelled=torch.from_numpy(mask))).terms["consistency"]
    if not mask.any():
        assert term.tolist() == [0.0] * RUNS
        assert all(np.all(g == 0) for g in gradients(term, model).values())
        return
    values, expected = [], []
    for run, network in enumerate(references(model)):
        student, teacher = network.forward(views.given[0][run]), teachers[run].forward(views.given[1][run])
        d_logits = np.zeros_like(student.logits)
        value = 0.0
        for row in np.flatnonzero(mask):
            own, d_own, _ = mse(student.logits[row : row + 1], teacher.p[row : row + 1])
            value += own / N
            d_logits[row] = d_own[0] / N
        values.append(value)
        expected.append(network.backward(student, d_logits))
    assert_term(term, model, values, expected)


def test_the_mask_leaves_cross_entropy_target_and_student_alone():
    """The cross-entropy is the sum over the labelled rows divided by the whole batch, mask or none."""
    results = []
    for mask in (None, torch.arange(N) >= 1):
        model, views = make_model(0), Views(0)
        batch = replace(make_batch(0), unlabelled=mask)
        batch.labels[:, 1:] = -1
        passes = MeanTeacher(make_setup(model, views)).passes(batch)
        results.append(passes)
        values, expected = [], []
        for run, network in enumerate(references(model)):
            student = network.forward(views.given[0][run])
            label = batch.labels[run, 0].item()
            values.append(-np.log(student.p[0, label]) / N)
            _, d_logits = cross_entropy(student.logits, batch.labels[run].numpy())
            expected.append(network.backward(student, d_logits))
        assert_term(passes.terms["supervised"], model, values, expected)
    assert torch.equal(results[0].target, results[1].target)
    assert torch.equal(results[0].student.features, results[1].student.features)


# --- views -----------------------------------------------------------------------------------------------------------


def test_student_and_teacher_draw_a_flip_and_a_translation_of_their_own():
    torch.manual_seed(0)
    images, n = distinct_images(60), 60
    method = MeanTeacher(make_setup(Recorder(), lambda x: translate(x, 2), flip=flip))
    method.passes(Batch(images, torch.full((RUNS, n), -1), torch.arange(n).expand(RUNS, n)))
    student, teacher = (changes(net.shown[0], images, 2) for net in (method.model, method.average))
    assert all(0.3 < np.mean([mirrored for mirrored, *_ in of]) < 0.7 for of in (student, teacher))
    alike = np.mean([a[0] == b[0] for a, b in zip(student, teacher, strict=True)])
    assert 0.3 < alike < 0.7  # two coins
    moved_alike = np.mean([a[1:] == b[1:] for a, b in zip(student, teacher, strict=True)])
    assert moved_alike < 0.2  # 1 in 25
