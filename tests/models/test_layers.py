"""Weight norm with mean-only batch normalisation, full batch normalisation, and neither, against NumPy."""

import numpy as np
import pytest
import torch
from layer_references import Weights, layer, max_pool, randomise, statistics
from torch import Tensor

from sntg.models import convolutions as C
from sntg.models import frozen_statistics, initialising, stack
from sntg.models import layers as L

# name -> (layer, the shape of one input, padding of the reference)
LAYERS = {
    "dense": (lambda: L.Dense(4, 3), (3,), 0),
    "conv valid": (lambda: C.Conv(4, 3, 3), (3, 6, 5), 0),
    "conv same": (lambda: C.Conv(4, 3, 3, "same"), (3, 6, 5), 1),
    "conv 1x1": (lambda: C.Conv(4, 3, 1), (3, 2, 2), 0),
    "dense without means": (lambda: L.Dense(4, 3, mean_only_bn=False), (3,), 0),
    "batch dense": (lambda: L.BatchNormDense(4, 3), (3,), 0),
    "batch conv valid": (lambda: C.BatchNormConv(4, 3, 3), (3, 6, 5), 0),
    "batch conv same": (lambda: C.BatchNormConv(4, 3, 3, "same"), (3, 6, 5), 1),
    "affine dense": (lambda: L.AffineDense(4, 3), (3,), 0),
}
BATCH_NORMED = [kind for kind in LAYERS if kind.startswith("batch")]
WITHOUT_STATISTICS = ["dense without means", "affine dense"]
WEIGHT_NORMED = [kind for kind in LAYERS if kind not in (*BATCH_NORMED, "affine dense")]
each_layer = pytest.mark.parametrize("kind", LAYERS)
each_normalised_layer = pytest.mark.parametrize("kind", [k for k in LAYERS if k not in WITHOUT_STATISTICS])
each_batch_normed_layer = pytest.mark.parametrize("kind", BATCH_NORMED)
each_weight_normed_layer = pytest.mark.parametrize("kind", WEIGHT_NORMED)


def make(kind: str, seed: int = 0) -> tuple[L.Layer, tuple[int, ...], int]:
    build, event, padding = LAYERS[kind]
    return randomise(build(), seed), event, padding


def inputs(*shape: int, seed: int = 0) -> Tensor:
    """Points off the origin: a batch mean that was forgotten would show."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 1.0


def close(actual: Tensor, expected: np.ndarray | Tensor) -> None:
    np.testing.assert_allclose(actual.detach().numpy(), np.asarray(expected), rtol=1e-10, atol=1e-12)


# --- the map ---------------------------------------------------------------------------------------------------------


@each_layer
def test_a_training_pass_normalises_with_the_batchs_statistics(kind):
    module, event, padding = make(kind)
    x = inputs(7, *event)
    close(module.train()(x), layer(x.numpy(), Weights.of(module), "train", padding))


@each_layer
def test_an_evaluation_pass_normalises_with_the_running_statistics(kind):
    module, event, padding = make(kind)
    x = inputs(7, *event)
    expected = layer(x.numpy(), Weights.of(module), "eval", padding)
    before = [buffer.clone() for buffer in module.buffers()]
    close(module.eval()(x), expected)
    assert all(torch.equal(*pair) for pair in zip(module.buffers(), before, strict=True))


@each_layer
def test_gradients_are_those_of_finite_differences(kind):
    """Through the norm and through the batch's statistics, in every parameter and in the input."""
    module, event, _ = make(kind)
    x = inputs(3, *event).requires_grad_()
    names, parameters = zip(*module.named_parameters(), strict=True)
    run = lambda x, *p: torch.func.functional_call(module, dict(zip(names, p, strict=True)), x)  # noqa: E731
    with frozen_statistics(module):
        assert torch.autograd.gradcheck(run, (x, *parameters))


@each_batch_normed_layer
def test_a_batch_that_hardly_varies_is_divided_by_what_the_small_constant_leaves(kind):
    """Outputs of a variance of about 1e-6, as large as the constant beside it."""
    module, event, padding = make(kind)
    x = 1e-3 * inputs(7, *event)
    close(module(x), layer(x.numpy(), Weights.of(module), "train", padding))
    assert module(torch.zeros(5, *event, dtype=torch.float64)).isfinite().all()


