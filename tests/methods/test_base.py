"""What every method has: views, the average of the student's weights, and a state to go back to."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from method_fixtures import (
    BASES,
    CLASSES,
    OPTIONS,
    RUNS,
    N,
    Recorder,
    changes,
    distinct_images,
    gradients,
    make_batch,
    make_model,
    make_setup,
    randomise,
    unchanged,
)

from sntg.data import flip, translate
from sntg.losses import consistency_mse
from sntg.methods import METHODS, Batch, Method, Setup
from sntg.models import MLP

EMAS = [0.99, 0.5, 0.9, 0.999, 0.0]  # a momentum may differ from step to step
each_base = pytest.mark.parametrize("base", BASES)


def make(base: str, noise: float = 0.0) -> Method:
    return METHODS[base](make_setup(make_model(0, noise)))


def arrays(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


# --- the average -----------------------------------------------------------------------------------------------------


@each_base
def test_the_average_follows_its_formula_step_after_step(base):
    """theta' <- ema theta' + (1 - ema) theta, starting at the student's weights, not at zero."""
    method = make(base)
    mean = arrays(method.model)
    for ema in EMAS:
        randomise(method.model)
        method.after_step(ema)
        mean = {name: ema * mean[name] + (1 - ema) * p for name, p in arrays(method.model).items()}
        for name, p in arrays(method.averaged()).items():
            np.testing.assert_allclose(p, mean[name], rtol=1e-12, atol=1e-15, err_msg=name)


@each_base
def test_the_average_starts_at_the_students_weights_but_does_not_share_them(base):
    method = make(base)
    assert method.average is not method.model
    start = arrays(method.model)
    randomise(method.model)
    for name, p in arrays(method.average).items():
        np.testing.assert_array_equal(p, start[name], err_msg=name)


@each_base
def test_moving_the_average_leaves_the_student_alone(base):
    method = make(base)
    randomise(method.average)
    before = arrays(method.model)
    method.after_step(0.9)
    method.averaged()
    for name, p in arrays(method.model).items():
        np.testing.assert_array_equal(p, before[name], err_msg=name)


@each_base
def test_no_gradient_reaches_the_average(base):
    method = make(base)
    randomise(method.average)
    for term in method.passes(make_batch(0)).terms.values():
        gradients(term, method.model)
    method.after_step(0.9)
    assert all(p.grad is None and not p.requires_grad for p in method.average.parameters())
    assert all(p.requires_grad for p in method.model.parameters())


@pytest.mark.parametrize("base", [base for base in BASES if base != "mt"])
def test_the_average_is_evaluated_with_the_students_running_statistics(base):
    method = make(base)
    for seed in range(3):
        method.passes(make_batch(seed))
        method.after_step(0.9)
    averaged = method.averaged()
    means = {name: b for name, b in method.model.named_buffers() if name.endswith("running_mean")}
    assert all(mean.abs().max() > 0 for mean in means.values())
    for name, buffer in averaged.named_buffers():
        assert torch.equal(buffer, method.model.get_buffer(name)), name
    # A copy: the student's next pass is not yet the average's.
    method.passes(make_batch(3))
    assert not any(torch.equal(mean, averaged.get_buffer(name)) for name, mean in means.items())


def test_mean_teachers_average_keeps_the_running_statistics_of_its_own_passes():
    method = make("mt")
    randomise(method.average)
    before = deepcopy(method.average)
    method.passes(make_batch(0))
    before(make_batch(0).x)
    for name, buffer in method.averaged().named_buffers():
        assert torch.equal(buffer, before.get_buffer(name)), name
        if name.endswith("running_mean"):
            assert not torch.equal(buffer, method.model.get_buffer(name)), name


@each_base
def test_evaluating_the_average_is_evaluating_the_averaged_weights(base):
    """A network of the same shape given the NumPy average and the right running means says the same."""
    method = make(base)
    mean = arrays(method.model)
    for seed in range(3):
        method.passes(make_batch(seed))
        randomise(method.model)
        method.after_step(0.8)
        mean = {name: 0.8 * mean[name] + 0.2 * p for name, p in arrays(method.model).items()}
    twin = deepcopy(method.average if base == "mt" else method.model)
    twin.load_state_dict({name: torch.from_numpy(p) for name, p in mean.items()}, strict=False)
    x = make_batch(5).x
    torch.testing.assert_close(method.averaged().eval()(x).logits, twin.eval()(x).logits, rtol=1e-10, atol=1e-12)


