"""VAT: the smoothness loss moves the weights through p(x + r) alone."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from method_fixtures import (
    CLASSES,
    LAYERS,
    Arrays,
    N,
    assert_term,
    cross_entropy,
    differ,
    entropy,
    gradients,
    kl,
    make_batch,
    make_batch_normed_model,
    make_model,
    make_setup,
    pairs_of,
    references,
    sntg,
    softmax,
    take_step,
    through_softmax,
)

from sntg.graph import HardGraph
from sntg.methods import Batch, GraphTerm, Objective
from sntg.methods.vat import VAT
from sntg.models import SmallNet, stack


def passes_with_inputs(seed: int = 0, noise: float = 0.0, **options):
    """A step of VAT, with what the network was shown: x, ..., x + r with the labelled batch behind it."""
    model, batch = make_model(seed, noise), make_batch(seed)
    method, shown = VAT(make_setup(model, **options)), []
    handle = model.register_forward_pre_hook(lambda _, args: shown.append(args[0].detach().clone()))
    passes = method.passes(batch)
    handle.remove()
    return model, batch, passes, shown


def perturbed(shown: list[torch.Tensor], batch: Batch) -> torch.Tensor:
    """x + r. The labelled batch shares its pass."""
    moved, labelled = shown[-1].split([batch.x.shape[1], batch.labelled.x.shape[1]], 1)
    assert torch.equal(labelled, batch.labelled.x)
    return moved


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
        clean, moved = network.forward(batch.x[run].numpy()), network.forward(perturbed(shown, batch)[run].numpy())
        value, d_logits, d_target = kl(moved.logits, clean.p)
        values.append(value)
        expected.append(network.backward(moved, d_logits))
        # A gradient through the clean pass would show.
        through_clean = network.backward(clean, through_softmax(clean.p, d_target))
        assert differ(expected[-1], {k: v + through_clean[k] for k, v in expected[-1].items()})
    assert_term(passes.terms["consistency"], model, values, expected)


@pytest.mark.parametrize("graph_features", ["clean", "perturbed"])
def test_the_graph_takes_the_features_of_the_pass_it_is_told_and_its_neighbours_from_the_clean_one(graph_features):
    model, batch, shown = make_model(0), make_batch(0), []
    method = VAT(make_setup(model, epsilon=1.0, graph_features=graph_features))
    model.register_forward_pre_hook(lambda _, args: shown.append(args[0].detach().clone()))
    terms, seen = Objective(method, ent=True, graph_term=GraphTerm(HardGraph(), margin=2.0))(batch)
    values, expected, entropies, through_entropy = [], [], [], []
    for run, network in enumerate(references(model)):
        clean, moved = network.forward(batch.x[run].numpy()), network.forward(perturbed(shown, batch)[run].numpy())
        classes = clean.p.argmax(1)
        assert seen.teacher[run].tolist() == classes.tolist()
        assert classes.tolist() != moved.p.argmax(1).tolist()  # the perturbed pass would make another graph
        labels = batch.labels[run].numpy()
        nodes, half = np.where(labels >= 0, labels, classes), pairs_of("half", N)
        trace, other = (clean, moved) if graph_features == "clean" else (moved, clean)
        value, d_features = sntg(trace.features, nodes, half, 2.0)
        values.append(value)
        expected.append(network.backward(trace, d_features=d_features))
        assert differ(expected[-1], network.backward(other, d_features=sntg(other.features, nodes, half, 2.0)[1]))
        value, d_logits = entropy(clean.logits)
        entropies.append(value)
        through_entropy.append(network.backward(clean, d_logits))
    assert_term(terms["sntg"], model, values, expected)
    assert_term(terms["entropy"], model, entropies, through_entropy)


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_perturbation_has_length_epsilon(epsilon):
    _, batch, _, shown = passes_with_inputs(epsilon=epsilon)
    np.testing.assert_allclose((perturbed(shown, batch) - batch.x).norm(dim=-1), epsilon, rtol=1e-5)


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


# --- through full batch normalisation, as Miyato et al.'s networks have it --------------------------------------------


def batch_normed(parameters: Arrays, x: np.ndarray) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """The logits of one run's network in training mode, and every layer's batch mean and variance."""
    statistics = []
    for name in LAYERS:
        y = x @ parameters[f"{name}.V"].T
        mean = y.sum(0) / len(y)
        variance = ((y - mean) ** 2).sum(0) / len(y)
        statistics.append((mean, variance))
        y = parameters[f"{name}.g"] * (y - mean) / np.sqrt(variance + 1e-6) + parameters[f"{name}.b"]
        x = np.where(y > 0, y, 0.1 * y)
    return y, statistics


def unit(d: np.ndarray) -> np.ndarray:
    d = d / (np.abs(d).max(1, keepdims=True) + 1e-12)
    return d / np.sqrt(1e-6 + (d**2).sum(1, keepdims=True))


def batch_normed_step(epsilon: float, power_iterations: int = 1):
    """A step of VAT; the only random number drawn is the direction's start, returned with the rest."""
    model, batch = make_batch_normed_model(0), make_batch(0)
    method, shown = VAT(make_setup(model, epsilon=epsilon, power_iterations=power_iterations)), []
    handle = model.register_forward_pre_hook(lambda _, args: shown.append(args[0].detach().clone()))
    torch.manual_seed(5)
    passes = method.passes(batch)
    handle.remove()
    torch.manual_seed(5)
    start = torch.randn(batch.x.shape).numpy()
    r = (perturbed(shown, batch) - batch.x).numpy()
    runs = [reference.parameters for reference in references(model)]
    return model, batch, passes, r, start, runs


