"""Weight norm with mean-only batch normalisation, noise and dropout, against NumPy and against themselves."""

import numpy as np
import pytest
import torch
from layer_references import Weights, layer, linear_map, max_pool, randomise
from torch import Tensor, nn

from sntg.models import frozen_statistics, initialising, shared_noise, stack
from sntg.models import layers as L

# name -> (layer, the shape of one input, padding of the reference)
LAYERS = {
    "dense": (lambda: L.Dense(4, 3), (3,), 0),
    "conv valid": (lambda: L.Conv(4, 3, 3), (3, 6, 5), 0),
    "conv same": (lambda: L.Conv(4, 3, 3, "same"), (3, 6, 5), 1),
    "conv 1x1": (lambda: L.Conv(4, 3, 1), (3, 2, 2), 0),
    "dense without means": (lambda: L.Dense(4, 3, mean_only_bn=False), (3,), 0),
}
each_layer = pytest.mark.parametrize("kind", LAYERS)
each_normalised_layer = pytest.mark.parametrize("kind", [k for k in LAYERS if k != "dense without means"])


def make(kind: str, seed: int = 0) -> tuple[L.WeightNorm, tuple[int, ...], int]:
    build, event, padding = LAYERS[kind]
    return randomise(build(), seed), event, padding


def inputs(*shape: int, seed: int = 0) -> Tensor:
    """Points off the origin: a batch mean that was forgotten would show."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 1.0


def close(actual: Tensor, expected: np.ndarray | Tensor) -> None:
    np.testing.assert_allclose(actual.detach().numpy(), np.asarray(expected), rtol=1e-10, atol=1e-12)


# --- the map ---------------------------------------------------------------------------------------------------------


@each_layer
def test_a_training_pass_subtracts_the_batch_mean(kind):
    module, event, padding = make(kind)
    x = inputs(7, *event)
    close(module.train()(x), layer(x.numpy(), Weights.of(module), "train", padding))


@each_layer
def test_an_evaluation_pass_subtracts_the_running_mean(kind):
    module, event, padding = make(kind)
    x = inputs(7, *event)
    expected = layer(x.numpy(), Weights.of(module), "eval", padding)
    before = module.running_mean.clone()
    close(module.eval()(x), expected)
    assert torch.equal(module.running_mean, before)


@each_layer
def test_gradients_are_those_of_finite_differences(kind):
    """Through the norm and through the batch mean, in every parameter and in the input."""
    module, event, _ = make(kind)
    x = inputs(3, *event).requires_grad_()
    names = ("V", "g", "b")
    run = lambda x, *p: torch.func.functional_call(module, dict(zip(names, p, strict=True)), x)  # noqa: E731
    with frozen_statistics(module):
        assert torch.autograd.gradcheck(run, (x, module.V, module.g, module.b))


def test_a_new_layer_starts_as_the_recipe_says():
    torch.manual_seed(0)
    module = L.Dense(300, 200)
    assert module.V.std().item() == pytest.approx(0.05, rel=0.02)
    assert module.V.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert module.g.unique().tolist() == [1.0]
    assert module.b.unique().tolist() == [0.0]
    assert module.running_mean.unique().tolist() == [0.0]
    assert {name for name, _ in module.named_parameters()} == {"V", "g", "b"}  # all three are trained


# --- running means ---------------------------------------------------------------------------------------------------


@each_normalised_layer
def test_the_running_mean_moves_by_a_thousandth_from_zero(kind):
    module, event, padding = make(kind)
    module.running_mean.zero_()
    expected = np.zeros(4)
    for step in range(5):
        x = inputs(7, *event, seed=step)
        module(x)
        y = linear_map(x.numpy(), Weights.of(module), padding)
        expected = 0.999 * expected + 0.001 * y.mean((0, *range(2, y.ndim)))
        close(module.running_mean, expected)


@each_normalised_layer
def test_the_running_mean_follows_the_last_view(kind):
    one, event, _ = make(kind)
    both, _, _ = make(kind)
    x = inputs(2, 7, *event)
    one(x[1])
    both(x)
    close(both.running_mean, one.running_mean)


@each_normalised_layer
def test_the_running_means_of_a_stack_follow_each_runs_last_view(kind):
    alone = [make(kind, seed)[0] for seed in (1, 2)]
    together, event = stack(alone), make(kind)[1]
    x = inputs(2, 3, 7, *event)
    together(x)
    for run, module in enumerate(alone):
        module(x[run, -1])
        close(together.running_mean[run], module.running_mean)


def test_without_mean_only_normalisation_rows_do_not_know_of_each_other():
    module, event, _ = make("dense without means")
    x, before = inputs(7, *event), module.running_mean.clone()
    close(module.train()(x)[:3], module(x[:3]).detach())
    close(module.train()(x), module.eval()(x).detach())
    assert torch.equal(module.running_mean, before)


def test_the_running_mean_carries_no_gradient():
    module, event, _ = make("dense")
    module(inputs(7, *event))
    assert not module.running_mean.requires_grad


# --- views and runs --------------------------------------------------------------------------------------------------


@each_layer
def test_two_views_in_one_pass_are_two_passes(kind):
    """In value and in gradient. Views off by a constant share no mean, so mixing them would show."""
    module, event, _ = make(kind)
    x = inputs(2, 7, *event)
    x[1] += 3.0
    cotangent = torch.randn_like(module(x))

    def gradients(output: Tensor, cotangent: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(output, [module.V, module.g, module.b], cotangent))

    together = module(x)
    apart = [module(x[view]) for view in (0, 1)]
    close(together, torch.stack(apart).detach())
    separate = [gradients(apart[view], cotangent[view]) for view in (0, 1)]
    for joint, first, second in zip(gradients(together, cotangent), *separate, strict=True):
        close(joint, first + second)


@each_layer
@pytest.mark.parametrize("views", [(), (2,)])
@pytest.mark.parametrize("mode", [True, False])
def test_a_stack_of_runs_computes_what_each_run_computes_alone(kind, views, mode):
    alone = [make(kind, seed)[0].train(mode) for seed in (1, 2, 3)]
    together, event = stack(alone).train(mode), make(kind)[1]
    x = inputs(3, *views, 7, *event).requires_grad_()
    output = together(x)
    cotangent = torch.randn_like(output)
    joint = torch.autograd.grad(output, [together.V, together.g, together.b, x], cotangent)
    for run, module in enumerate(alone):
        single = module(x[run])
        close(output[run], single.detach())
        own = torch.autograd.grad(single, [module.V, module.g, module.b, x], cotangent[run])
        for name, all_runs, expected in zip("Vgb", joint[:3], own[:3], strict=True):
            np.testing.assert_allclose(all_runs[run], expected, rtol=1e-9, atol=1e-11, err_msg=name)
        close(joint[3][run], own[3][run])


# --- data-dependent initialisation -----------------------------------------------------------------------------------


@each_layer
def test_initialising_divides_g_by_the_deviation(kind):
    module, event, padding = make(kind)
    x, reference = inputs(9, *event), Weights.of(module)
    expected = layer(x.numpy(), reference, "initialise", padding)
    with torch.no_grad(), initialising(module):
        output = module(x)
    close(module.g, reference.g)
    close(module.b, reference.b)
    close(output, expected)
    close(module(x), expected)  # the pass afterwards gives what the initialising pass gave
    close(output.transpose(0, 1).flatten(1).std(1, correction=0), np.ones(4))


def test_without_mean_only_normalisation_initialising_lets_the_bias_take_the_mean_out():
    module, event, _ = make("dense without means")
    with torch.no_grad(), initialising(module):
        close(module(inputs(9, *event)).mean(0), np.zeros(4))


@each_layer
def test_initialising_moves_nothing_but_g_and_where_it_must_b(kind):
    module, event, _ = make(kind)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    with torch.no_grad(), initialising(module):
        module(inputs(9, *event))
    changed = {name for name, t in module.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == ({"g"} if module.mean_only_bn else {"g", "b"})


@each_layer
def test_initialising_a_stack_initialises_each_run_from_its_own_batch(kind):
    alone = [make(kind, seed)[0] for seed in (1, 2)]
    together, event = stack(alone), make(kind)[1]
    x = inputs(2, 9, *event)
    with torch.no_grad(), initialising(together):
        together(x)
    for run, module in enumerate(alone):
        with torch.no_grad(), initialising(module):
            module(x[run])
        close(together.g[run], module.g.detach())
        close(together.b[run], module.b.detach())


def test_an_output_that_never_varies_keeps_g_finite():
    module = L.Dense(4, 3)
    with torch.no_grad(), initialising(module):
        output = module(torch.ones(5, 3))
    assert torch.isfinite(module.g).all()
    assert torch.isfinite(output).all()


# --- noise and dropout -----------------------------------------------------------------------------------------------


def test_noise_has_the_deviation_asked_for_and_no_mean():
    torch.manual_seed(0)
    noise = L.GaussianNoise(0.15)(torch.full((500, 500), 2.0)) - 2.0
    assert noise.mean().item() == pytest.approx(0.0, abs=0.002)
    assert noise.std().item() == pytest.approx(0.15, rel=0.01)
    assert (noise / 0.15).pow(4).mean().item() == pytest.approx(3.0, rel=0.05)  # a Gaussian's kurtosis


def test_noise_of_a_stack_has_each_runs_own_deviation():
    torch.manual_seed(0)
    module = stack([L.GaussianNoise(0.1), L.GaussianNoise(0.5), L.GaussianNoise(0.0)])
    noise = module(torch.zeros(3, 2, 1000, 50))
    np.testing.assert_allclose(noise.flatten(1).std(1), [0.1, 0.5, 0.0], rtol=0.02)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_dropout_zeroes_its_share_and_scales_up_the_rest(rate):
    torch.manual_seed(0)
    output = L.Dropout(rate)(torch.full((500, 500), 3.0))
    kept = output != 0
    torch.testing.assert_close(output[kept].unique(), torch.tensor([3.0 / (1 - rate)]))
    assert kept.float().mean().item() == pytest.approx(1 - rate, abs=0.005)


def test_dropout_drops_entries_independently():
    torch.manual_seed(0)
    kept = (L.Dropout(0.5)(torch.ones(4, 5, 2000)) != 0).flatten(0, 1).double()
    correlation = torch.corrcoef(kept) - torch.eye(20)
    assert correlation.abs().max() < 0.1


def test_dropout_passes_the_gradient_where_it_kept():
    x = torch.ones(50, requires_grad=True)
    output = L.Dropout(0.5)(x)
    output.sum().backward()
    assert torch.equal(x.grad, output.detach())


PERTURBATIONS = [L.GaussianNoise(0.3), L.Dropout(0.5)]


@pytest.mark.parametrize("module", PERTURBATIONS, ids=["noise", "dropout"])
def test_evaluation_is_free_of_noise(module):
    x = torch.randn(20, 3)
    assert torch.equal(module.eval()(x), x)
    module.train()


@pytest.mark.parametrize("module", PERTURBATIONS, ids=["noise", "dropout"])
def test_passes_and_views_draw_anew(module):
    x = torch.ones(2, 100)
    first, second = module(x), module(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("module", [L.GaussianNoise(0.0), L.Dropout(0.0)], ids=["noise", "dropout"])
def test_none_of_it_changes_nothing(module):
    x = torch.randn(20, 3)
    assert torch.equal(module(x), x)


def noisy_net() -> nn.Module:
    return nn.Sequential(L.GaussianNoise(0.3), L.Dense(40, 3), L.Dropout(0.5), L.Dense(4, 40))


def test_inside_shared_noise_passes_are_identical():
    net, x = noisy_net(), torch.randn(9, 3)
    with shared_noise(net):
        first, second = net(x), net(x)
    assert torch.equal(first, second)


def test_each_block_of_shared_noise_draws_its_own():
    net, x = noisy_net(), torch.randn(9, 3)
    with shared_noise(net):
        first = net(x)
    with shared_noise(net):
        second = net(x)
    assert not torch.equal(first, second)
    assert not torch.equal(net(x), net(x))


def test_shared_noise_is_shared_by_other_inputs_of_the_same_shape():
    module = L.GaussianNoise(0.3)
    a, b = torch.zeros(9, 3), torch.ones(9, 3)
    with shared_noise(module):
        torch.testing.assert_close(module(a) - a, module(b) - b, rtol=0, atol=1e-6)


def test_another_shape_inside_shared_noise_gets_a_draw_of_its_shape():
    module = L.Dropout(0.5)
    with shared_noise(module):
        module(torch.ones(9, 3))
        assert module(torch.ones(5, 3)).shape == (5, 3)


# --- contexts --------------------------------------------------------------------------------------------------------

FLAGS = {"initialising": False, "track_statistics": True, "sharing": False, "shared": None}


def flags(net: nn.Module) -> list[tuple[str, object]]:
    return [(name, getattr(m, name)) for m in net.modules() for name in FLAGS if hasattr(m, name)]


def test_inside_frozen_statistics_running_means_stay():
    net, x = noisy_net(), torch.randn(9, 3) + 1
    with frozen_statistics(net):
        net(x)
        assert all((m.running_mean == 0).all() for m in net if isinstance(m, L.WeightNorm))
    net(x)
    assert all((m.running_mean != 0).all() for m in net if isinstance(m, L.WeightNorm))


def test_frozen_statistics_still_subtracts_the_batch_mean():
    module, event, padding = make("dense")
    x = inputs(7, *event)
    with frozen_statistics(module):
        close(module(x), layer(x.numpy(), Weights.of(module), "train", padding))


@pytest.mark.parametrize("context", [initialising, frozen_statistics, shared_noise])
def test_an_exception_inside_a_context_leaves_no_flag_set(context):
    net = noisy_net()
    fresh = flags(net)
    assert fresh  # there are flags to look at
    assert all(value == FLAGS[name] for name, value in fresh)

    def interrupted() -> None:
        with torch.no_grad(), context(net):
            net(torch.randn(9, 3))
            assert flags(net) != fresh
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert flags(net) == fresh


def test_contexts_nest():
    net, x = noisy_net(), torch.randn(9, 3)
    with frozen_statistics(net):
        with torch.no_grad(), initialising(net):
            net(x)
        net(x)  # still frozen when the inner block is left
        assert all((m.running_mean == 0).all() for m in net if isinstance(m, L.WeightNorm))


# --- pooling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3, 6, 4), (2, 5, 3, 7, 5), (2, 2, 5, 3, 4, 4)])
def test_max_pool_keeps_leading_axes(shape):
    x = inputs(*shape)
    assert np.array_equal(L.max_pool(x).numpy(), max_pool(x.numpy()))


# --- what is meant to be overridden ----------------------------------------------------------------------------------


def test_the_base_classes_compute_nothing_themselves():
    with pytest.raises(NotImplementedError):
        L.WeightNorm(2, 2)(torch.ones(3, 2))
    with pytest.raises(NotImplementedError):
        L.Perturbation()(torch.ones(3, 2))
