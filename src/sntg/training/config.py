"""A run's settings, all of them, typed, checked, and readable from `key=value`."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_origin

import torch

from sntg.data import PADDINGS, SPLITS, WHITENINGS, Entry, check_label_count, entry
from sntg.errors import UsageError, unknown
from sntg.graph import GRAPHS, check_pairs
from sntg.methods import METHODS, Method, parse
from sntg.models import BN_MOMENTUM, MODELS, NORMALISATIONS, PRECISIONS
from sntg.training.engines import ENGINES
from sntg.training.schedules import DECAYS

CONSISTENCIES = ("mse", "kl")
GRAPH_LABELS = ("merge", "teacher")
GRAPH_FEATURES = ("clean", "perturbed")
REPORTS = ("ema", "raw")


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
    data: str = ""  # the folder the dataset's files are in; "" = $SNTG_DATA, or the platform's cache folder
    validation: int = 0  # training points held out and tested on in place of the test set
    split_file: str = ""  # an index file that says which points keep their labels
    tensorboard: bool = False
    engine: str = "auto"  # how a step is executed: "eager", "compiled", "graph", or the best for the device
    precision: str = "auto"  # of the convolutions: "float32", "tf32", "bfloat16", "float16", or the device's best
    storage: str = "auto"  # where points are kept: on the "device", or streamed to it from the "host"
    model: str = "mlp"  # "mlp", "small" or "conv13", the paper's network
    normalisation: str = "mean-only"  # of the convolutional nets; "batch" or "batch-logits" = VAT's full normalisation
    epochs: int = 300  # passes over all training points, or spans of epoch_steps
    epoch_steps: int = 0  # steps in an epoch; 0 = as many whole batches as the training points make
    batch: int = 100  # n, drawn from all training points
    labelled_batch: int = 0  # points drawn from the labelled ones alone, beside `batch`
    lr: float = 3e-3  # the learning rate between the ramps
    beta2: float = 0.999  # Adam's second momentum; the first falls from 0.9 to 0.5 in the end
    ramp_up: int = 80  # epochs; 0 = none, and then no weight-free first epoch either
    ramp_down: int = 50  # epochs at the end
    decay: str = "gauss"  # how the learning rate ends; or "linear"
    stepwise: bool = False  # ramps move with every step instead of every epoch
    skip_first: bool = True  # no consistency in the first epoch
    w_max: float = 100.0  # the consistency's weight (lambda_1), before the label factor
    label_factor: bool = True  # multiply w_max by L/N
    consistency: str = "mse"  # or "kl", which VAT's always is
    ent: float = 1.0  # the entropy term's weight, in units of the consistency's
    k: float = 0.4  # the graph term's weight, in units of the consistency's (lambda_2 / lambda_1)
    margin: float = 1.0  # m, how far apart those who are not neighbours are pushed
    pairs: str = "half"  # "half", "random" or "all" of a batch's pairs
    n_pairs: int | None = None  # s, with pairs=random; half the batch if not given
    graph: str = "hard"  # "hard", "soft", "knn" or "fixed"
    graph_labels: str = "merge"  # true labels where known; "teacher" = the paper's equation, the teacher for all
    graph_features: str = "clean"  # h(x) of VAT's clean pass; "perturbed" = the paper's student, the pass of x + r
    graph_start: int = 0  # the epoch the graph term enters
    graph_ramp: int = 0  # epochs over which it then ramps up, on top of the common ramp
    temperature: float = 1.0  # T of the soft graph
    neighbours: int = 10  # how many nearest ones the knn graph links a point to
    fixed_from: str = ""  # the run folder whose predictions make the fixed graph
    split: str = "balanced"  # which points keep their labels: as many in each class, or "unbalanced"
    label_noise: float = 0.0  # percent of the labels that are replaced by random ones
    whitening: str = "none"  # what is done to the pixels before training; `sntg recipe` names the paper's
    augment: bool = True  # False = the recipe without augmentation
    flip: bool = False  # mirror images at random in training
    translate: int = 0  # the most pixels an image is moved by in training
    padding: str = "reflect"  # what a moved image shows at its border; or "zero"
    noise: float = 0.15  # deviation of the Gaussian input noise (of every layer's input in the MLP)
    dropout: float = 0.5  # the share of a layer's outputs dropped in training; the MLP drops none
    bn_momentum: float = BN_MOMENTUM  # of the running means that evaluation uses; short runs need a smaller one
    bn_batches: int = 0  # labelled batches to estimate the running statistics from for an evaluation; 0 = as they run
    alpha: float = 0.6  # temporal ensembling's momentum
    ema: float = 0.999  # momentum of the weights' average: Mean Teacher's teacher, and what "report" may name
    early_momentum: float = 0.0  # what stands in for ema and beta2 in the first early_epochs
    early_epochs: int = 0  # how long early_momentum holds
    report: str = "ema"  # whose error is the run's: the averaged weights' or "raw", the student's
    epsilon: float = 1.0  # length of VAT's perturbation
    power_iterations: int = 1  # of VAT's direction
    xi: float = 0.0  # VAT's finite-difference step; 0 = the exact Hessian product
    eval_every: int = 1  # epochs between two evaluations on the test set; the last epoch always has one
    checkpoint_seconds: float = 60.0  # between two checkpoints
    overridden: tuple[str, ...] = ()  # the settings that are not the recipe's
    data_hash: str = ""  # of the data's content; written when training starts, checked when it is resumed
    split_hash: str = ""  # the same of the labels that training sees, and of the points held out

    def __post_init__(self) -> None:
        check(self)

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, in the order they are declared."""
        return asdict(self)


