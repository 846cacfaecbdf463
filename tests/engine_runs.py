"""Small runs for the tests of the engines, and their state."""

import sys

import torch

from sntg.data import CATALOGUE, Dataset, Split
from sntg.models import unstack
from sntg.training import Inputs, RunFolder, resolve
from sntg.training.adam import Adam
from sntg.training.loop import Stack
from sntg.training.randomness import own_randomness

LABELS = {"two-moons": 12, "four-spins": 12, "digits": 20, "mnist": 100, "fashion-mnist": 100}  # by dataset
LABELS |= {"svhn": 500, "cifar10": 4000, "cifar100": 10_000}
# 120 points, 4 steps an epoch; all terms at full weight and rate from the first step on.
SMALL = {"validation": 5880, "batch": 30, "epochs": 13, "epoch_steps": 4, "eval_every": 13}
SMALL |= {"ramp_up": 0, "ramp_down": 0, "skip_first": False, "graph_start": 0, "graph_ramp": 0, "k": 0.4}


def make_config(method, engine="eager", **settings):
    apart = {"labelled_batch": 6} if method.startswith("vat") else {}
    return resolve("two-moons", 12, method, engine=engine, **(SMALL | apart | settings))


def make_stack(*configs, inputs=None):
    with own_randomness(configs[0]):
        return Stack(configs, inputs)


def random_inputs(dataset, points, labelled):
    """Points in the shape of the dataset's and in its classes, of which there is something to learn."""
    generator, known = torch.Generator().manual_seed(0), CATALOGUE[dataset]
    y = torch.arange(points) % known.classes
    prototypes = torch.randn(known.classes, *known.event, generator=generator)
    x = prototypes[y] + torch.randn(points, *known.event, generator=generator)
    labels = torch.where(torch.arange(points) < labelled, y, -1)
    data = Dataset(dataset, x, y, x[:50].clone(), y[:50].clone(), known.classes)
    return Inputs(data, labels, Split(labels, torch.zeros(0, dtype=torch.long)))


def fixed_graph(folder, config, inputs=None):
    """The settings of a graph of what a run's network predicts before training. Makes that run's folder."""
    folder.mkdir()
    runs = make_stack(config, inputs=inputs)
    RunFolder(folder).start(config, runs.inputs[0].split)
    RunFolder(folder).save_model(unstack(runs.model, 0))
    return {"graph": "fixed", "fixed_from": str(folder)}


def new_state(config):
    """All that the first step depends on, the random numbers included, and the stack."""
    with own_randomness(config):
        runs = Stack([config])
        return copied(runs.state()), runs


def overflow_above(scale, monkeypatch):
    """Every run's gradients overflow where its loss scale is larger, under any engine."""
    gather = Adam.gather

    def gathered(adam):
        gather(adam)
        for flat in adam.gradients:
            each = flat.view(len(adam.scale.value), -1)
            each.copy_(torch.where(adam.scale.value[:, None] > scale, torch.inf, each))

    monkeypatch.setattr(Adam, "gather", gathered)


def leave_out_figures(monkeypatch):
    """Runs leave an empty file where their figures would be: those take longer than such runs."""

    def draw(trained, folder):
        folder.mkdir(exist_ok=True)
        (folder / "curves.png").touch()

    monkeypatch.setattr(sys.modules["sntg.training.run"], "draw_figures", draw)


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def same_state(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
