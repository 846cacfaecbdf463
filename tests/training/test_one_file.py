"""The package's loop against an implementation in one file that has no code in common with it, studies/one_file.py.

Both train the paper's network in float64 on the same batches and the same noisy views. What each draws for itself
cannot be compared; the other's draws are looked at alone.
"""

import pytest
import torch
from study_scripts import load_study

from sntg.data import Dataset, Split, whiten
from sntg.models import Conv13, initialising
from sntg.training import resolve
from sntg.training.evaluation import predict
from sntg.training.inputs import Inputs
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness
from sntg.training.schedules import Schedule

POINTS, LABELLED, BATCH, SIDE, K = 24, 8, 6, 16, 0.1
EPOCHS, RAMP_UP, RAMP_DOWN = 30, 8, 5  # a step an epoch
TAKEN = [0, 1, 2, 3, 4, 23, 24, 25, 26, 27, 28, 29]  # without most of the middle
LAYERS = [*(f"blocks.{i}.{j}" for i in range(3) for j in range(3)), "output"]


@pytest.fixture(scope="module")
def one_file():
    return load_study("one_file")


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def make_config():
    """One step an epoch; nothing is drawn but batches."""
    still = {"noise": 0.0, "dropout": 0.0, "flip": False, "translate": 0, "whitening": "none"}
    span = {"epochs": EPOCHS, "epoch_steps": 1, "ramp_up": RAMP_UP, "ramp_down": RAMP_DOWN, "batch": BATCH}
    return resolve("cifar10", 4000, "pi+sntg", k=K, eval_every=EPOCHS, engine="eager", **(still | span))


def make_inputs():
    y = torch.arange(POINTS) % 10
    x = torch.randn(POINTS, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.arange(POINTS) < LABELLED, y, -1)
    data = Dataset("cifar10", x, y, x[:10].clone(), y[:10].clone(), 10)
    return Inputs(data, labels, Split(labels, torch.zeros(0, dtype=torch.long)))


