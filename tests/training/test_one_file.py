"""The package's loop against an implementation in one file that has no code in common with it, studies/one_file.py.

Both train the paper's network in float64, on the same batches and the same noisy views.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from sntg.data import Dataset, Split
from sntg.training import resolve
from sntg.training.inputs import Inputs
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness
from sntg.training.schedules import Schedule

ONE_FILE = Path(__file__).parents[2] / "studies" / "one_file.py"
POINTS, LABELLED, BATCH, SIDE, K = 24, 8, 6, 16, 0.1
EPOCHS, RAMP_UP, RAMP_DOWN, STEPS = 30, 8, 5, 10  # the steps, one an epoch, end after the ramp-up
NOTHING_DROPPED = [torch.tensor(0.5)] * 2  # what is kept is doubled
LAYERS = [*(f"blocks.{i}.{j}" for i in range(3) for j in range(3)), "output"]


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("one_file", ONE_FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    """Noise that the two branches see, kept for the other implementation."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)
        self.seen = []

    def __call__(self, x):
        self.seen.append(x + 0.3 * torch.randn(x.shape, generator=self.generator))
        return self.seen[-1]


def flat_weights(one_file, state, prefix):
    flat = torch.zeros(one_file.LENGTH)
    names = [f"{prefix}{layer}.{part}" for layer in LAYERS for part in ("V", "g", "b")]
    for slot, name in zip(one_file.views_of(flat), names, strict=True):
        slot.copy_(state[name][0])
    return flat


def train_in_one_file(one_file, P, views, labels):
    """The weights, their average and the running means after a step on each pair of views."""
    m, v, average = torch.zeros_like(P), torch.zeros_like(P), P.clone()
    running = [torch.zeros(shape[0]) for shape in one_file.SHAPES]
    losses = []
    for epoch, (x, known) in enumerate(zip(views, labels, strict=True)):
        lr, beta1, w = one_file.schedule(epoch, EPOCHS, LABELLED / POINTS)
        parameters = [p.detach().requires_grad_() for p in one_file.views_of(P)]
        value, terms, means = one_file.loss(parameters, x, NOTHING_DROPPED, known, w, K, torch.float64)
        gradient = torch.zeros_like(P)
        for slot, g in zip(one_file.views_of(gradient), torch.autograd.grad(value, parameters), strict=True):
            slot.copy_(g)
        t = epoch + 1
        rate = lr * (1 - one_file.BETA2**t) ** 0.5 / (1 - beta1**t)
        one_file.update(P, m, v, average, gradient, rate, beta1)
        running = [
            one_file.MOMENTUM * r + (1 - one_file.MOMENTUM) * mean for r, mean in zip(running, means, strict=True)
        ]
        losses.append(terms)
    return P, average, torch.cat(running), torch.stack(losses)


def relative(one, other):
    return ((one - other).norm() / other.norm()).item()


def test_training_pi_sntg_is_what_an_independent_implementation_does(one_file, float64):
    config = make_config()
    with own_randomness(config):
        stack = Stack([config], [make_inputs()])
        begun = flat_weights(one_file, stack.state(), "model/")
        stack.objective.base.augment = views = Views()
        rows, draw = [], stack.batches.next
        stack.batches.next = lambda: rows.append(batch := draw()) or batch
        for _ in range(STEPS):
            stack.advance()
    state = stack.state()
    pairs = [torch.cat([a[0], b[0]]) for a, b in zip(views.seen[::2], views.seen[1::2], strict=True)]
    labels = [batch.labels[0] for batch in rows]
    P, average, running, losses = train_in_one_file(one_file, begun.clone(), pairs, labels)

    assert relative(P, begun) > 1e-3  # it has moved
    assert relative(flat_weights(one_file, state, "model/"), P) < 1e-8
    assert relative(flat_weights(one_file, state, "method/average."), average) < 1e-8
    ours = torch.cat([state[f"model/{layer}.running_mean"][0] for layer in LAYERS])
    assert relative(ours, running) < 1e-8
    ours = torch.tensor(
        [[record["loss"][n] for n in ("supervised", "consistency", "sntg")] for record in stack.histories[0]]
    )
    assert relative(ours, losses) < 1e-8


def test_the_schedule_is_that_of_an_independent_implementation(one_file):
    schedule = Schedule(epochs=300, lr_max=3e-3, w_max=100.0, label_factor=0.08)
    for epoch in range(300):
        ours = schedule.lr(epoch), schedule.beta1(epoch), schedule.w(epoch)
        assert ours == pytest.approx(one_file.schedule(epoch, 300, 0.08), rel=1e-12)
