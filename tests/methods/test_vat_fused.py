"""VAT through the GPU's kernels: its direction from the network's own derivative, and whole steps.

On a GPU where there is one, else in Triton's interpreter, which truncates to bfloat16 where a GPU rounds. It is chosen
for a whole process before Triton is imported, so one test here runs this file again in a process of its own.
"""

from copy import deepcopy
from unittest import mock

import pytest
import torch
from interpreter import DEVICE, INTERPRETED, needs_kernels, run_in_interpreter

from sntg.adversarial import adversarial_direction
from sntg.graph import HardGraph
from sntg.methods import Batch, GraphTerm, Objective, Setup
from sntg.methods.vat import VAT
from sntg.models import (
    NORMALISATIONS,
    SmallNet,
    convolutions,
    frozen_statistics,
    shared_noise,
    stack,
    use_precision,
    without_kernels,
)
from sntg.models.operators import can_fuse

CLASSES, IMAGE = 4, (3, 16, 16)
each_normalisation = pytest.mark.parametrize("normalisation", NORMALISATIONS)
each_full_normalisation = pytest.mark.parametrize("normalisation", ["batch", "batch-logits"])


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """In the interpreter the kernels apply to images on a CPU too. Weights are float32, as in training, and so are
    products here: tf32 is the layout of images alone."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if INTERPRETED:
        monkeypatch.setattr(
            convolutions, "can_fuse", lambda x, channels: x.dtype != torch.float64 and channels % 32 == 0
        )


def make_net(normalisation, precision, fused=True, image=IMAGE, noise=0.1, dropout=0.5):
    """A network with noise and dropout, whose g and b are not what they start as; tf32 is float32 on a CPU."""
    torch.manual_seed(0)
    net = stack([SmallNet(image, CLASSES, noise, dropout, normalisation)])
    for name, parameter in net.named_parameters():
        if name.endswith((".g", ".b")):
            parameter.data += torch.empty_like(parameter).uniform_(-0.4, 0.4)
    return use_precision(net.train(), precision, fused).to(DEVICE)


def images(n, seed=0, image=IMAGE):
    return torch.randn(1, n, *image, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def in_float64(net):
    """The same network in float64 and without kernels, with the noise and the masks that it shares."""
    copy = use_precision(deepcopy(net), "float32").double()
    for module in copy.modules():
        if getattr(module, "shared", None) is not None:
            module.shared = module.shared.double()
    return copy


def logits_of(net):
    return lambda x: net(x).logits


def unusable(x):
    raise AssertionError("the network knows its derivative: another pass is not needed")


def cosines(a, b):
    a, b = (t.double().flatten(2) for t in (a, b))
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)


# --- the direction ---------------------------------------------------------------------------------------------------


def direction(predict, x, power_iterations, linearised=None):
    """Always from the same start."""
    start = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x)
    with mock.patch("torch.randn", return_value=start):
        return adversarial_direction(predict, x, 3, power_iterations, linearised=linearised)


@needs_kernels
@pytest.mark.parametrize(
    ("normalisation", "precision", "cosine"),
    [
        ("batch", "tf32", 0.9999),
        ("batch", "bfloat16", 0.95),
        ("batch-logits", "tf32", 0.9999),
        ("batch-logits", "float16", 0.98),
    ],
)
def test_the_direction_is_that_of_float64(normalisation, precision, cosine):
    """In 16 bits some pre-activations are on the other side of zero and some windows have another winner, so it cannot
    be exactly that; but it is as near as what PyTorch makes of the same network."""
    net, x = make_net(normalisation, precision), images(6)
    with shared_noise(net), frozen_statistics(net):
        _, linearised = net.linearised(x)
        for power_iterations in (1, 3):
            found = direction(unusable, x, power_iterations, linearised)
            exact = direction(logits_of(in_float64(net)), x.double(), power_iterations)
            with without_kernels(net):
                plain = direction(logits_of(net), x, power_iterations)
            assert found.dtype == torch.float32
            assert float(cosines(found, exact).mean()) > max(cosine, float(cosines(plain, exact).mean()) - 0.01)


@needs_kernels
@each_full_normalisation
def test_what_the_network_pulls_back_is_the_transpose_of_what_it_pushes(normalisation):
    net, x = make_net(normalisation, "tf32"), images(6)
    with shared_noise(net), frozen_statistics(net), torch.no_grad():
        output, linearised = net.linearised(x)
        d, v = images(6, seed=1), torch.randn(output.logits.shape, device=DEVICE)
        logits, tangent, pull = linearised(d)
        torch.testing.assert_close(logits, output.logits)
        assert float((v * tangent).sum()) == pytest.approx(float((pull(v) * d).sum()), rel=1e-4)


@needs_kernels
def test_where_predictions_are_all_but_certain_float16_still_finds_the_direction():
    """Logits 20 apart: what is pulled back is of the order of 1e-9."""
    net, x = make_net("batch", "float16"), images(6)
    net.output.b.data[0, 0] += 20.0
    with shared_noise(net), frozen_statistics(net):
        _, linearised = net.linearised(x)
        found = direction(unusable, x, 1, linearised)
        exact = direction(logits_of(in_float64(net)), x.double(), 1)
    assert float(cosines(found, exact).mean()) > 0.98


@needs_kernels
def test_a_network_that_is_only_partly_fused_leaves_its_derivative_to_pytorch():
    """18 x 18 images: the second pooling would halve 7 pixels."""
    image = (3, 18, 18)
    net, x = make_net("batch", "tf32", image=image), images(4, image=image)
    assert net.linearised(x)[1] is None
    assert torch.isfinite(vat_loss(net, x, images(4, seed=1, image=image))())


@needs_kernels
def test_a_mean_only_network_leaves_its_derivative_to_pytorch():
    """It has kernels for the pass, but none that tell its derivative."""
    net, x = make_net("mean-only", "tf32"), images(6)
    with shared_noise(net), frozen_statistics(net):
        with mock.patch.object(convolutions, "shifted_leaky", wraps=convolutions.shifted_leaky) as kernel:
            output, linearised = net.linearised(x)
        with without_kernels(net):
            plain = net(x)
    assert kernel.called
    assert linearised is None
    torch.testing.assert_close(output, plain, rtol=1e-4, atol=1e-5)
    assert torch.isfinite(vat_loss(net, x, images(4, seed=1))())


# --- a step ----------------------------------------------------------------------------------------------------------


def make_vat(net, **options):
    given = {"epsilon": 2.0, "power_iterations": 1, "xi": 0.0, "graph_features": "clean"} | options
    return VAT(Setup(net, lambda x: x, None, 100, CLASSES, given))


def vat_loss(net, x, few, **options):
    """The sum of the terms of vat+ent+sntg, as a function without arguments."""
    objective = Objective(make_vat(net, **options), ent=True, graph_term=GraphTerm(HardGraph()))
    rows = torch.arange(x.shape[1], device=DEVICE)[None]
    labelled = Batch(few, rows[:, : few.shape[1]] % CLASSES, rows[:, : few.shape[1]])
    return lambda: torch.stack(list(objective(Batch(x, rows % CLASSES, rows, labelled))[0].values())).sum()


def step(normalisation, fused, backend=None, **options):
    """The loss, every gradient and the buffers after a step of VAT in float32; every draw is the same."""
    net = make_net(normalisation, "tf32", fused)
    run = vat_loss(net, images(6), images(4, seed=1), **options)
    if backend is not None:
        torch._dynamo.reset()
        run = torch.compile(run, backend=backend, fullgraph=True, dynamic=False)
    torch.manual_seed(2)
    loss = run()
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in net.named_parameters()}, dict(net.named_buffers())


def assert_same_step(found, expected):
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-4)
    for name, gradient in expected[1].items():
        assert float((found[1][name] - gradient).norm()) < 1e-4 * float(gradient.norm()), name
    for name, buffer in expected[2].items():
        torch.testing.assert_close(found[2][name], buffer, rtol=1e-5, atol=1e-6, msg=name)


@needs_kernels
@pytest.mark.parametrize(
    ("normalisation", "options"),
    [
        ("mean-only", {}),
        ("batch", {}),
        ("batch", {"graph_features": "perturbed"}),
        ("batch-logits", {"power_iterations": 2}),
        ("batch", {"xi": 1e-2}),
    ],
    ids=str,
)
def test_a_step_is_the_same_with_kernels_and_without(normalisation, options):
    assert_same_step(step(normalisation, True, **options), step(normalisation, False, **options))


@needs_kernels
@pytest.mark.parametrize("normalisation", ["mean-only", "batch-logits"])
def test_a_compiled_step_is_the_same(normalisation):
    assert_same_step(step(normalisation, True, "aot_eager"), step(normalisation, False))


@needs_kernels
@each_full_normalisation
def test_a_compiled_step_has_nothing_of_pytorchs_forward_mode(normalisation):
    """With it the compiler would not look the step up in its cache, but trace it anew at every start."""
    graphs = []

    def look(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step(normalisation, True, look)
    (graph,) = graphs
    called = [f"{getattr(node.target, '__module__', '')} {node.target}" for node in graph.graph.nodes]
    assert any("leaky_linear" in name for name in called)
    assert not [name for name in called if "functorch" in name]


@needs_kernels
def test_the_bits_of_a_step_repeat(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # as a run does
    first, second = step("batch", True), step("batch", True)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(gradient, second[1][name]) for name, gradient in first[1].items())


@needs_kernels
def test_all_unlabelled_passes_share_their_noise_and_masks():
    """Without a perturbation the last pass is the first: no divergence is left."""
    net = make_net("batch", "tf32")
    x, few, rows = images(6), images(4, seed=1), torch.arange(6, device=DEVICE)[None]
    batch = Batch(x, rows, rows, Batch(few, rows[:, :4] % CLASSES, rows[:, :4]))
    terms = make_vat(net, epsilon=0.0).passes(batch).terms
    assert abs(float(terms["consistency"])) < 1e-6


@needs_kernels
@each_normalisation
def test_running_statistics_follow_the_labelled_pass_alone(normalisation):
    net, alone = (make_net(normalisation, "tf32", noise=0.0, dropout=0.0) for _ in range(2))
    few = images(4, seed=1)
    vat_loss(net, images(6), few)()
    alone(few)
    for name, buffer in net.named_buffers():
        torch.testing.assert_close(buffer, alone.get_buffer(name), rtol=1e-5, atol=1e-7, msg=name)


@needs_kernels
def test_images_that_come_in_16_bits_are_perturbed_in_32():
    """The direction before it has unit length may be below all that float16 can hold."""
    net, seen = make_net("batch", "bfloat16"), []
    net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x, few = images(6).half(), images(4, seed=1).half()
    assert torch.isfinite(vat_loss(net, x, few)())
    assert seen[-1].dtype == torch.float32
    length = (seen[-1][:, :6] - x).flatten(2).norm(dim=-1)  # the labelled images share that pass
    torch.testing.assert_close(length, torch.full_like(length, 2.0), rtol=1e-3, atol=0)


def test_images_on_a_cpu_are_not_fused():
    assert not can_fuse(torch.zeros(2, 3, 16, 16), 32)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's run")
def test_all_of_this_in_the_interpreter():
    run_in_interpreter(__file__)