LARGEST = 2**31 - 1  # of every whole number
LONGEST = 10_000  # bits of a whole number; Python refuses to write out some that are longer
MAX = sys.float_info.max  # of every real one; a whole number that stands for it may be larger
# Bounds of the numeric settings: name -> (lowest, highest); None is no bound but what a number can be.
BOUNDS: dict[str, tuple[float, float | None]] = {
    "seed": (0, LARGEST),
    "epochs": (1, None),
    "validation": (0, None),
    "epoch_steps": (0, 1_000_000),  # the timetable has a line for each
    "batch": (0, None),
    "labelled_batch": (0, 1_000_000),  # they may be more than there are labels: then some come more than once
    "lr": (0, None),
    "beta2": (0, 1),
    "ramp_up": (0, None),
    "ramp_down": (0, None),
    "w_max": (0, None),
    "ent": (0, None),
    "k": (0, None),
    "graph_start": (0, None),
    "graph_ramp": (0, None),
    "neighbours": (1, None),
    "noise": (0, None),
    "dropout": (0, 0.99),
    "bn_momentum": (0, 1),
    "bn_batches": (0, 10_000),  # all their points are picked at once
    "label_noise": (0, 100),
    "early_momentum": (0, 1),
    "early_epochs": (0, None),
    "checkpoint_seconds": (0, None),
    "translate": (0, 8),
    "alpha": (0, 0.9999),
    "ema": (0, 1),
    "epsilon": (0, None),
    "power_iterations": (1, None),
    "xi": (0, None),
    "eval_every": (1, None),
}
XI = (1e-7, 1e3)  # a shorter step beside inputs of size one is nothing in float32, a longer one no derivative
CHOICES: dict[str, Any] = {
    "model": MODELS,
    "graph": GRAPHS,
    "consistency": CONSISTENCIES,
    "graph_labels": GRAPH_LABELS,
    "graph_features": GRAPH_FEATURES,
    "normalisation": NORMALISATIONS,
    "decay": DECAYS,
    "split": SPLITS,
    "whitening": WHITENINGS,
    "padding": PADDINGS,
    "report": REPORTS,
    "engine": ("auto", *ENGINES),
    "precision": ("auto", *PRECISIONS),
    "storage": ("auto", "device", "host"),
}


def check(config: Config) -> None:
    """Raises a UsageError, in one sentence, for the first setting that cannot be."""
    check_types(vars(config))
    data = entry(config.dataset)
    name = parse(config.method)
    points = data.points - config.validation
    if points <= 0:
        raise UsageError(f"validation = {config.validation} leaves none of the {data.points} points to train on")
    if config.split == "balanced" and not config.split_file:
        check_label_count(config.labels, points, data.classes)
    elif not 1 <= config.labels <= points:
        raise UsageError(f"labels = {config.labels} is out of range: there are {points} training points")
    if config.split_file and config.label_noise:
        raise UsageError("label_noise corrupts labels that are drawn; a split_file says itself which classes it shows")
    for key, valid in CHOICES.items():
        if getattr(config, key) not in valid:
            raise unknown(key, str(getattr(config, key)), valid)
    check_bounds(config)
    check_images(config, data)
    check_batches(config, points, METHODS[name.base])
    check_execution(config)
    if config.graph == "fixed" and name.sntg and not config.fixed_from:
        raise UsageError("graph = fixed needs fixed_from = the run folder whose predictions make the graph")


def check_bounds(config: Config) -> None:
    """Refuses a number out of its range."""
    for key, (low, high) in BOUNDS.items():
        value = getattr(config, key)
        high = LARGEST if high is None and TYPES[key] is int else high
        if not (low <= value <= (MAX if high is None else high)):
            limits = f"finite and at least {low}" if high is None else f"between {low} and {high}"
            raise UsageError(f"{key} = {value} is out of range: it must be {limits}")
    if config.xi and not XI[0] <= config.xi <= XI[1]:
        limits = "0, for the exact product, or between {:g} and {:g}".format(*XI)
        raise UsageError(f"xi = {config.xi} is out of range: it must be {limits}")
    for key in ("margin", "temperature"):
        if not 0 < getattr(config, key) <= MAX:
            raise UsageError(f"{key} = {getattr(config, key)} is out of range: it must be above 0")


