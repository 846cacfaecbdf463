"""The one training loop. It trains a stack of runs side by side; one run is a stack of one.

Runs of a stack share everything that shapes the computation and may differ in seed, learning rate, weights and noise
(STACKABLE). Each has its own data, labels, initial weights, batches and noise; nothing but the loop is shared.

All that training carries from one step to the next is in `Stack.state`, so that a run can stop after any step and go
on from there to the same bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from sntg.data import Dataset, flip, translate
from sntg.errors import UsageError
from sntg.losses import consistency_kl, consistency_mse
from sntg.methods import METHODS, GraphTerm, Objective, Setup, parse
from sntg.models import Classifier, estimate_statistics, initialising, stack, unstack
from sntg.training.adam import Adam
from sntg.training.batches import Batches, Shuffled
from sntg.training.config import Config
from sntg.training.evaluation import error, predict
from sntg.training.graphs import build_graph
from sntg.training.inputs import Inputs, load_inputs
from sntg.training.metrics import EpochLog
from sntg.training.run_folder import build_model
from sntg.training.schedules import Schedule

STACKABLE = {"seed", "lr", "w_max", "k", "ent", "noise", "ramp_up", "graph_start", "graph_ramp"}
UNSHARED = STACKABLE | {"overridden", "data_hash"}  # what runs of a stack need not have in common
Record = dict[str, Any]
State = dict[str, Tensor]


@dataclass
class Trained:
    """A finished run: its settings, the network whose error is reported, the metrics of each epoch, and its data."""

    config: Config
    model: Classifier
    data: Dataset
    labels: Tensor  # (N,) what training saw: -1 where hidden
    features: Tensor  # (M, p) of the test points
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
    with own_randomness(configs[0]):
        runs = Stack(configs)
        on_start()
        while not runs.finished:
            records = runs.advance()
            if records:
                on_epoch(records)
        return runs.trained()


def check_stack(configs: Sequence[Config]) -> None:
    """Refuses runs that cannot go through in one pass."""
    if not configs:
        raise UsageError("there is no run to train: give at least one config")
    for config in configs[1:]:
        for key, value in config.as_dict().items():
            if key not in UNSHARED and value != getattr(configs[0], key):
                raise UsageError(
                    f"runs of one stack must share {key}, and it is {getattr(configs[0], key)} and {value}"
                )


@dataclass(frozen=True)
class Values:
    """What the schedules say at one moment: numbers shared by the stack, and tensors with one value a run."""

    beta1: float
    ema: float
    beta2: float
    lr: Tensor
    weights: dict[str, Tensor]


class Stack:
    """The state of a stack of runs: networks, optimiser, data, and where in training they are."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self.shared = configs[0]
        self.device = torch.device(self.shared.device)
        self.inputs = [load_inputs(c) for c in configs]
        data = [i.data for i in self.inputs]
        self.configs = [replace(c, data_hash=d.content_hash) for c, d in zip(configs, data, strict=True)]
        self.truth = torch.stack([d.train_y for d in data]).to(self.device)
        self.test_x = torch.stack([d.test_x for d in data]).to(self.device)
        self.test_y = torch.stack([d.test_y for d in data]).to(self.device)
        self.model = stack([_seeded_model(c) for c in configs]).to(self.device)
        name = parse(self.shared.method)
        kind = METHODS[name.base]
        x, labels = torch.stack([d.train_x for d in data]), torch.stack([i.labels for i in self.inputs])
        c = self.shared
        self.batches = Batches(
            x.to(self.device), labels.to(self.device), c.batch, c.labelled_batch, kind.separate_labelled
        )
        self.epoch_steps = c.epoch_steps or x.shape[1] // (c.batch or c.labelled_batch)
        self._initialise_from_data()
        self.objective = Objective(kind(self._setup()), name.ent, self._graph_term() if name.sntg else None)
        self.optimiser = Adam(self.model.parameters(), c.beta2, runs=len(configs))
        self.schedules = [_schedule(c, i) for c, i in zip(configs, self.inputs, strict=True)]
        self.log = EpochLog(self.truth, 0)
        self.histories: list[list[Record]] = [[] for _ in configs]
        self._values: tuple[float, Values] | None = None

    @property
    def step(self) -> int:
        """How many steps have been taken."""
        return self.optimiser.steps

    @property
    def steps(self) -> int:
        """How many steps there are in all."""
        return self.shared.epochs * self.epoch_steps

    @property
    def finished(self) -> bool:
        """Whether the last step has been taken."""
        return self.step >= self.steps

    def advance(self) -> list[Record] | None:
        """Takes one step; at the end of an epoch it evaluates, and returns each run's metrics."""
        values = self.values()
        self.model.train()
        batch = self.batches.next()
        terms, seen = self.objective(batch)
        torch.stack([values.weights[name] * term for name, term in terms.items()]).sum().backward()  # type: ignore[no-untyped-call]
        self.optimiser.beta2 = values.beta2
        self.optimiser.step(values.lr, values.beta1)
        self.objective.base.after_step(values.ema)
        self.log.add(batch, terms, seen)
        return self._end_epoch() if self.step % self.epoch_steps == 0 else None

    def _end_epoch(self) -> list[Record]:
        self.log.check_finite()
        self.objective.base.after_epoch()
        records = self._records()
        for history, record in zip(self.histories, records, strict=True):
            history.append(record)
        self.log = EpochLog(self.truth, self.step)
        return records

    def values(self) -> Values:
        """What the schedules say of the next step; worked out anew only when it changes."""
        epoch = self.step / self.epoch_steps if self.shared.stepwise else self.step // self.epoch_steps
        if self._values is None or self._values[0] != epoch:
            per_run = [s.weights(epoch) for s in self.schedules]
            ema, beta2 = self.schedules[0].momenta(epoch)
            values = Values(
                self.schedules[0].beta1(epoch),
                ema,
                beta2,
                self._across_runs([s.lr(epoch) for s in self.schedules]),
                {term: self._across_runs([w[term] for w in per_run]) for term in per_run[0]},
            )
            self._values = epoch, values
        return self._values[1]

    def state(self) -> State:
        """All that the next step depends on."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state(),
            "method": self.objective.base.state(),
            "batches": self.batches.state(),
            "log": self.log.state(),
            "random": {"cpu": torch.get_rng_state()},
        }
        if self.device.type == "cuda":
            parts["random"] = {**parts["random"], "cuda": torch.cuda.get_rng_state(self.device)}
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state(self, state: State, histories: list[list[Record]]) -> None:
        """Goes back to what `state` gave, to take the same next step."""

        def part(name: str) -> State:
            prefix = f"{name}/"
            return {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)}

        on_device = {name: tensor.to(self.device) for name, tensor in state.items() if not name.startswith("random/")}
        state = {**state, **on_device}
        self.model.load_state_dict(part("model"))
        self.optimiser.load_state(part("optimiser"))
        self.objective.base.load_state(part("method"))
        self.batches.load_state(part("batches"))
        self.log.load_state(part("log"))
        torch.set_rng_state(state["random/cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random/cuda"], self.device)
        self.histories = histories

    def trained(self) -> list[Trained]:
        """Takes the stack apart into finished runs."""
        evaluated = self._evaluated(self._reported())
        features = predict(evaluated, self.test_x).features.cpu()  # here, where the network runs fast
        model = deepcopy(evaluated).cpu().eval()
        return [
            Trained(c, unstack(model, r), i.data, i.labels, features[r], self.histories[r])
            for r, (c, i) in enumerate(zip(self.configs, self.inputs, strict=True))
        ]

    def _records(self) -> list[Record]:
        epoch = self.step // self.epoch_steps
        nothing: list[float | None] = [None] * len(self.configs)
        errors = {"student_error": nothing, "ema_error": nothing}
        if self.finished or epoch % self.shared.eval_every == 0:
            errors = {
                "student_error": self._error(self.model),
                "ema_error": self._error(self.objective.base.averaged()),
            }
        assert self._values is not None
        moment = self._values[0]  # the last step's
        reported = errors["ema_error" if self.shared.report == "ema" else "student_error"]
        return [
            {
                "epoch": epoch,
                "step": self.step,
                "lr": self.schedules[r].lr(moment),
                "weight": {name: self.schedules[r].weights(moment)[name] for name in summary["loss"]},
                **summary,
                **{name: error[r] for name, error in errors.items()},
                "error": reported[r],
            }
            for r, summary in enumerate(self.log.summaries())
        ]

    def _reported(self) -> Classifier:
        return self.objective.base.averaged() if self.shared.report == "ema" else self.model

    def _error(self, model: Classifier) -> list[float | None]:
        errors: list[float | None] = error(self._evaluated(model), self.test_x, self.test_y).tolist()
        return errors

    def _evaluated(self, model: Classifier) -> Classifier:
        """The network as it is evaluated: with running statistics estimated anew where the recipe wants that."""
        if not self.shared.bn_batches:
            return model
        copy = deepcopy(model)
        with own_randomness(self.shared):  # evaluation takes no random numbers from training
            stream = Shuffled(self.batches.labelled_rows(), self.shared.labelled_batch or self.shared.batch)
            rows = (stream.next() for _ in range(self.shared.bn_batches))
            estimate_statistics(copy, (self.batches.pick(r).x for r in rows))
        return copy

    def _setup(self) -> Setup:
        c = self.shared
        return Setup(
            model=self.model,
            augment=lambda x: translate(x, c.translate, c.padding),
            flip=flip if c.flip else lambda x: x,
            consistency={"mse": consistency_mse, "kl": consistency_kl}[c.consistency],
            points=self.truth.shape[1],
            classes=self.inputs[0].data.classes,
            options=c.as_dict(),
        )

    def _graph_term(self) -> GraphTerm:
        c = self.shared
        graph = build_graph(self.configs, self.batches.x, [i.split for i in self.inputs])
        return GraphTerm(graph, c.pairs, c.n_pairs, c.margin, c.graph_labels == "merge")

    def _initialise_from_data(self) -> None:
        """Data-dependent initialisation on one augmented training batch in training mode."""
        setup, before = self._setup(), self.batches.state()
        batch = self.batches.next()
        self.batches.load_state(before)  # the first epoch has a shuffle of its own
        with torch.no_grad(), initialising(self.model):
            self.model.train()(setup.augment(setup.flip(batch.x)))

    def _across_runs(self, values: list[float]) -> Tensor:
        return torch.tensor(values, device=self.device)


def _seeded_model(config: Config) -> Classifier:
    """Initial weights that depend on the run's seed alone, whatever stack it trains in."""
    with own_randomness(config):
        return build_model(config)


def _schedule(c: Config, inputs: Inputs) -> Schedule:
    factor = float((inputs.labels >= 0).double().mean()) if c.label_factor else 1.0  # L/N; all labels are a factor of 1
    same = {f.name for f in fields(Schedule)} & set(c.as_dict()) - {"label_factor"}  # what both call alike
    return Schedule(lr_max=c.lr, label_factor=factor, **{name: getattr(c, name) for name in same})


@contextmanager
def own_randomness(config: Config) -> Iterator[None]:
    """Seeds torch's generators for the run and gives the caller's back afterwards. On a GPU it also asks for kernels
    that give the same bits every time: without them a resumed run would end elsewhere."""
    devices = [torch.device(config.device)] if torch.device(config.device).type == "cuda" else []
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(config.seed)
        try:
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
            yield
        finally:
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
