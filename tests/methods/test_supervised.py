"""Supervised only: the cross-entropy reaches every weight; with a graph, a second branch is the teacher."""

import numpy as np
import torch
from method_fixtures import (
    RUNS,
    Recorder,
    assert_term,
    changes,
    cross_entropy,
    distinct_images,
    gradients,
    make_batch,
    make_model,
    make_setup,
    take_step,
)

from sntg.data import flip, translate
from sntg.methods import Batch
from sntg.methods.supervised import Supervised


def test_cross_entropy_gives_every_weight_the_reference_gradient():
    step = take_step("supervised")
    values, expected = [], []
    for run in range(RUNS):
        value, d_logits = cross_entropy(step.student[run].logits, step.batch.labels[run].numpy())
        values.append(value)
        expected.append(step.networks[run].backward(step.student[run], d_logits))
    assert_term(step.terms["supervised"], step.model, values, expected)


def test_it_has_no_other_term_and_no_teacher():
    step = take_step("supervised")
    assert list(step.terms) == ["supervised"]
    assert step.seen.teacher is None
    assert len(step.views) == 1  # without a graph the second branch is not computed


def test_a_batch_without_labels_moves_nothing():
    model = make_model(0)
    batch = make_batch(0)
    batch.labels.fill_(-1)
    term = Supervised(make_setup(model)).passes(batch).terms["supervised"]
    assert term.tolist() == [0.0] * RUNS
    assert all(np.all(g == 0) for g in gradients(term, model).values())


def test_the_graphs_teacher_is_a_second_noisy_branch_without_gradient():
    model = make_model(0, noise=0.3)
    method, batch = Supervised(make_setup(model)), make_batch(0)
    passes = method.passes(batch)
    teacher = method.teacher(batch, passes)
    assert not teacher.requires_grad
    assert not torch.allclose(teacher, passes.student.logits.softmax(-1), atol=1e-2)  # noise of its own


def test_the_running_means_follow_the_student_pass_alone():
    model = make_model(0, noise=0.3)
    method, batch = Supervised(make_setup(model)), make_batch(0)
    passes = method.passes(batch)
    after_student = [layer.running_mean.clone() for layer in (*model.hidden, model.output)]
    method.teacher(batch, passes)
    assert all(mean.abs().max() > 0 for mean in after_student)
    for mean, layer in zip(after_student, (*model.hidden, model.output), strict=True):
        assert torch.equal(layer.running_mean, mean)


def test_the_second_branch_draws_a_flip_and_a_translation_of_its_own():
    torch.manual_seed(0)
    images, n = distinct_images(60), 60
    method = Supervised(make_setup(Recorder(), lambda x: translate(x, 2), flip=flip))
    batch = Batch(images, torch.full((RUNS, n), -1), torch.arange(n).expand(RUNS, n))
    method.teacher(batch, method.passes(batch))
    student, teacher = (changes(views, images, 2) for views in method.model.shown)
    assert all(0.3 < np.mean([mirrored for mirrored, *_ in of]) < 0.7 for of in (student, teacher))
    assert 0.3 < np.mean([a[0] == b[0] for a, b in zip(student, teacher, strict=True)]) < 0.7  # two coins
    assert np.mean([a[1:] == b[1:] for a, b in zip(student, teacher, strict=True)]) < 0.2  # 1 in 25
