"""VAT: the smoothness loss moves the weights through p(x + r) alone."""

import numpy as np
import pytest
import torch
from method_fixtures import (
    assert_term,
    cross_entropy,
    differ,
    gradients,
    kl,
    make_batch,
    make_model,
    make_setup,
    references,
    softmax,
    take_step,
    through_softmax,
)

from sntg.methods.vat import VAT


def passes_with_inputs(seed: int = 0, noise: float = 0.0, **options):
    """A step of VAT, with what the network was shown: the labelled batch, x, ..., x + r."""
    model, batch = make_model(seed, noise), make_batch(seed)
    method, shown = VAT(make_setup(model, **options)), []
    handle = model.register_forward_pre_hook(lambda _, args: shown.append(args[0].detach().clone()))
    passes = method.passes(batch)
    handle.remove()
    return model, batch, passes, shown


def test_cross_entropy_is_the_labelled_batchs():
    step = take_step("vat")
    values, expected = [], []
    for run, network in enumerate(step.networks):
        trace = network.forward(step.views[0][run])
        value, d_logits = cross_entropy(trace.logits, step.batch.labelled.labels[run].numpy())
        values.append(value)
        expected.append(network.backward(trace, d_logits))
    assert_term(step.terms["supervised"], step.model, values, expected)


@pytest.mark.parametrize("xi", [0.0, 1e-3])
def test_smoothness_gives_every_weight_the_gradient_through_the_perturbed_pass_alone(xi):
    model, batch, passes, shown = passes_with_inputs(epsilon=1.0, xi=xi)
    values, expected = [], []
    for run, network in enumerate(references(model)):
        clean, moved = network.forward(batch.x[run].numpy()), network.forward(shown[-1][run].numpy())
        value, d_logits, d_target = kl(moved.logits, clean.p)
        values.append(value)
        expected.append(network.backward(moved, d_logits))
        # A gradient through the clean pass would show.
        through_clean = network.backward(clean, through_softmax(clean.p, d_target))
        assert differ(expected[-1], {k: v + through_clean[k] for k, v in expected[-1].items()})
    assert_term(passes.terms["consistency"], model, values, expected)


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_perturbation_has_length_epsilon(epsilon):
    _, batch, _, shown = passes_with_inputs(epsilon=epsilon)
    np.testing.assert_allclose((shown[-1] - batch.x).norm(dim=-1), epsilon, rtol=1e-5)


def test_the_perturbation_is_the_worst_of_its_length():
    """In evaluation mode rows are independent, so each row's worst direction can be found by trying many."""
    model, batch = make_model(0).eval(), make_batch(0)
    term = VAT(make_setup(model, epsilon=1e-3, power_iterations=50)).passes(batch).terms["consistency"]
    clean, worst = model(batch.x).logits.detach().numpy(), np.zeros(batch.x.shape[:2])
    for angle in np.linspace(0, np.pi, 100):
        moved = model(batch.x + 1e-3 * torch.tensor([np.cos(angle), np.sin(angle)])).logits.detach().numpy()
        rows = [
            [kl(m[None], softmax(c[None]))[0] for m, c in zip(*run, strict=True)]
            for run in zip(moved, clean, strict=True)
        ]
        worst = np.maximum(worst, rows)
    np.testing.assert_allclose(term.detach(), worst.mean(1), rtol=5e-3)


def test_the_unlabelled_passes_share_noise_so_that_only_r_tells_them_apart():
    *_, passes, _ = passes_with_inputs(noise=0.5, epsilon=0.0)
    np.testing.assert_allclose(passes.terms["consistency"].detach(), 0.0, atol=1e-15)


def test_the_next_step_draws_noise_anew():
    model, batch = make_model(0, noise=0.5), make_batch(0)
    method = VAT(make_setup(model))
    first, second = (method.passes(batch).student.logits for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-2)


def test_the_running_means_follow_the_labelled_pass_alone():
    model, batch, _, _ = passes_with_inputs()
    for run, network in enumerate(references(model)):
        trace = network.forward(batch.labelled.x[run].numpy())
        for depth, layer in enumerate([*model.hidden, model.output]):
            V, g = layer.V[run].detach().numpy(), layer.g[run].detach().numpy()
            y = trace.inputs[depth] @ (V * (g / np.linalg.norm(V, axis=1))[:, None]).T
            np.testing.assert_allclose(layer.running_mean[run], 0.001 * y.mean(0), rtol=1e-9, atol=1e-16)


def test_computing_the_direction_leaves_no_gradient_behind():
    model, *_ = passes_with_inputs()
    assert all(p.grad is None for p in model.parameters())


def test_the_teacher_is_the_clean_pass_without_gradient():
    model, batch, passes, _ = passes_with_inputs()
    assert not passes.target.requires_grad
    for run, network in enumerate(references(model)):
        np.testing.assert_allclose(passes.target[run], network.forward(batch.x[run].numpy()).p, rtol=1e-10)


def test_flags_are_back_after_a_step():
    model, *_ = passes_with_inputs(noise=0.5)
    assert all(layer.track_statistics for layer in [*model.hidden, model.output])
    assert all(not noise.sharing and noise.shared is None for noise in model.noises)


def test_the_smoothness_does_not_see_the_labels():
    """Gradients of the unlabelled term are the same whatever the labelled batch holds."""
    model, batch = make_model(0), make_batch(0)
    results = []
    for scale in (1.0, 5.0):
        batch.labelled.x.mul_(scale)
        torch.manual_seed(0)
        results.append(gradients(VAT(make_setup(model)).passes(batch).terms["consistency"], model))
    for name, gradient in results[0].items():
        np.testing.assert_array_equal(gradient, results[1][name])


def test_the_student_is_what_is_reported():
    step = take_step("vat")
    assert step.objective.base.reported() is step.model