class Views:
    """Noisy views that both implementations see: what the package was shown is shown to the other in the same order."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)
        self.seen = []

    def new(self, x):
        self.seen.append(x + 0.3 * torch.randn(x.shape, generator=self.generator))
        return self.seen[-1]

    def again(self, padded, rows, views):
        return torch.cat([self.seen.pop(0)[0] for _ in range(views)])


def flat_weights(one_file, state, prefix):
    flat = torch.zeros(one_file.ENDS[-1])
    names = [f"{prefix}{layer}.{part}" for layer in LAYERS for part in ("V", "g", "b")]
    for part, name in zip(one_file.parts_of(flat), names, strict=True):
        part.copy_(state[name][0])
    return flat


def relative(one, other):
    return ((one - other).norm() / other.norm()).item()


def train_package(views):
    """A run, the state it began with, and the rows of each of its steps."""
    config, rows = make_config(), []
    with own_randomness(config):
        stack = Stack([config], [make_inputs()])
        begun = {name: tensor.clone() for name, tensor in stack.state().items()}
        stack.objective.base.augment = views.new
        draw = stack.batches.next

        def noted():
            rows.append(draw())
            return rows[-1]

        stack.batches.next = noted
        for epoch in TAKEN:
            stack.step = epoch
            stack.advance()
    return stack, begun, [batch.rows[0] for batch in rows]


def train_one_file(one_file, monkeypatch, begun, rows, views):
    """The same run, from the same weights, in the other implementation, and its losses."""
    monkeypatch.setattr(one_file, "BATCH", BATCH)
    monkeypatch.setattr(one_file, "dropout_masks", lambda rows, device: [torch.tensor(0.5)] * 2)  # nothing is dropped
    inputs = make_inputs()
    with monkeypatch.context() as starting:
        starting.setattr(one_file, "augmented", lambda padded, rows, views: padded[rows])
        run = one_file.Run(inputs.data.train_x, inputs.labels, K, seed=0)
    monkeypatch.setattr(one_file, "augmented", views.again)
    run.P.copy_(begun)
    run.average.copy_(begun)
    losses = []
    for epoch, drawn in zip(TAKEN, rows, strict=True):
        run.t.fill_(epoch)
        run.order = drawn[None]
        losses.append(run.epoch(drawn[None], *one_file.schedule(epoch, EPOCHS, LABELLED / POINTS)))
    return run, torch.tensor(losses)


def test_training_pi_sntg_is_what_an_independent_implementation_does(one_file, float64, monkeypatch):
    views = Views()
    stack, before, rows = train_package(views)
    begun = flat_weights(one_file, before, "model/")
    test_x = stack.test_x[0]
    logits = predict(stack.model, stack.test_x).logits[0]
    run, losses = train_one_file(one_file, monkeypatch, begun, rows, views)

    state = stack.state()
    assert relative(run.P, begun) > 1e-3  # it has moved
    assert relative(flat_weights(one_file, state, "model/"), run.P) < 1e-9
    assert relative(flat_weights(one_file, state, "method/average."), run.average) < 1e-9
    means = torch.cat([state[f"model/{layer}.running_mean"][0] for layer in LAYERS])
    assert relative(means, torch.cat(run.running)) < 1e-9
    terms = [[record["loss"][name] for name in stack.objective.terms] for record in stack.histories[0]]
    assert relative(torch.tensor(terms), losses) < 1e-9
    assert relative(one_file.predicted(run.P, run.running, test_x), logits) < 1e-5  # in float32
    expected = 100 * (logits.argmax(1) != stack.test_y[0]).double().mean()
    assert one_file.error(run.P, run.running, test_x, stack.test_y[0]) == pytest.approx(float(expected))


def test_the_schedule_is_that_of_an_independent_implementation(one_file):
    schedule = Schedule(epochs=300, lr_max=3e-3, w_max=100.0, label_factor=0.08)
    for epoch in range(300):
        ours = schedule.lr(epoch), schedule.beta1(epoch), schedule.w(epoch)
        assert ours == pytest.approx(one_file.schedule(epoch, 300, 0.08), rel=1e-9, abs=0)


def test_scales_set_from_data_are_those_of_an_independent_implementation(one_file, float64):
    torch.manual_seed(0)
    model, x = Conv13((3, SIDE, SIDE), 10, noise=0.0, dropout=0.0).train(), torch.randn(4, 3, SIDE, SIDE)
    flat = flat_weights(one_file, {name: tensor[None] for name, tensor in model.state_dict().items()}, "")
    with torch.no_grad(), initialising(model):
        model(x)
        one_file.forward(one_file.parts_of(flat), x, [torch.tensor(0.5)] * 2, 1, torch.float64, initialise=True)
    ours = flat_weights(one_file, {name: tensor[None] for name, tensor in model.state_dict().items()}, "")
    assert relative(flat, ours) < 1e-9


def test_whitening_is_that_of_an_independent_implementation(one_file):
    pixels = torch.randint(0, 256, (200, 3 * 4 * 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, matrix = one_file.fit_zca(pixels.numpy())
    x, y = pixels.view(-1, 3, 4, 4), torch.zeros(200, dtype=torch.long)
    ours = whiten(Dataset("cifar10", x, y, x, y, 10), "zca").train_x
    assert relative((pixels.double() / 255 - mean) @ matrix, ours.double().flatten(1)) < 1e-5


def test_views_of_the_independent_implementation_are_windows_and_share_the_flip(one_file, monkeypatch):
    monkeypatch.setattr(one_file, "NOISE", 0.0)
    torch.manual_seed(0)
    padded, rows = torch.rand(8, 36, 36, 3), torch.arange(8)
    flips = []
    for view in one_file.augmented(padded, rows, 2).split(8):
        for row, image in enumerate(view):
            windows = padded[row].permute(2, 0, 1).unfold(1, 32, 1).unfold(2, 32, 1).flatten(1, 2).transpose(0, 1)
            plain, mirrored = (int((w == image).flatten(1).all(1).sum()) for w in (windows, windows.flip(-1)))
            assert plain + mirrored == 1
            flips.append(mirrored)
    assert flips[:8] == flips[8:]
    assert len(set(flips)) == 2


def test_noise_and_dropout_of_the_independent_implementation_have_their_strength(one_file):
    torch.manual_seed(0)
    noise = one_file.augmented(torch.zeros(20, 36, 36, 3), torch.arange(20), 2)
    assert float(noise.std()) == pytest.approx(0.15, rel=0.02)
    masks = one_file.dropout_masks(4, torch.device("cpu"))
    assert [tuple(mask.shape) for mask in masks] == [(4, 128, 16, 16), (4, 256, 8, 8)]
    assert [float(mask.float().mean()) for mask in masks] == pytest.approx([0.5, 0.5], abs=0.02)
