"""Mean Teacher: a constant target from averaged weights, in training mode with views of its own."""

import numpy as np
import pytest
import torch
from method_fixtures import (
    RUNS,
    assert_term,
    cross_entropy,
    gradients,
    make_batch,
    make_model,
    make_setup,
    mse,
    randomise,
    take_step,
)

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
    assert all(p.grad is None for p in step.objective.base.teacher_model.parameters())


def test_the_teacher_averages_the_students_weights_after_every_step():
    model = make_model(0)
    method = MeanTeacher(make_setup(model, ema=0.9))
    mean = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    for _ in range(5):
        randomise(model)
        method.after_step()
        for name, p in model.named_parameters():
            mean[name] = 0.9 * mean[name] + (1 - 0.9) * p.detach().numpy()
        for name, p in method.teacher_model.named_parameters():
            np.testing.assert_allclose(p.detach(), mean[name], rtol=1e-12, err_msg=name)


def test_the_average_leaves_the_student_alone():
    model = make_model(0)
    method = MeanTeacher(make_setup(model))
    randomise(method.teacher_model)
    before = [p.detach().clone() for p in model.parameters()]
    method.after_step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_teacher_starts_at_the_students_weights_but_does_not_share_them():
    model = make_model(0)
    teacher = MeanTeacher(make_setup(model)).teacher_model
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), model.parameters(), strict=True))
    before = [p.detach().clone() for p in teacher.parameters()]
    randomise(model)
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), before, strict=True))


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
    student, teacher = caught[0].model, caught[0].teacher_model
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
    student, teacher = method.model.hidden[0].running_mean, method.teacher_model.hidden[0].running_mean
    assert (teacher - student).abs().min() > 1e-3


@pytest.mark.parametrize("attribute", ["logits", "features"])
def test_the_graph_and_entropy_terms_act_on_the_student(attribute):
    step = take_step("mt")
    passes = step.objective.base.passes(step.batch)
    assert getattr(passes.student, attribute).requires_grad
    assert not passes.target.requires_grad


def test_the_teacher_is_what_is_reported():
    method = MeanTeacher(make_setup(make_model(0)))
    assert method.reported() is method.teacher_model
    assert method.reported() is not method.model
