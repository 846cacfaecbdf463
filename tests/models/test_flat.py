"""All parameters as one tensor: the same values, in the same order, in the same memory."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from sntg.models import MLP, SmallNet, flatten, split_like, stack


def make_parameters():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in [(3, 2), (4,), (2, 1, 3, 3), ()]]


def test_the_parameters_keep_their_values_and_shapes():
    parameters = make_parameters()
    before = [p.detach().clone() for p in parameters]
    whole = flatten(parameters)
    assert whole.shape == (6 + 4 + 18 + 1,)
    assert not whole.requires_grad
    for parameter, old in zip(parameters, before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.requires_grad
        assert parameter.is_contiguous()


def test_they_lie_end_to_end_in_the_order_given():
    parameters = make_parameters()
    assert torch.equal(flatten(parameters), torch.cat([p.detach().flatten() for p in parameters]))


def test_what_is_written_into_one_is_read_from_the_other():
    parameters = make_parameters()
    whole = flatten(parameters)
    whole.copy_(torch.arange(29.0))
    assert parameters[1].tolist() == [6.0, 7.0, 8.0, 9.0]
    with torch.no_grad():
        parameters[3].fill_(-1.0)
    assert whole[-1] == -1.0


def test_parameters_that_lie_in_one_tensor_already_stay_where_they_are():
    """The optimiser and the average of the weights then look at the same memory."""
    parameters = make_parameters()
    first = flatten(parameters)
    second = flatten(parameters)
    assert second.data_ptr() == first.data_ptr()
    assert second.shape == first.shape
    second.zero_()
    assert not first.any()


def test_some_of_them_that_lie_end_to_end_stay_too():
    parameters = make_parameters()
    whole = flatten(parameters)
    part = flatten(parameters[1:3])
    assert part.shape == (22,)
    part.zero_()
    assert not whole[6:28].any()
    assert whole[:6].all()


@pytest.mark.parametrize("chosen", [[1, 0], [0, 2], [0, 0]], ids=["another order", "a gap", "twice the same"])
def test_others_of_them_are_put_into_a_tensor_of_their_own(chosen):
    parameters = make_parameters()
    whole = flatten(parameters)
    chosen = [parameters[i] for i in chosen]
    values = [p.detach().clone() for p in chosen]
    own = flatten(chosen)
    assert own.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    assert torch.equal(own, torch.cat([v.flatten() for v in values]))


def test_a_parameter_that_is_not_contiguous_is_laid_out_anew():
    parameter = nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
    whole = flatten([parameter])
    assert whole.tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    assert torch.equal(parameter, torch.arange(6.0).reshape(2, 3).T)


def test_neighbours_in_memory_of_other_storages_are_not_taken_for_one():
    """The second begins as far into its storage as the first ends in its own."""
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(5)[2:])]
    whole = flatten(parameters)
    assert whole.tolist() == [1.0] * 5
    whole.zero_()
    assert not any(p.any() for p in parameters)


def test_gradients_reach_the_parameters_and_steps_of_the_whole_move_the_network():
    torch.manual_seed(0)
    net = MLP(2, 3, noise=0.0, hidden=4)
    twin = deepcopy(net)
    theta = flatten(list(net.parameters()))
    x = torch.randn(5, 2)
    for one in (net, twin):
        one(x).logits.square().sum().backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    theta.sub_(0.1 * torch.cat([p.grad.flatten() for p in net.parameters()]))
    with torch.no_grad():
        for q in twin.parameters():
            q.sub_(0.1 * q.grad)
    torch.testing.assert_close(net(x).logits, twin(x).logits)


def test_a_copy_of_a_flat_network_is_its_own():
    torch.manual_seed(0)
    net = SmallNet((1, 16, 16), 4)
    theta = flatten(list(net.parameters()))
    copy = deepcopy(net)
    before = [p.detach().clone() for p in copy.parameters()]
    theta.zero_()
    assert all(torch.equal(p, old) for p, old in zip(copy.parameters(), before, strict=True))
    other = flatten(list(copy.parameters()))
    assert other.untyped_storage().data_ptr() != theta.untyped_storage().data_ptr()


def test_a_loaded_state_arrives_in_the_whole():
    torch.manual_seed(0)
    net, source = (stack([MLP(2, 3, hidden=4) for _ in range(2)]) for _ in range(2))
    theta = flatten(list(net.parameters()))
    net.load_state_dict(source.state_dict())
    assert torch.equal(theta, torch.cat([p.detach().flatten() for p in source.parameters()]))


def test_the_dtype_and_the_device_are_the_parameters():
    assert flatten([nn.Parameter(torch.ones(2, dtype=torch.float64))]).dtype == torch.float64


def test_a_tensor_is_split_into_views_of_the_given_shapes():
    parameters = make_parameters()
    whole = torch.arange(29.0)
    parts = split_like(whole, parameters)
    assert [part.shape for part in parts] == [p.shape for p in parameters]
    assert torch.equal(torch.cat([part.flatten() for part in parts]), whole)
    parts[2].zero_()
    assert whole.count_nonzero() == 29 - 18 - 1  # views; the first element was 0 before