# --- views -----------------------------------------------------------------------------------------------------------


@each_base
def test_a_view_is_flipped_before_it_is_moved(base):
    order = []

    def noted(name: str):
        return lambda x: (order.append(name), x)[1]

    method = METHODS[base](make_setup(make_model(0), noted("augment"), flip=noted("flip")))
    assert method.view(make_batch(0).x).shape == (RUNS, N, 2)
    assert order == ["flip", "augment"]


@each_base
def test_every_image_a_network_is_shown_has_been_flipped_and_moved(base):
    torch.manual_seed(0)
    images, n = distinct_images(40), 40
    labels, rows = torch.randint(0, CLASSES, (RUNS, n)), torch.arange(n).expand(RUNS, n)
    batch = Batch(images, labels, rows, Batch(images, labels, rows))
    method = METHODS[base](make_setup(Recorder(), lambda x: translate(x, 1), points=n, flip=flip, power_iterations=0))
    method.passes(batch)
    shown = method.model.shown + method.average.shown
    if base == "vat":
        shown = [shown[0], shown[-1][:, n:]]  # the clean pass and the labelled rows; x + r is no image of the set
    for views in shown:
        for view in views.swapaxes(0, 1) if views.ndim == 6 else [views]:
            found = changes(view, images, 1)
            assert 0.3 < np.mean([mirrored for mirrored, *_ in found]) < 0.7
            assert len({(down, right) for _, down, right in found}) == 9


@each_base
def test_unless_told_nothing_is_mirrored(base):
    setup = Setup(Recorder(), unchanged, consistency_mse, 4, CLASSES, OPTIONS)
    assert torch.equal(METHODS[base](setup).view(distinct_images(4)), distinct_images(4))


# --- state -----------------------------------------------------------------------------------------------------------


def step(method: Method, seed: int) -> dict[str, torch.Tensor]:
    """A step's terms; the student then moves, as an optimiser would move it, and the average after it."""
    torch.manual_seed(seed)
    terms = method.passes(make_batch(seed)).terms
    with torch.no_grad():
        for p in method.model.parameters():
            p += 0.1 * torch.randn(p.shape)
    method.after_step(0.9)
    return {name: term.detach().clone() for name, term in terms.items()}


@each_base
def test_a_method_that_goes_back_to_a_state_goes_on_alike(base):
    """In the middle of an epoch: what a step computes, what the epoch's end makes of it, and the average."""
    method = make(base, noise=0.2)
    for seed in range(3):
        step(method, seed)
        if seed == 1:
            method.after_epoch()
    state = {name: tensor.clone() for name, tensor in method.state().items()}

    resumed = METHODS[base](make_setup(deepcopy(method.model)))
    resumed.load_state(state)
    forgetful = METHODS[base](make_setup(deepcopy(method.model)))
    for seed in range(3, 7):
        expected, actual, without = step(method, seed), step(resumed, seed), step(forgetful, seed)
        for name, term in expected.items():
            assert torch.equal(actual[name], term), (seed, name)
        if base in ("mt", "tempens"):  # where the state matters to the terms, its loss would show
            assert not torch.equal(without["consistency"], expected["consistency"])
        if seed == 4:
            for each in (method, resumed, forgetful):
                each.after_epoch()
    x = make_batch(9).x
    logits = [m.averaged().eval()(x).logits for m in (method, resumed, forgetful)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


@each_base
def test_a_state_holds_the_averages_weights_and_running_means_under_their_names(base):
    method = make(base)
    step(method, 0)
    state = method.state()
    for name, tensor in method.average.state_dict().items():
        assert torch.equal(state[f"average.{name}"], tensor)
    others = {name for name in state if not name.startswith("average.")}
    assert others == ({"Z", "z", "seen", "visits"} if base == "tempens" else set())


@each_base
def test_a_state_from_before_the_first_batch_is_one_too(base):
    method, resumed = make(base), METHODS[base](make_setup(make_model(1)))
    randomise(method.average)
    resumed.load_state(method.state())
    for name, p in arrays(resumed.average).items():
        np.testing.assert_array_equal(p, arrays(method.average)[name])
    resumed.passes(make_batch(0))


def test_the_base_class_computes_nothing_itself():
    with pytest.raises(NotImplementedError):
        Method(make_setup(MLP(2, CLASSES))).passes(make_batch(0))
