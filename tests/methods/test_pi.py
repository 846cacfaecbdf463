"""The Pi model: agreement of two branches, with the gradient flowing through both."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from method_fixtures import (
    CLASSES,
    RUNS,
    N,
    Recorder,
    Views,
    add,
    assert_term,
    changes,
    cross_entropy,
    differ,
    distinct_images,
    kl,
    make_batch,
    make_model,
    make_setup,
    mse,
    references,
    softmax,
    take_step,
    through_softmax,
)

from sntg.data import flip, translate
from sntg.losses import consistency_kl, consistency_mse
from sntg.methods import Batch
from sntg.methods.pi import Pi


def test_cross_entropy_is_branch_as_alone():
    step = take_step("pi")
    values, expected = [], []
    for run in range(RUNS):
        value, d_logits = cross_entropy(step.student[run].logits, step.batch.labels[run].numpy())
        values.append(value)
        expected.append(step.networks[run].backward(step.student[run], d_logits))
    assert_term(step.terms["supervised"], step.model, values, expected)


@pytest.mark.parametrize(("consistency", "reference"), [(consistency_mse, mse), (consistency_kl, kl)])
def test_consistency_reaches_every_weight_through_both_branches(consistency, reference):
    model, views = make_model(0), Views(0)
    term = Pi(make_setup(model, views, consistency)).passes(make_batch(0)).terms["consistency"]
    values, expected = [], []
    for run, network in enumerate(references(model)):
        a, b = (network.forward(view[run]) for view in views.given)
        value, d_logits, d_target = reference(a.logits, b.p)
        through_a = network.backward(a, d_logits)
        through_b = network.backward(b, through_softmax(b.p, d_target))
        values.append(value)
        expected.append(add(through_a, through_b))
        # Either branch's share is large enough for its loss to be noticed.
        assert differ(expected[-1], through_a)
        assert differ(expected[-1], through_b)
    assert_term(term, model, values, expected)


def test_the_batch_means_of_the_branches_are_kept_apart():
    """Shifting all of branch b by a constant changes nothing that the first layer's mean does not take out again."""
    model, batch = make_model(0), make_batch(0)
    offsets = iter([0.0, 100.0])
    passes = Pi(make_setup(model, lambda x: x + next(offsets))).passes(batch)
    np.testing.assert_allclose(passes.terms["consistency"].detach(), 0.0, atol=1e-20)


def test_the_branches_draw_noise_of_their_own():
    model, batch = make_model(0, noise=0.3), make_batch(0)
    assert (Pi(make_setup(model)).passes(batch).terms["consistency"] > 1e-3).all()


def test_the_target_handed_on_is_branch_b_without_gradient():
    step = take_step("pi")
    passes = step.objective.base.passes(step.batch)
    assert not passes.target.requires_grad
    assert step.seen.teacher.tolist() == [p.argmax(1).tolist() for p in step.teacher]


def test_the_running_means_follow_branch_b():
    model, views = make_model(0), Views(0)
    Pi(make_setup(model, views)).passes(make_batch(0))
    for run, network in enumerate(references(model)):
        V, g = network.parameters["hidden.0.V"], network.parameters["hidden.0.g"]
        y = views.given[1][run] @ (V * (g / np.linalg.norm(V, axis=1))[:, None]).T
        np.testing.assert_allclose(model.hidden[0].running_mean[run], 0.001 * y.mean(0), rtol=1e-10)


@pytest.mark.parametrize("chances", [[0.25] * 4, [0.1, 0.2, 0.3, 0.4]])
def test_expected_consistency_is_twice_the_summed_variance(chances):
    """The appendix: E ||f(x; xi) - f(x; xi')||^2 = 2 sum_k Var f_k, exactly, for xi from a finite distribution."""
    model, batch = make_model(0), make_batch(0)
    offsets = [torch.from_numpy(np.random.default_rng(m).normal(size=batch.x.shape)) for m in range(len(chances))]
    n = batch.x.shape[1]

    expected_consistency = np.zeros(RUNS)
    for a, b in itertools.product(range(len(chances)), repeat=2):
        branch = iter([offsets[a], offsets[b]])
        term = Pi(make_setup(model, lambda x, branch=branch: x + next(branch))).passes(batch).terms["consistency"]
        # The term is a mean over n rows and K classes; the appendix sums over both.
        expected_consistency += chances[a] * chances[b] * n * CLASSES * term.detach().numpy()

    for run, network in enumerate(references(model)):
        f = np.stack([softmax(network.forward((batch.x + o)[run].numpy()).logits) for o in offsets])
        p = np.array(chances)[:, None, None]
        variance = (p * f**2).sum(0) - (p * f).sum(0) ** 2
        np.testing.assert_allclose(expected_consistency[run], 2 * variance.sum(), rtol=1e-12)
        assert variance.sum() > 0.1


def test_rows_kept_out_of_the_consistency_count_as_zero_in_both_branches():
    model, views, mask = make_model(0), Views(0), np.arange(N) % 3 > 0
    batch = replace(make_batch(0), unlabelled=torch.from_numpy(mask))
    term = Pi(make_setup(model, views)).passes(batch).terms["consistency"]
    values, expected = [], []
    for run, network in enumerate(references(model)):
        a, b = (network.forward(view[run]) for view in views.given)
        value, d_logits, d_target = mse(a.logits, b.p, mask)
        values.append(value)
        expected.append(add(network.backward(a, d_logits), network.backward(b, through_softmax(b.p, d_target))))
        assert not np.isclose(value, mse(a.logits, b.p)[0], rtol=0.01)  # the rows left out would show
    assert_term(term, model, values, expected)


def test_the_branches_share_the_flip_and_draw_translations_of_their_own():
    torch.manual_seed(0)
    images, n = distinct_images(60), 60
    method = Pi(make_setup(Recorder(), lambda x: translate(x, 2), flip=flip))
    method.passes(Batch(images, torch.full((RUNS, n), -1), torch.arange(n).expand(RUNS, n)))
    (views,) = method.model.shown  # (RUNS, 2, n, ...)
    a, b = (changes(views[:, branch], images, 2) for branch in (0, 1))
    assert [mirrored for mirrored, *_ in a] == [mirrored for mirrored, *_ in b]
    assert 0.3 < np.mean([mirrored for mirrored, *_ in a]) < 0.7  # each image tosses its own coin
    assert np.mean([x[1:] == y[1:] for x, y in zip(a, b, strict=True)]) < 0.2  # 1 in 25 by chance


def test_the_next_step_flips_anew():
    torch.manual_seed(0)
    images, n = distinct_images(60), 60
    method = Pi(make_setup(Recorder(), flip=flip))
    batch = Batch(images, torch.full((RUNS, n), -1), torch.arange(n).expand(RUNS, n))
    for _ in range(2):
        method.passes(batch)
    first, second = (changes(views[:, 0], images, 0) for views in method.model.shown)
    assert first != second
