"""The one training loop. It trains a stack of runs side by side; one run is a stack of one.

Runs of a stack share everything that shapes the computation and may differ in seed, learning rate, weights, when these
set in, and noise (STACKABLE). Each has its own data, labels, initial weights, batches and noise; nothing but the loop
is shared.

All that training carries from one step to the next is in `Stack.state`, so that a run can stop after any step and go
on from there to the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from sntg.data import Dataset, centre, crop, flip, pad
from sntg.errors import DivergenceError, UsageError
from sntg.losses import consistency_kl, consistency_mse
from sntg.methods import METHODS, GraphTerm, Objective, Seen, Setup, parse
from sntg.models import (
    LOSS_SCALE,
    PRECISIONS,
    Classifier,
    estimate_statistics,
    initialising,
    stack,
    unstack,
    use_precision,
)
from sntg.training.adam import Adam
from sntg.training.arithmetic import check_surroundings
from sntg.training.automatic import decided
from sntg.training.batches import Batches, Shuffled
from sntg.training.config import Config, check_config, steps_an_epoch
from sntg.training.engines import Step, start_engine
from sntg.training.evaluation import error, predict
from sntg.training.graphs import build_graph, graph_state
from sntg.training.inputs import Inputs, load_inputs
from sntg.training.metrics import EpochLog
from sntg.training.randomness import initial_weights, other_draws, own_randomness
from sntg.training.run_folder import build_model
from sntg.training.schedules import Schedule
from sntg.training.streaming import fits
from sntg.training.timetable import Timetable, Values

STACKABLE = {"seed", "lr", "w_max", "k", "ent", "noise", "ramp_up", "graph_start", "graph_ramp"}
UNSHARED = STACKABLE | {"overridden", "data_hash", "split_hash"}  # what runs of a stack need not have in common
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
) -> list[Trained]:
    """Trains the runs. `on_epoch` is called with one record a run each epoch.

    >>> from sntg.training import resolve
    >>> (run,) = train([resolve("two-moons", 12, "pi", epochs=1)])
    >>> sorted(run.history[0]["loss"])
    ['consistency', 'supervised']
    """
    check_stack(configs)
    check_surroundings(configs[0].device)
    with own_randomness(configs[0]), closing(Stack(configs)) as runs:
        while not runs.finished:
            records = runs.advance()
            if runs.diverged:
                raise DivergenceError(runs.divergence)
            if records:
                with other_draws(runs.device):
                    on_epoch(records)
        return runs.trained()


def check_stack(configs: Sequence[Config]) -> None:
    """Refuses runs that cannot go through in one pass."""
    if isinstance(configs, Config):
        raise UsageError("one config was given where a list of them is wanted: [config]")
    if not isinstance(configs, Sequence):
        raise UsageError(f"a list of configs is wanted, not {type(configs).__name__}")
    if not configs:
        raise UsageError("there is no run to train: give at least one config")
    for config in configs:
        check_config(config)
    for config in configs[1:]:
        for key, value in config.as_dict().items():
            if key not in UNSHARED and value != getattr(configs[0], key):
                raise UsageError(
                    f"runs of one stack must share {key}, and it is {getattr(configs[0], key)} and {value}"
                )


Notes = tuple[Values, Tensor, dict[str, Tensor], Seen]  # what a step's update needs to know of its forward pass


class Stack:
    """The state of a stack of runs: networks, optimiser, data, and where in training they are."""

    def __init__(self, configs: Sequence[Config], inputs: Sequence[Inputs] | None = None) -> None:
        """inputs: the runs' data, where they are not to be loaded by their names."""
        self.inputs = [load_inputs(c) for c in configs] if inputs is None else list(inputs)
        configs = [decided(c, len(i.data.train_y)) for c, i in zip(configs, self.inputs, strict=True)]
        self.shared = c = configs[0]
        self.device = torch.device(c.device)
        self.truth = torch.stack([i.data.train_y for i in self.inputs]).to(self.device)
        self.test_y = torch.stack([i.data.test_y for i in self.inputs]).to(self.device)
        self.kind = METHODS[parse(c.method).base]
        fused = c.engine != "eager" and len(configs) == 1
        self.model = use_precision(stack([_seeded_model(c) for c in configs]).to(self.device), c.precision, fused)
        self.test_x = self._kept(torch.stack([i.data.test_x for i in self.inputs]))
        self.batches = self._batches()
        self.epoch_steps = steps_an_epoch(c, self.truth.shape[1])
        self.optimiser = Adam(self.model.parameters(), runs=len(configs), loss_scale=LOSS_SCALE.get(c.precision))
        self._initialise_from_data()
        self.objective = self._objective(configs)
        self.schedules = [_schedule(c, i) for c, i in zip(configs, self.inputs, strict=True)]
        self.timetable = Timetable(self.schedules, self.objective.terms, self.epoch_steps, c.stepwise, self.device)
        self.log = EpochLog(self.truth, self.objective.terms)
        self.histories: list[list[Record]] = [[] for _ in configs]
        self.diverged: dict[int, str] = {}  # the runs that have, and why; they go through with the others, untold
        self.step = 0  # how many have been taken
        engine = self._start_engine()
        self.configs = [
            replace(c, data_hash=i.data.content_hash, split_hash=i.split.content_hash, engine=engine)
            for c, i in zip(configs, self.inputs, strict=True)
        ]

    @property
    def steps(self) -> int:
        """How many steps there are in all."""
        return self.shared.epochs * self.epoch_steps

    @property
    def finished(self) -> bool:
        """Whether the last step has been taken."""
        return self.step >= self.steps

    @property
    def living(self) -> list[int]:
        """The runs that have not diverged."""
        return [r for r in range(len(self.inputs)) if r not in self.diverged]

    @property
    def divergence(self) -> str:
        """What became of those that have; by their seeds where there are several, by their numbers if seeds recur."""
        if len(self.configs) == 1:
            return self.diverged[0]
        seeds = [config.seed for config in self.configs]
        unique = len(set(seeds)) == len(seeds)
        names = [f"seed {seed}" if unique else f"run {r + 1} of {len(seeds)}" for r, seed in enumerate(seeds)]
        return "; ".join(f"{names[r]}: {reason}" for r, reason in sorted(self.diverged.items()))

    def advance(self) -> list[Record] | None:
        """Takes one step; at the end of an epoch it evaluates, and returns the metrics of each living run.

        The host only says where the epoch's values and the shuffled rows begin anew; the step itself never asks it.
        """
        if self.step % self.epoch_steps == 0:
            self.timetable.load(self.step)
        self._run()
        self.step += 1
        self.log.steps += 1
        return self._end_epoch() if self.step % self.epoch_steps == 0 else None

    def _forward(self) -> tuple[Tensor, Notes]:
        """The loss of the next batch."""
        values, batch = self.timetable.next(), self.batches.next()
        terms, seen = self.objective(batch)
        losses = torch.stack([values.weights[name].to(term.dtype) * term for name, term in terms.items()]).sum(0)
        seen_terms = {name: term.detach() for name, term in terms.items()}
        return self.optimiser.scaled(losses).sum(), (values, batch.rows, seen_terms, seen)

    @torch.no_grad()
    def _update(self, notes: Notes) -> None:
        """What follows from the gradients: new weights, a new average of them, and the epoch's sums."""
        values, rows, terms, seen = notes
        self.optimiser.step(values.rate, values.beta1, values.beta2)
        self.objective.base.after_step(values.ema)
        self.log.add(rows, terms, seen)

    def _start_engine(self) -> str:
        """Readies the engine, which takes some steps, and takes them back; returns the name of the one that works."""
        before = {name: tensor.clone() for name, tensor in self.state().items()}
        self.model.train()
        self.timetable.load(0)
        step = Step(self.batches.refill, self._forward, self.optimiser.gather, self._update, self.device)
        name, self._run = start_engine(self.shared.engine, step, undo=lambda: self.load_state(before, self.histories))
        if name == "eager":  # perhaps instead of another: then the kernels may be what failed
            for net in (self.model, self.objective.base.average):
                use_precision(net, self.shared.precision)
        return name

    def close(self) -> None:
        """Lets go of all it has. Its step refers to it as it does to the step, so that would else stay until Python
        looks for such circles, while the next run looks for memory."""
        vars(self).clear()

    def _end_epoch(self) -> list[Record]:
        self.diverged = self.log.diverged() | self.diverged
        if not self.living:
            raise DivergenceError(self.divergence)
        self.objective.base.after_epoch()
        every = self._records()
        records = [every[r] for r in self.living]
        for r, record in zip(self.living, records, strict=True):
            self.histories[r].append(record)
        self.log.begin(self.step)
        return records

    def state(self) -> State:
        """All that the next step depends on."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state(),
            "method": self.objective.base.state(),
            "batches": self.batches.state(),
            "log": self.log.state(),
            "graph": graph_state(self.objective.graph_term),
            "progress": {"step": torch.tensor(self.step)},
            "random": {"cpu": torch.get_rng_state()},
        }
        if self.device.type == "cuda":
            parts["random"] = {**parts["random"], "cuda": torch.cuda.get_rng_state(self.device)}
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state(
        self, state: State, histories: list[list[Record]], diverged: Mapping[int, str] | None = None
    ) -> None:
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
        for name, tensor in graph_state(self.objective.graph_term).items():
            tensor.copy_(part("graph").get(name, tensor))  # earlier versions' checkpoints have none
        self.step = int(state["progress/step"])
        self.timetable.load(min(self.step, self.steps - 1))
        torch.set_rng_state(state["random/cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random/cuda"], self.device)
        self.histories, self.diverged = histories, dict(diverged or {})

    def trained(self) -> list[Trained]:
        """Takes the stack apart into finished runs, the living ones."""
        evaluated = self._evaluated(self._reported())
        features = predict(evaluated, self.test_x).features.cpu()  # here, where the network runs fast
        model = use_precision(deepcopy(evaluated).cpu().eval(), "float32")
        living = [(r, self.inputs[r]) for r in self.living]
        return [
            Trained(self.configs[r], unstack(model, r), i.data, i.labels, features[r], self.histories[r])
            for r, i in living
        ]

    def _records(self) -> list[Record]:
        epoch = self.step // self.epoch_steps
        nothing: list[float | None] = [None] * len(self.configs)
        errors = {"student_error": nothing, "ema_error": nothing}
        if self.finished or epoch % self.shared.eval_every == 0:
            errors = self.errors()
        moment = self.timetable.moment(self.step - 1)
        reported = errors["ema_error" if self.shared.report == "ema" else "student_error"]
        scales = None if self.optimiser.scale is None else self.optimiser.scale.value.tolist()
        return [
            {
                "epoch": epoch,
                "step": self.step,
                "lr": self.schedules[r].lr(moment),
                "weight": {name: self.schedules[r].weights(moment)[name] for name in summary["loss"]},
                **summary,
                **{name: error[r] for name, error in errors.items()},
                "error": reported[r],
                **({} if scales is None else {"loss_scale": scales[r]}),
            }
            for r, summary in enumerate(self.log.summaries())
        ]

    def errors(self) -> dict[str, list[float | None]]:
        """Each run's error on the test set in percent, of the student's weights and of the averaged ones."""
        return {"student_error": self._error(self.model), "ema_error": self._error(self.objective.base.averaged())}

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
            n = self.shared.labelled_batch or self.shared.batch
            rows = Shuffled(self.batches.labelled_rows(), n * self.shared.bn_batches).draw()
            estimate_statistics(copy, torch.split(centre(self.batches.pick(rows), self.shared.translate), n, dim=1))
        return copy

    def _setup(self) -> Setup:
        c = self.shared
        return Setup(
            model=self.model,
            augment=lambda x: crop(x, c.translate),
            flip=flip if c.flip else lambda x: x,
            consistency={"mse": consistency_mse, "kl": consistency_kl}[c.consistency],
            points=self.truth.shape[1],
            classes=self.inputs[0].data.classes,
            options=c.as_dict(),
            theta=self.optimiser.theta,
        )

    def _batches(self) -> Batches:
        """The training points where they are drawn from, with the border that moved images show."""
        c = self.shared
        x = self._kept(pad(torch.stack([i.data.train_x for i in self.inputs]), c.translate, c.padding))
        labels = torch.stack([i.labels for i in self.inputs]).to(self.device)
        return Batches(x, labels, c.batch, c.labelled_batch, self.kind.separate_labelled)

    def _kept(self, x: Tensor) -> Tensor:
        """Points where they are kept: on the device, or in the host's memory if they would not fit."""
        x, storage = self._sixteen_bits(x), self.shared.storage
        return x.to(self.device) if storage == "device" or (storage == "auto" and fits(x.nbytes, self.device)) else x

    def _sixteen_bits(self, x: Tensor) -> Tensor:
        """Images in half the memory where the convolutions round them anyway, to no more bits than these."""
        rounds = self.device.type == "cuda" and PRECISIONS[self.shared.precision] and self.model.event_dims == 3
        return x.half() if rounds else x

    def _objective(self, configs: Sequence[Config]) -> Objective:
        c, name = self.shared, parse(self.shared.method)
        term = None
        if name.sntg:
            points = [i.data.train_x for i in self.inputs]
            graph = build_graph(configs, points, [i.split for i in self.inputs])
            term = GraphTerm(graph, c.pairs, c.n_pairs, c.margin, c.graph_labels == "merge")
        return Objective(self.kind(self._setup()), name.ent, term)

    def _initialise_from_data(self) -> None:
        """Data-dependent initialisation on one augmented training batch in training mode."""
        setup, before = self._setup(), self.batches.state()
        self.batches.refill()
        batch = self.batches.next()
        self.batches.load_state(before)  # the first epoch has a shuffle of its own
        with torch.no_grad(), initialising(self.model):
            self.model.train()(setup.augment(setup.flip(batch.x)))


def _seeded_model(config: Config) -> Classifier:
    """Initial weights that depend on the run's seed alone, whatever stack it trains in."""
    with initial_weights(config.seed):
        return build_model(config)


def _schedule(c: Config, inputs: Inputs) -> Schedule:
    factor = float((inputs.labels >= 0).double().mean()) if c.label_factor else 1.0  # L/N; all labels are a factor of 1
    same = {f.name for f in fields(Schedule)} & set(c.as_dict()) - {"label_factor"}  # what both call alike
    return Schedule(lr_max=c.lr, label_factor=factor, **{name: getattr(c, name) for name in same})
