"""f = g . h, and stacks of networks that behave as each network does alone."""

import numpy as np
import pytest
import torch
from layer_references import randomise

from sntg.models import MLP, Classifier, Output, SmallNet, stack, unstack

NETS = {
    "mlp": (lambda: MLP(2, 3, noise=0.0, hidden=6), (2,)),
    "small": (lambda: SmallNet((1, 16, 16), 3, noise=0.0, dropout=0.0), (1, 16, 16)),
    "small batch": (lambda: SmallNet((1, 16, 16), 3, 0.0, 0.0, "batch"), (1, 16, 16)),
    "small batch-logits": (lambda: SmallNet((1, 16, 16), 3, 0.0, 0.0, "batch-logits"), (1, 16, 16)),
}
each_net = pytest.mark.parametrize("kind", NETS)


def make(kind: str, seed: int) -> Classifier:
    return randomise(NETS[kind][0](), seed)


def inputs(kind: str, *leading: int) -> torch.Tensor:
    return torch.randn(*leading, *NETS[kind][1], dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def gradients(net: Classifier, output: Output) -> dict[str, torch.Tensor]:
    """Of a sum that weighs logits and features unevenly, so that no entry can hide."""
    net.zero_grad()
    sum((t.square() * torch.linspace(0.5, 1.5, t.shape[-1])).sum() for t in output).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters()}


@each_net
def test_h_and_g_compose_to_the_forward_pass(kind):
    net, x = make(kind, 0), inputs(kind, 4)
    output = net(x)
    assert isinstance(output, Output)
    assert torch.equal(output.features, net.h(x))
    assert torch.equal(output.logits, net.g(output.features))


@each_net
@pytest.mark.parametrize("mode", [True, False])
def test_a_stack_computes_what_each_network_computes_alone(kind, mode):
    alone = [make(kind, seed).train(mode) for seed in (1, 2)]
    together, x = stack(alone).train(mode), inputs(kind, 2, 4)
    output = together(x)
    # One run's loss at a time, so that what leaks from a run to another shows.
    for run, net in enumerate(alone):
        own = net(x[run])
        torch.testing.assert_close(output.logits[run], own.logits, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(output.features[run], own.features, rtol=1e-10, atol=1e-12)
        joint = gradients(together, Output(*(t[run] for t in together(x))))
        for name, gradient in gradients(net, own).items():
            np.testing.assert_allclose(joint[name][run], gradient, rtol=1e-8, atol=1e-10, err_msg=name)
            assert (joint[name][1 - run] == 0).all(), name


@each_net
def test_two_views_in_one_pass_are_two_passes(kind):
    net, x = make(kind, 0), inputs(kind, 2, 4)
    together = net(x)
    for view in (0, 1):
        alone = net(x[view])
        torch.testing.assert_close(together.logits[view], alone.logits, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(together.features[view], alone.features, rtol=1e-10, atol=1e-12)


@each_net
def test_two_views_of_two_runs_keep_their_places(kind):
    alone = [make(kind, seed) for seed in (1, 2)]
    x = inputs(kind, 2, 3, 4)
    output = stack(alone)(x)
    for run, net in enumerate(alone):
        for view in range(3):
            torch.testing.assert_close(output.logits[run, view], net(x[run, view]).logits, rtol=1e-10, atol=1e-12)


@each_net
def test_a_network_taken_out_of_a_stack_is_the_one_put_in(kind):
    alone = [make(kind, seed) for seed in (1, 2)]
    for run, net in enumerate(alone):
        out = unstack(stack(alone), run)
        assert out.state_dict().keys() == net.state_dict().keys()
        for name, tensor in net.state_dict().items():
            assert torch.equal(out.state_dict()[name], tensor), name
        assert all(p.requires_grad and p.is_leaf for p in out.parameters())


def test_stacks_share_no_memory_with_their_networks():
    alone = [make("mlp", seed) for seed in (1, 2)]
    together = stack(alone)
    out = unstack(together, 0)
    before = alone[0].hidden[0].V.detach().clone()
    with torch.no_grad():
        together.hidden[0].V.zero_()
        together.hidden[0].running_mean.zero_()
    for net in (alone[0], out):
        assert torch.equal(net.hidden[0].V, before)
        assert (net.hidden[0].running_mean != 0).all()


def test_noise_levels_go_in_and_come_out():
    together = stack([MLP(2, 3, noise=0.1), MLP(2, 3, noise=0.4)])
    torch.testing.assert_close(together.noises[0].std, torch.tensor([0.1, 0.4]))
    assert unstack(together, 1).noises[0].std.item() == pytest.approx(0.4)


def test_the_base_class_has_neither_h_nor_g():
    with pytest.raises(NotImplementedError):
        Classifier()(torch.ones(1, 2))
    with pytest.raises(NotImplementedError):
        Classifier().g(torch.ones(1, 2))