@pytest.mark.parametrize("power_iterations", [1, 2])
def test_through_batch_statistics_the_direction_is_that_of_finite_differences(power_iterations):
    """H d as second differences of the summed KL(p(x) || p(x + r)): every row's r moves every row's prediction."""
    _, batch, _, r, start, runs = batch_normed_step(1.0, power_iterations)
    h = 1e-4
    for run, parameters in enumerate(runs):
        x = batch.x[run].numpy()
        p = softmax(batch_normed(parameters, x)[0])
        divergence = lambda r, x=x, p=p, w=parameters: (  # noqa: E731
            kl(batch_normed(w, x + r)[0], p)[0] * len(x)
        )
        d = start[run]
        for _ in range(power_iterations):
            d, product, alone = unit(d), np.zeros_like(x), np.zeros_like(x)
            for entry in np.ndindex(x.shape):
                e = np.zeros_like(x)
                e[entry] = h
                own = np.zeros_like(x)
                own[entry[0]] = d[entry[0]]  # as if the other rows stood still
                for target, along in ((product, h * d), (alone, h * own)):
                    ahead = divergence(along + e) - divergence(along - e)
                    back = divergence(-along + e) - divergence(-along - e)
                    target[entry] = (ahead - back) / (4 * h * h)
            d = product
        np.testing.assert_allclose(r[run], unit(d), atol=2e-5)
        assert np.abs(unit(d) - unit(alone)).max() > 0.05  # rows do act on each other here


def test_through_batch_statistics_the_smoothness_and_its_gradient_are_those_of_finite_differences():
    """In every weight, with p(x) and r held still: the gradient flows through p(x + r) and its statistics alone."""
    model, batch, passes, r, _, runs = batch_normed_step(0.7)
    actual, h = gradients(passes.terms["consistency"], model), 1e-6
    for run, parameters in enumerate(runs):
        x = batch.x[run].numpy()
        p = softmax(batch_normed(parameters, x)[0])
        loss = lambda x=x + r[run], p=p, w=parameters: kl(batch_normed(w, x)[0], p)[0]  # noqa: E731
        np.testing.assert_allclose(passes.terms["consistency"][run].item(), loss(), rtol=1e-10)
        assert loss() > 1e-3
        for name, array in parameters.items():
            expected = np.zeros_like(array)
            for entry in np.ndindex(array.shape):
                before = array[entry]
                array[entry] = before + h
                above = loss()
                array[entry] = before - h
                expected[entry] = (above - loss()) / (2 * h)
                array[entry] = before
            np.testing.assert_allclose(actual[name][run], expected, rtol=1e-5, atol=1e-8, err_msg=name)


def test_running_means_and_variances_follow_the_labelled_pass_alone():
    model, batch, _, _, _, runs = batch_normed_step(1.0)
    for run, parameters in enumerate(runs):
        _, statistics = batch_normed(parameters, batch.labelled.x[run].numpy())
        for layer, (mean, variance) in zip([*model.hidden, model.output], statistics, strict=True):
            np.testing.assert_allclose(layer.running_mean[run], 0.001 * mean, rtol=1e-9, atol=1e-16)
            np.testing.assert_allclose(layer.running_var[run], 0.999 + 0.001 * variance, rtol=1e-12)


@pytest.mark.parametrize("normalisation", ["batch", "batch-logits"])
def test_a_convolutional_nets_running_statistics_follow_the_labelled_pass_alone(normalisation):
    """A pass over the labelled rows, and nothing besides."""
    torch.manual_seed(0)
    net = stack([SmallNet((1, 16, 16), CLASSES, noise=0.0, dropout=0.0, normalisation=normalisation)])
    twin = deepcopy(net)
    x, few = torch.randn(1, 6, 1, 16, 16), torch.randn(1, 3, 1, 16, 16)
    rows = torch.arange(6)[None]
    batch = Batch(x, rows % CLASSES, rows, Batch(few, rows[:, :3], rows[:, :3]))
    terms = VAT(make_setup(net)).passes(batch).terms
    assert all(term.item() > 0 for term in terms.values())
    twin(few)
    for name, buffer in net.named_buffers():
        torch.testing.assert_close(buffer, twin.get_buffer(name), rtol=1e-10, atol=1e-12, msg=name)
