"""A run's settings, all of them, typed, checked, and readable from `key=value`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from sntg.data import check_label_count, entry
from sntg.errors import UsageError, unknown
from sntg.graph import GRAPHS, check_pairs
from sntg.methods import parse
from sntg.models import BN_MOMENTUM, MODELS

CONSISTENCIES = ("mse", "kl")
GRAPH_LABELS = ("merge", "teacher")


@dataclass(frozen=True)
class Config:
    """Every value that decides what a run computes. Defaults are the Pi model's; recipes change them by dataset.

    >>> Config("two-moons", labels=12, method="pi+sntg").k
    0.4
    """

    dataset: str
    labels: int  # L
    method: str
    seed: int = 0
    device: str = "cpu"
    model: str = "mlp"  # or "small", the small convolutional net
    epochs: int = 300  # passes over all training points
    batch: int = 100  # n, drawn from all training points
    labelled_batch: int = 32  # VAT's labelled part, beside `batch` points of the whole set
    lr: float = 3e-3  # the learning rate between the ramps
    beta2: float = 0.999  # Adam's second momentum; the first falls from 0.9 to 0.5 with the learning rate
    ramp_up: int = 80  # epochs; 0 = none, and then no weight-free first epoch either
    ramp_down: int = 50  # epochs at the end
    w_max: float = 100.0  # the consistency's weight (lambda_1), before the label factor
    label_factor: bool = True  # multiply w_max by L/N
    consistency: str = "mse"  # or "kl"
    ent: float = 1.0  # the entropy term's weight, in units of the consistency's
    k: float = 0.4  # the graph term's weight, in units of the consistency's (lambda_2 / lambda_1)
    margin: float = 1.0  # m, how far apart those who are not neighbours are pushed
    pairs: str = "half"  # "half", "random" or "all" of a batch's pairs
    n_pairs: int | None = None  # s, with pairs=random; half the batch if not given
    graph: str = "hard"  # "hard", "soft", "knn" or "fixed"
    graph_labels: str = "merge"  # true labels where known; "teacher" = the paper's equation, the teacher for all
    graph_start: int = 0  # the epoch the graph term enters
    graph_ramp: int = 0  # epochs over which it then ramps up, on top of the common ramp
    temperature: float = 1.0  # T of the soft graph
    neighbours: int = 10  # how many nearest ones the knn graph links a point to
    fixed_from: str = ""  # the run folder whose predictions make the fixed graph
    noise: float = 0.15  # deviation of the Gaussian input noise (of every layer's input in the MLP)
    dropout: float = 0.5  # the share of a layer's outputs dropped in training
    bn_momentum: float = BN_MOMENTUM  # of the running means that evaluation uses; short runs need a smaller one
    translate: int = 0  # the most pixels an image is moved by in training
    alpha: float = 0.6  # temporal ensembling's momentum
    ema: float = 0.999  # Mean Teacher's momentum
    epsilon: float = 1.0  # length of VAT's perturbation
    power_iterations: int = 1  # of VAT's direction
    xi: float = 0.0  # VAT's finite-difference step; 0 = the exact Hessian product
    eval_every: int = 1  # epochs between two evaluations on the test set; the last epoch always has one

    def __post_init__(self) -> None:
        check(self)

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, in the order they are declared."""
        return asdict(self)


# Bounds of the numeric settings: name -> (lowest, highest); None is no bound.
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "seed": (0, 2**31 - 1),
    "epochs": (1, None),
    "batch": (2, None),
    "labelled_batch": (2, None),
    "lr": (0, None),
    "beta2": (0, 1),
    "ramp_up": (0, None),
    "ramp_down": (0, None),
    "w_max": (0, None),
    "ent": (0, None),
    "k": (0, None),
    "margin": (0, None),
    "graph_start": (0, None),
    "graph_ramp": (0, None),
    "neighbours": (1, None),
    "noise": (0, None),
    "dropout": (0, 0.99),
    "bn_momentum": (0, 1),
    "translate": (0, 8),
    "alpha": (0, 0.9999),
    "ema": (0, 1),
    "epsilon": (0, None),
    "power_iterations": (1, None),
    "xi": (0, None),
    "eval_every": (1, None),
}
CHOICES: dict[str, Any] = {
    "model": MODELS,
    "graph": GRAPHS,
    "consistency": CONSISTENCIES,
    "graph_labels": GRAPH_LABELS,
}