def check_images(config: Config, data: Entry) -> None:
    """Refuses what only images can have done to them."""
    for key in ("flip", "translate"):
        if getattr(config, key) and not data.images:
            raise UsageError(f"{key} = {getattr(config, key)} is for images, and {config.dataset} has none")
    if config.whitening != "none" and not data.pixels:
        raise UsageError(f"whitening = {config.whitening} is for pixels read from files: use none for {config.dataset}")


def steps_an_epoch(config: Config, points: int) -> int:
    """How many steps an epoch has, where there are so many training points.

    >>> steps_an_epoch(Config("two-moons", labels=12, method="pi"), points=6000)
    60
    """
    return config.epoch_steps or points // (config.batch or config.labelled_batch)


def check_batches(config: Config, points: int, method: type[Method]) -> None:
    """Refuses batches the data or the method cannot have."""
    separate = method.separate_labelled
    if config.batch > points:
        raise UsageError(f"batch = {config.batch} is more than the {points} training points of {config.dataset}")
    if not config.epoch_steps and points < (config.batch or config.labelled_batch):
        raise UsageError(
            f"labelled_batch = {config.labelled_batch} is more than the {points} training points, so an epoch has no "
            "step: say how many it has, epoch_steps=100"
        )
    if separate and not (config.batch and config.labelled_batch):
        raise UsageError(
            f"{config.method} needs batch and labelled_batch above 0: it draws the two parts of a step apart"
        )
    if method.from_all and not config.batch:
        raise UsageError(f"{config.method} needs batch above 0: it averages over epochs what is said of each point")
    n = config.batch if separate else config.batch + config.labelled_batch
    if n < 2:
        raise UsageError(f"batch + labelled_batch = {n} makes a batch of {n} points: it must be at least 2")
    check_pairs(n, config.pairs, config.n_pairs)


def check_config(config: object) -> None:
    """Refuses what is no config at all."""
    if not isinstance(config, Config):
        raise UsageError(f"a config is wanted, as `sntg.resolve` makes one, not {type(config).__name__}")


def check_types(values: Mapping[str, Any]) -> None:
    """Refuses a value of another type than the setting's; a whole number may stand for a real one."""
    for key, kind in TYPES.items():
        if key not in values:
            continue
        value, kind = values[key], tuple if get_origin(kind) is tuple else kind
        if isinstance(value, int) and value.bit_length() > LONGEST:
            raise UsageError(f"{key} is out of range: it is a whole number of thousands of digits")
        right = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not right or (isinstance(value, bool) and kind is not bool):
            or_all = ", nor 'all'" if key == "labels" else ""
            raise UsageError(f"{key} = {value!r} is not of the kind {getattr(kind, '__name__', kind)}{or_all}")


def check_execution(config: Config) -> None:
    """Refuses what only a GPU can do. (An engine that cannot is replaced, with a warning.)"""
    check_device(config.device)
    if torch.device(config.device).type != "cuda" and config.precision in ("tf32", "float16"):
        raise UsageError(
            f"precision = {config.precision} needs a GPU, and device = {config.device}: use float32, bfloat16 or auto"
        )


class MissingGPU(UsageError):
    """A GPU was asked for that is not there."""


def check_device(device: str) -> None:
    """Refuses a device that does not exist here."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise UsageError(f"device = {device!r} is not a device: use cpu, or cuda where there is a GPU") from None
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise MissingGPU(f"device = {device!r}: this machine has {torch.cuda.device_count()} usable CUDA GPUs; use cpu")
    if wanted.type not in ("cpu", "cuda") or (wanted.type == "cpu" and wanted.index):
        raise UsageError(f"device = {device!r} is not supported: use cpu or cuda")


def device_name(device: str) -> str:
    """A device as people call it.

    >>> device_name("cpu")
    'cpu'
    """
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device


def default_device() -> str:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


TYPES: dict[str, Any] = {f.name: f.type for f in fields(Config)}
# What `sntg train` takes by itself, not through --set, and what a run writes down by itself.
ARGUMENTS = {"dataset", "labels", "method", "seed", "device", "data", "validation", "split_file", "tensorboard"}
ARGUMENTS |= {"engine", "precision", "storage"}
ARGUMENTS |= {"overridden", "data_hash", "split_hash"}


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
    plain = dict(values)
    if isinstance(plain.get("overridden"), list):  # JSON knows no tuples
        plain["overridden"] = tuple(plain["overridden"])
    return Config(**plain)