@each_batch_normed_layer
def test_a_batch_normed_output_has_the_mean_b_and_the_deviation_g(kind):
    module, event, _ = make(kind)
    outputs = module(inputs(7, *event)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(outputs.mean(1), module.b, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(outputs.std(1, correction=0), module.g, rtol=1e-4, atol=1e-6)


def test_a_new_layer_starts_as_the_recipe_says():
    torch.manual_seed(0)
    module = L.Dense(300, 200)
    assert module.V.std().item() == pytest.approx(0.05, rel=0.02)
    assert module.V.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert module.g.unique().tolist() == [1.0]
    assert module.b.unique().tolist() == [0.0]
    assert module.running_mean.unique().tolist() == [0.0]
    assert {name for name, _ in module.named_parameters()} == {"V", "g", "b"}  # all three are trained


@pytest.mark.parametrize(
    ("kind", "shape", "fan_in"),
    [(L.BatchNormDense, (300, 200), 200), (C.BatchNormConv, (100, 50, 3), 450), (L.AffineDense, (300, 200), 200)],
)
def test_layers_without_weight_norm_start_as_he_et_al_do(kind, shape, fan_in):
    """V ~ N(0, 2 / inputs of an output): a ReLU then keeps the second moment from layer to layer."""
    torch.manual_seed(0)
    module = kind(*shape)
    assert module.V.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.02)
    assert module.V.mean().item() == pytest.approx(0.0, abs=0.002)
    assert (module.V / module.V.std()).pow(4).mean().item() == pytest.approx(3.0, rel=0.05)  # a Gaussian's kurtosis
    assert module.b.unique().tolist() == [0.0]


@each_batch_normed_layer
def test_a_new_batch_normed_layer_starts_with_unit_scale_and_unit_statistics(kind):
    module = LAYERS[kind][0]()
    assert module.g.unique().tolist() == [1.0]
    assert module.running_mean.unique().tolist() == [0.0]
    assert module.running_var.unique().tolist() == [1.0]
    assert {name for name, _ in module.named_parameters()} == {"V", "g", "b"}  # all three are trained


def test_an_affine_layer_trains_a_map_and_a_bias_alone():
    assert {name for name, _ in L.AffineDense(4, 3).named_parameters()} == {"V", "b"}


# --- running statistics ----------------------------------------------------------------------------------------------


def running(module: L.Layer) -> list[Tensor]:
    """The running statistics a layer has."""
    return [getattr(module, name) for name in ("running_mean", "running_var") if hasattr(module, name)]


@pytest.mark.parametrize("momentum", [0.999, 0.9])
@each_normalised_layer
def test_running_statistics_move_by_what_the_momentum_leaves(kind, momentum):
    """By a thousandth unless told."""
    module, event, padding = make(kind)
    if momentum != 0.999:
        module.bn_momentum = momentum
    expected = [statistic.numpy().copy() for statistic in running(module)]
    for step in range(5):
        x = (1 + step) * inputs(7, *event, seed=step)
        module(x)
        batch = statistics(x.numpy(), Weights.of(module), padding)
        for number, statistic in enumerate(running(module)):
            expected[number] = momentum * expected[number] + (1 - momentum) * batch[number]
            close(statistic, expected[number])
    assert len(expected) == (2 if kind in BATCH_NORMED else 1)


@each_normalised_layer
def test_running_statistics_follow_the_last_view(kind):
    one, event, _ = make(kind)
    both, _, _ = make(kind)
    x = inputs(2, 7, *event)
    one(x[1])
    both(x)
    for statistic, of_one in zip(running(both), running(one), strict=True):
        close(statistic, of_one)


@each_normalised_layer
def test_the_running_statistics_of_a_stack_follow_each_runs_last_view(kind):
    alone = [make(kind, seed)[0] for seed in (1, 2)]
    together, event = stack(alone), make(kind)[1]
    x = inputs(2, 3, 7, *event)
    together(x)
    for run, module in enumerate(alone):
        module(x[run, -1])
        for statistic, of_run in zip(running(together), running(module), strict=True):
            close(statistic[run], of_run)


@pytest.mark.parametrize("kind", WITHOUT_STATISTICS)
def test_without_batch_normalisation_rows_do_not_know_of_each_other(kind):
    module, event, _ = make(kind)
    x, before = inputs(7, *event), module.running_mean.clone()
    close(module.train()(x)[:3], module(x[:3]).detach())
    close(module.train()(x), module.eval()(x).detach())
    assert torch.equal(module.running_mean, before)


@each_normalised_layer
def test_running_statistics_carry_no_gradient(kind):
    module, event, _ = make(kind)
    module(inputs(7, *event))
    assert not any(statistic.requires_grad for statistic in running(module))


# --- views and runs --------------------------------------------------------------------------------------------------


@each_layer
def test_two_views_in_one_pass_are_two_passes(kind):
    """In value and in gradient. Views off by a constant share no mean, so mixing them would show."""
    module, event, _ = make(kind)
    x = inputs(2, 7, *event)
    x[1] += 3.0
    cotangent = torch.randn_like(module(x))

    def gradients(output: Tensor, cotangent: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(output, list(module.parameters()), cotangent))

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
    joint = torch.autograd.grad(output, [*together.parameters(), x], cotangent)
    for run, module in enumerate(alone):
        single = module(x[run])
        close(output[run], single.detach())
        own = torch.autograd.grad(single, [*module.parameters(), x], cotangent[run])
        names = [name for name, _ in module.named_parameters()]
        for name, all_runs, expected in zip(names, joint[:-1], own[:-1], strict=True):
            np.testing.assert_allclose(all_runs[run], expected, rtol=1e-9, atol=1e-11, err_msg=name)
        np.testing.assert_allclose(joint[-1][run], own[-1][run], rtol=1e-9, atol=1e-11)


# --- data-dependent initialisation -----------------------------------------------------------------------------------


@each_weight_normed_layer
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


@each_weight_normed_layer
def test_initialising_moves_nothing_but_g_and_where_it_must_b(kind):
    module, event, _ = make(kind)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    with torch.no_grad(), initialising(module):
        module(inputs(9, *event))
    changed = {name for name, t in module.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == ({"g"} if module.mean_only_bn else {"g", "b"})


@each_weight_normed_layer
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


@pytest.mark.parametrize("kind", [*BATCH_NORMED, "affine dense"])
def test_initialising_leaves_layers_without_weight_norm_as_they_were(kind):
    module, event, padding = make(kind)
    x, before = inputs(9, *event), {name: t.clone() for name, t in module.state_dict().items()}
    with torch.no_grad(), initialising(module):
        output = module(x)
    close(output, layer(x.numpy(), Weights.of(module), "train", padding))
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_an_output_that_never_varies_keeps_g_finite():
    module = L.Dense(4, 3)
    with torch.no_grad(), initialising(module):
        output = module(torch.ones(5, 3))
    assert torch.isfinite(module.g).all()
    assert torch.isfinite(output).all()


# --- pooling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3, 6, 4), (2, 5, 3, 7, 5), (2, 2, 5, 3, 4, 4)])
def test_max_pool_keeps_leading_axes(shape):
    x = inputs(*shape)
    assert np.array_equal(C.max_pool(x).numpy(), max_pool(x.numpy()))


# --- what is meant to be overridden ----------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [L.WeightNorm, L.BatchNorm, L.Affine])
def test_the_normalisations_have_no_linear_map_of_their_own(base):
    with pytest.raises(NotImplementedError):
        base(2, 2)(torch.ones(3, 2))


# --- 16 bit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [L.Dense, L.BatchNormDense])
def test_16_bit_outputs_have_their_means_taken_in_float32(layer):
    """Outputs around 300 that vary by a few: a mean in bfloat16 would be off by up to one."""
    torch.manual_seed(0)
    module = layer(4, 1).to(torch.bfloat16).train()
    with torch.no_grad():
        module.V.fill_(1.0)
        module.g.fill_(1.0)
    module.running_mean = module.running_mean.float()
    x = (torch.randn(2000, 1) * 4 + 300.7).to(torch.bfloat16)
    output = module(x)
    assert output.dtype == torch.bfloat16
    assert module.batch_mean(x).dtype == torch.float32
    assert module.batch_mean(x).item() == pytest.approx(x.double().mean().item(), abs=1e-3)
    assert output.double().mean().abs() < 0.02