def check(config: Config) -> None:
    """Raises a UsageError, in one sentence, for the first setting that cannot be."""
    check_types(config)
    data = entry(config.dataset)
    name = parse(config.method)
    check_label_count(config.labels, data.points, data.classes)
    for key, valid in CHOICES.items():
        if getattr(config, key) not in valid:
            raise unknown(key, str(getattr(config, key)), valid)
    for key, (low, high) in BOUNDS.items():
        value = getattr(config, key)
        if not ((low is None or value >= low) and (high is None or value <= high) and abs(value) < float("inf")):
            limits = f"at least {low}" if high is None else f"between {low} and {high}"
            raise UsageError(f"{key} = {value} is out of range: it must be {limits}")
    if config.margin == 0:
        raise UsageError("margin = 0 pushes nothing apart: it must be above 0")
    if not 0 < config.temperature < float("inf"):
        raise UsageError(f"temperature = {config.temperature} is out of range: it must be above 0")
    if config.translate and not data.images:
        raise UsageError(f"translate = {config.translate} moves images, and {config.dataset} has none: use 0")
    if config.batch > data.points:
        raise UsageError(f"batch = {config.batch} is more than the {data.points} training points of {config.dataset}")
    check_pairs(config.batch, config.pairs, config.n_pairs)
    check_device(config.device)
    if config.graph == "fixed" and name.sntg and not config.fixed_from:
        raise UsageError("graph = fixed needs fixed_from = the run folder whose predictions make the graph")


def check_types(config: Config) -> None:
    """Refuses a value of another type than the setting's; a whole number may stand for a real one."""
    for key, kind in TYPES.items():
        value = getattr(config, key)
        right = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not right or (isinstance(value, bool) and kind is not bool):
            raise UsageError(f"{key} = {value!r} is not of the kind {getattr(kind, '__name__', kind)}")


def check_device(device: str) -> None:
    """Refuses a device that does not exist here."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise UsageError(f"device = {device!r} is not a device: use cpu, or cuda where there is a GPU") from None
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device = {device!r}: this machine has {torch.cuda.device_count()} usable CUDA GPUs; use cpu")
    if wanted.type not in ("cpu", "cuda"):
        raise UsageError(f"device = {device!r} is not supported: use cpu or cuda")


TYPES: dict[str, Any] = {f.name: f.type for f in fields(Config)}
ARGUMENTS = {"dataset", "labels", "method", "seed", "device"}  # what `sntg train` takes by itself, not through --set


def read_setting(text: str) -> tuple[str, Any]:
    """Reads one `key=value`, typed as the setting is.

    >>> read_setting("lr=1e-3")
    ('lr', 0.001)
    """
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator:
        raise UsageError(f"--set {text!r} is not of the form key=value")
    if key in ARGUMENTS:
        raise UsageError(f"{key} is not changed by --set: give it as an argument of its own")
    if key not in TYPES:
        raise unknown("key", key, set(TYPES) - ARGUMENTS)
    return key, read_value(key, value.strip())


def read_value(key: str, value: str) -> Any:
    """The value of a setting from its text."""
    kind = TYPES[key]
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise UsageError(f"{key} = {value!r} is neither true nor false")
        return value.lower() == "true"
    if kind in (str, float):
        reader: type[str] | type[float] | type[int] = kind
    else:
        if kind is not int and value.lower() == "none":
            return None
        reader = int
    try:
        return reader(value)
    except ValueError:
        raise UsageError(f"{key} = {value!r} is not {'a number' if kind is float else 'a whole number'}") from None


def config_from(values: Mapping[str, Any]) -> Config:
    """A config from plain values, as `as_dict` gave them; keys that do not exist are refused."""
    for key in values:
        if key not in TYPES:
            raise unknown("key", key, TYPES)
    return Config(**values)
