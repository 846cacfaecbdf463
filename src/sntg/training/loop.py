"""The one training loop. It trains a stack of runs side by side; one run is a stack of one.

Runs of a stack share everything that shapes the computation and may differ in seed, learning rate, weights and noise
(STACKABLE). Each has its own data, labels, initial weights, batches and noise; nothing but the loop is shared.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sntg.data import Dataset, balanced_split, load_dataset, translate
from sntg.errors import UsageError
from sntg.graph import FixedGraph, Graph, HardGraph, KNNGraph, SoftGraph
from sntg.losses import consistency_kl, consistency_mse
from sntg.methods import METHODS, GraphTerm, Objective, Setup, parse
from sntg.models import Classifier, build, initialising, stack, unstack
from sntg.training.adam import Adam
from sntg.training.batches import Batches
from sntg.training.config import Config
from sntg.training.evaluation import error, predict
from sntg.training.metrics import EpochLog
from sntg.training.run_folder import load, read_config
from sntg.training.schedules import Schedule

STACKABLE = {"seed", "lr", "w_max", "k", "ent", "noise", "ramp_up", "graph_start", "graph_ramp"}
Record = dict[str, Any]


@dataclass
class Trained:
    """A finished run: its settings, the network whose error is reported, the metrics of each epoch, and its data."""

    config: Config
    model: Classifier
    data: Dataset
    labels: Tensor  # (N,) what training saw: -1 where hidden
    history: list[Record] = field(default_factory=list)

    @property
    def error(self) -> float:
        """The reported error on the test set after the last epoch, in percent."""
        return float(self.history[-1]["error"])


def train(
    configs: Sequence[Config],
    on_epoch: Callable[[list[Record]], None] = lambda records: None,
    on_start: Callable[[], None] = lambda: None,
) -> list[Trained]:
    """Trains the runs. `on_start` is called when all is ready to begin, `on_epoch` with one record a run each epoch.

    >>> from sntg.training import resolve
    >>> (run,) = train([resolve("two-moons", 12, "pi", epochs=1)])
    >>> sorted(run.history[0]["loss"])
    ['consistency', 'supervised']
    """
    check_stack(configs)
    with _own_randomness(configs[0]):
        runs = Stack(configs)
        on_start()
        histories: list[list[Record]] = [[] for _ in configs]
        for epoch in range(configs[0].epochs):
            records = runs.train_epoch(epoch)
            for history, record in zip(histories, records, strict=True):
                history.append(record)
            on_epoch(records)
        return runs.finish(histories)


def check_stack(configs: Sequence[Config]) -> None:
    """Refuses runs that cannot go through in one pass."""
    if not configs:
        raise UsageError("there is no run to train: give at least one config")
    for config in configs[1:]:
        for key, value in config.as_dict().items():
            if key not in STACKABLE and value != getattr(configs[0], key):
                raise UsageError(
                    f"runs of one stack must share {key}, and it is {getattr(configs[0], key)} and {value}"
                )


def check_same_split(configs: Sequence[Config], earlier: Config) -> None:
    """Refuses a fixed graph from a run that saw other points or other labels: it would give hidden labels away."""
    for config in configs:
        for key in ("dataset", "labels", "seed"):
            ours, theirs = getattr(config, key), getattr(earlier, key)
            if ours != theirs:
                raise UsageError(f"fixed_from is a run with {key} = {theirs}, and this run has {key} = {ours}")


class Stack:
    """The state of a stack of runs: networks, optimiser, data, and where in training they are."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self.configs = configs
        self.shared = configs[0]
        device = torch.device(self.shared.device)
        self.data = [load_dataset(c.dataset, c.seed) for c in configs]
        self.labels = [
            balanced_split(d.train_y, c.labels, d.classes, c.seed) for d, c in zip(self.data, configs, strict=True)
        ]
        self.truth = torch.stack([d.train_y for d in self.data]).to(device)
        self.test_x = torch.stack([d.test_x for d in self.data]).to(device)
        self.test_y = torch.stack([d.test_y for d in self.data]).to(device)
        self.model = stack([_seeded_model(c, d) for c, d in zip(configs, self.data, strict=True)]).to(device)
        name = parse(self.shared.method)
        separate = METHODS[name.base].separate_labelled
        x = torch.stack([d.train_x for d in self.data]).to(device)
        labelled_batch = self.shared.labelled_batch if separate else 0
        self.batches = Batches(x, torch.stack(self.labels).to(device), self.shared.batch, labelled_batch)
        self._initialise_from_data()
        base = METHODS[name.base](self._setup())
        graph_term = self._graph_term() if name.sntg else None
        self.objective = Objective(base, name.ent, graph_term)
        self.optimiser = Adam(self.model.parameters(), self.shared.beta2, runs=len(configs))
        self.schedules = [_schedule(c, d) for c, d in zip(configs, self.data, strict=True)]

    def train_epoch(self, epoch: int) -> list[Record]:
        """One pass over the data; returns each run's metrics."""
        lr = self._across_runs([s.lr(epoch) for s in self.schedules])
        beta1 = self.schedules[0].beta1(epoch)
        per_run = [s.weights(epoch) for s in self.schedules]
        weights = {term: self._across_runs([w[term] for w in per_run]) for term in per_run[0]}
        log = EpochLog(self.truth, self.optimiser.steps)
        self.model.train()
        for batch in self.batches.epoch():
            terms, seen = self.objective(batch)
            torch.stack([weights[name] * term for name, term in terms.items()]).sum().backward()  # type: ignore[no-untyped-call]
            self.optimiser.step(lr, beta1)
            self.objective.base.after_step()
            log.add(batch, terms, seen)
        log.check_finite()
        self.objective.base.after_epoch()
        return self._records(epoch, log, [dict(w) for w in per_run])

    def finish(self, histories: list[list[Record]]) -> list[Trained]:
        """Takes the stack apart into finished runs."""
        model = self.objective.base.reported().cpu().eval()
        return [
            Trained(c, unstack(model, r), self.data[r], self.labels[r], histories[r])
            for r, c in enumerate(self.configs)
        ]

    def _records(self, epoch: int, log: EpochLog, weights: list[dict[str, float]]) -> list[Record]:
        last = epoch == self.shared.epochs - 1
        student: list[float | None] = [None] * len(self.configs)
        reported = student
        if last or (epoch + 1) % self.shared.eval_every == 0:
            student = error(self.model, self.test_x, self.test_y).tolist()
            same = self.objective.base.reported() is self.model
            reported = student if same else error(self.objective.base.reported(), self.test_x, self.test_y).tolist()
        return [
            {
                "epoch": epoch + 1,
                "step": self.optimiser.steps,
                "lr": self.schedules[r].lr(epoch),
                "weight": {name: weights[r][name] for name in summary["loss"]},
                **summary,
                "student_error": student[r],
                "error": reported[r],
            }
            for r, summary in enumerate(log.summaries())
        ]

    def _setup(self) -> Setup:
        pixels = self.shared.translate
        return Setup(
            model=self.model,
            augment=lambda x: translate(x, pixels) if pixels else x,
            consistency={"mse": consistency_mse, "kl": consistency_kl}[self.shared.consistency],
            points=self.truth.shape[1],
            classes=self.data[0].classes,
            options=self.shared.as_dict(),
        )

    def _graph_term(self) -> GraphTerm:
        c = self.shared
        graph: Graph = HardGraph()
        if c.graph == "soft":
            graph = SoftGraph(c.temperature)
        elif c.graph == "knn":
            graph = KNNGraph(torch.stack([KNNGraph.build(x, c.neighbours).neighbours for x in self.batches.x]))
        elif c.graph == "fixed":
            check_same_split(self.configs, read_config(Path(c.fixed_from)))
            earlier = load(c.fixed_from).to(self.truth.device)
            graph = FixedGraph(predict(earlier, self.batches.x.flatten(0, 1)).logits.argmax(-1).view_as(self.truth))
        return GraphTerm(graph, c.pairs, c.n_pairs, c.margin, c.graph_labels == "merge")

    def _initialise_from_data(self) -> None:
        """Data-dependent initialisation on one augmented training batch in training mode."""
        batch = next(self.batches.epoch())
        with torch.no_grad(), initialising(self.model):
            self.model.train()(self._setup().augment(batch.x))

    def _across_runs(self, values: list[float]) -> Tensor:
        return torch.tensor(values, device=self.truth.device)


def _seeded_model(config: Config, data: Dataset) -> Classifier:
    """Initial weights that depend on the run's seed alone, whatever stack it trains in."""
    with _own_randomness(config):
        return build(config.model, data.event, data.classes, config.noise, config.dropout, config.bn_momentum)


def _schedule(c: Config, data: Dataset) -> Schedule:
    everything = c.labels == len(data.train_y)
    factor = c.labels / len(data.train_y) if c.label_factor and not everything else 1.0
    return Schedule(c.epochs, c.lr, c.w_max, factor, c.k, c.ent, c.ramp_up, c.ramp_down, c.graph_start, c.graph_ramp)


@contextmanager
def _own_randomness(config: Config) -> Iterator[None]:
    """Seeds torch's generators for the run and gives the caller's back afterwards."""
    devices = [torch.device(config.device)] if torch.device(config.device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(config.seed)
        yield
