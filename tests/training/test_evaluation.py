"""Predictions in chunks and the error they give."""

import pytest
import torch

from sntg.models import MLP, SmallNet, modes, stack
from sntg.training.evaluation import error, predict


def make_stack(runs=3, noise=0.5):
    torch.manual_seed(0)
    return stack([MLP(2, 4, noise, hidden=8) for _ in range(runs)])


@pytest.mark.parametrize("values", [1, 7, 12, 13, 1000])
def test_chunks_change_nothing(monkeypatch, values):
    model, x = make_stack(), torch.randn(3, 13, 2)
    whole = model.eval()(x)
    monkeypatch.setattr(modes, "PASS_BYTES", 4 * values)
    parts = predict(model, x)
    torch.testing.assert_close(parts.logits, whole.logits)
    torch.testing.assert_close(parts.features, whole.features)


def test_inputs_come_to_where_the_model_is(monkeypatch):
    """A test set that does not fit on the GPU stays in the host's memory, all but what is in the pass."""
    monkeypatch.setattr(modes, "PASS_BYTES", 4 * 12)
    model, seen = make_stack().to("meta"), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].device.type))
    assert predict(model, torch.randn(3, 13, 2)).logits.device.type == "meta"
    assert len(seen) > 2
    assert set(seen) == {"meta"}


def test_no_pass_is_larger_than_a_chunk(monkeypatch):
    model, sizes = make_stack(runs=2), []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(inputs[0].numel()))
    monkeypatch.setattr(modes, "PASS_BYTES", 4 * 19)
    predict(model, torch.randn(2, 13, 2))
    assert sizes == [16, 16, 16, 4]  # 4 rows of 2 values of each of 2 runs


def test_inputs_of_half_the_size_go_through_twice_as_many_at_a_time(monkeypatch):
    model, sizes = make_stack(runs=1).double(), []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(inputs[0].shape[1]))
    monkeypatch.setattr(modes, "PASS_BYTES", 8 * 2 * 4)
    predict(model, torch.randn(1, 8, 2, dtype=torch.float64))
    predict(model.float(), torch.randn(1, 8, 2))
    assert sizes == [4, 4, 8]


def test_a_row_larger_than_a_chunk_goes_through_alone(monkeypatch):
    model, sizes = make_stack(runs=2), []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(inputs[0].numel()))
    monkeypatch.setattr(modes, "PASS_BYTES", 4 * 3)
    predict(model, torch.randn(2, 5, 2))
    assert sizes == [4] * 5


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_as_many_images_go_through_at_a_time_whatever_their_channels(monkeypatch, channels):
    """What a network makes of one takes the memory, and that has the image's pixels."""
    net, sizes = SmallNet((channels, 16, 16), 10), []
    net.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    monkeypatch.setattr(modes, "PASS_BYTES", 2 * 4 * 3 * 16 * 16)
    predict(net, torch.randn(5, channels, 16, 16))
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("shape", [(5,), (2, 5)])
def test_images_are_split_along_their_rows(monkeypatch, shape):
    monkeypatch.setattr(modes, "PASS_BYTES", 4 * 2 * 2 * 3 * 16 * 16)
    net = SmallNet((1, 16, 16), 10)
    model = net if len(shape) == 1 else stack([net, SmallNet((1, 16, 16), 10)])
    x = torch.randn(*shape, 1, 16, 16)
    parts = predict(model, x)
    assert parts.logits.shape == (*shape, 10)
    assert parts.features.shape == (*shape, 128)
    torch.testing.assert_close(parts.logits, model.eval()(x).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_it_predicts_without_noise_and_restores_the_mode(training):
    model, x = make_stack().train(training), torch.randn(3, 5, 2)
    assert torch.equal(predict(model, x).logits, predict(model, x).logits)
    assert model.training is training
    assert all(module.training is training for module in model.modules())


def test_the_mode_is_restored_after_a_failure():
    model = make_stack().train()
    with pytest.raises(RuntimeError):
        predict(model, torch.randn(3, 5, 7))
    assert model.training


def test_predictions_carry_no_gradient_and_statistics_stay():
    model = SmallNet((1, 16, 16), 10).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert not predict(model, torch.randn(3, 1, 16, 16)).logits.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_error_is_the_share_of_wrong_classes_of_each_run_in_percent():
    model, x = make_stack(), torch.randn(3, 10, 2)
    y = predict(model, x).logits.argmax(-1)
    for run, wrong in enumerate((0, 3, 10)):
        y[run, :wrong] = (y[run, :wrong] + 1) % 4
    assert error(model, x, y).tolist() == pytest.approx([0.0, 30.0, 100.0])
