"""What the tests of the methods share: a hand-written NumPy MLP with its gradients, and steps whose views are known.

The reference is written from the equations alone: no arithmetic of torch or of sntg is in it. Given the derivatives of
a loss in the logits and in the features it returns those of every V, g and b, so a test only has to differentiate its
loss. All of it is float64, and a comparison holds to about 1e-10.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sntg.losses import consistency_mse
from sntg.methods import METHODS, Batch, GraphTerm, Objective, Seen, Setup
from sntg.models import MLP, Classifier, stack
from sntg.models.layers import BatchNormDense

RUNS, N, POINTS, CLASSES, HIDDEN = 2, 12, 16, 3, 5
LAYERS = ("hidden.0", "hidden.1", "hidden.2", "output")
OPTIONS = {"alpha": 0.6, "epsilon": 0.3, "power_iterations": 1, "xi": 0.0, "graph_features": "clean"}
BASES = tuple(METHODS)

Arrays = dict[str, np.ndarray]


# --- the network -----------------------------------------------------------------------------------------------------


@dataclass
class Trace:
    """A forward pass: what came in, what came out, and each layer's input and pre-activation."""

    features: np.ndarray
    logits: np.ndarray
    inputs: list[np.ndarray]
    pre: list[np.ndarray]

    @property
    def p(self) -> np.ndarray:
        return softmax(self.logits)


class ReferenceMLP:
    """One run's MLP in training mode without noise: weight norm, minus the batch mean, plus bias, leaky ReLU 0.1."""

    def __init__(self, parameters: Arrays) -> None:
        self.parameters = parameters

    def _layer(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        V, g, b = (self.parameters[f"{name}.{p}"] for p in ("V", "g", "b"))
        return V, g, b, np.sqrt((V**2).sum(1))

    def forward(self, x: np.ndarray) -> Trace:
        inputs, pre = [], []
        for name in LAYERS:
            V, g, b, norm = self._layer(name)
            y = x @ (V * (g / norm)[:, None]).T
            inputs.append(x)
            pre.append(y - y.mean(0) + b)
            x = np.where(pre[-1] > 0, pre[-1], 0.1 * pre[-1])
        return Trace(features=inputs[-1], logits=pre[-1], inputs=inputs, pre=pre)

    def backward(
        self, trace: Trace, d_logits: np.ndarray | float = 0.0, d_features: np.ndarray | float = 0.0
    ) -> Arrays:
        gradients: Arrays = {}
        d = np.zeros_like(trace.logits) + d_logits
        for depth in reversed(range(len(LAYERS))):
            name = LAYERS[depth]
            V, g, _, norm = self._layer(name)
            unit = V / norm[:, None]
            gradients[f"{name}.b"] = d.sum(0)
            d = d - d.mean(0)  # through the batch mean
            d_weight = d.T @ trace.inputs[depth]
            gradients[f"{name}.g"] = (d_weight * unit).sum(1)
            gradients[f"{name}.V"] = (g / norm)[:, None] * (d_weight - gradients[f"{name}.g"][:, None] * unit)
            d = d @ (unit * g[:, None])
            if name == "output":
                d = d + d_features
            if depth:
                d = d * np.where(trace.pre[depth - 1] > 0, 1.0, 0.1)
        return gradients


def add(*parts: Arrays) -> Arrays:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


# --- the losses: each returns its value and its derivatives ----------------------------------------------------------


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def through_softmax(p: np.ndarray, d_p: np.ndarray) -> np.ndarray:
    """dL/dlogits from dL/dp."""
    return p * (d_p - (p * d_p).sum(-1, keepdims=True))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    p, n = softmax(logits), len(labels)
    value, d = 0.0, np.zeros_like(p)
    for i, y in enumerate(labels):
        if y >= 0:
            value -= np.log(p[i, y]) / n
            d[i] = (p[i] - np.eye(p.shape[1])[y]) / n
    return value, d


def mse(
    logits: np.ndarray, target: np.ndarray, known: np.ndarray | None = None
) -> tuple[float, np.ndarray, np.ndarray]:
    """The squared difference over n and K; derivatives in the student's logits and in the target's probabilities."""
    p = softmax(logits)
    difference = (p - target) * (1.0 if known is None else known[:, None])
    d_p = 2 * difference / difference.size
    return float((difference**2).mean()), through_softmax(p, d_p), -d_p


def kl(logits: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """KL(target || student), a mean over the rows; derivatives as in `mse`."""
    p, n = softmax(logits), len(logits)
    ratio = np.log(target) - np.log(p)
    return float((target * ratio).sum() / n), (p - target) / n, (ratio + 1) / n


def entropy(logits: np.ndarray) -> tuple[float, np.ndarray]:
    p, n = softmax(logits), len(logits)
    return float(-(p * np.log(p)).sum() / n), through_softmax(p, -(np.log(p) + 1) / n)


def pairs_of(mode: str, n: int) -> list[tuple[int, int]]:
    if mode == "half":
        return [(i, i + n // 2) for i in range(n // 2)]
    return [(i, j) for i in range(n) for j in range(n) if i != j]


def sntg(
    features: np.ndarray,
    classes: np.ndarray,
    pairs: Sequence[tuple[int, int]],
    margin: float,
    known: np.ndarray | None = None,
) -> tuple[float, np.ndarray]:
    """Eq. 7 with d^2 averaged over the features, pair by pair; classes are the rows' graph labels."""
    value, d_features = 0.0, np.zeros_like(features)
    for i, j in pairs:
        if known is not None and not (known[i] and known[j]):
            continue
        difference = features[i] - features[j]
        d = np.sqrt((difference**2).mean())
        if classes[i] == classes[j]:
            value += d**2 / len(pairs)
            slope = 2.0
        else:
            value += max(0.0, margin - d) ** 2 / len(pairs)
            slope = -2 * max(0.0, margin - d) / d
        step = slope * difference / features.shape[1] / len(pairs)
        d_features[i] += step
        d_features[j] -= step
    return value, d_features


# --- steps with known views ------------------------------------------------------------------------------------------


class Views:
    """An augmentation that moves every point by a draw of its own at every call, and remembers what it gave out."""

    def __init__(self, seed: int, scale: float = 0.7) -> None:
        self.rng, self.scale = np.random.default_rng(seed), scale
        self.given: list[np.ndarray] = []

    def __call__(self, x: Tensor) -> Tensor:
        view = x + torch.from_numpy(self.rng.normal(0, self.scale, x.shape))
        self.given.append(view.numpy().copy())
        return view


def make_model(seed: int, noise: float = 0.0) -> MLP:
    """A stack of small MLPs with every V, g and b drawn, in training mode.

    Mean-only batch normalisation, which the MLP of the synthetic runs does without, is on: a method has to keep the
    batch means of its passes right, and here it shows.
    """
    torch.manual_seed(seed)
    model = stack([MLP(2, CLASSES, noise=noise, hidden=HIDDEN) for _ in range(RUNS)])
    for layer in (*model.hidden, model.output):
        layer.mean_only_bn = True
    randomise(model)
    return model.train()


def make_batch_normed_model(seed: int) -> MLP:
    """The same with full batch normalisation in every layer, the logits' too, and no noise to be drawn."""
    torch.manual_seed(seed)
    sizes = [2, HIDDEN, HIDDEN, HIDDEN, CLASSES]
    models = []
    for _ in range(RUNS):
        model = MLP(2, CLASSES, hidden=HIDDEN)
        *hidden, model.output = (BatchNormDense(o, i) for i, o in pairwise(sizes))
        model.hidden = torch.nn.ModuleList(hidden)
        model.noises = torch.nn.ModuleList(torch.nn.Identity() for _ in range(4))
        models.append(model)
    model = stack(models)
    randomise(model)
    return model.train()


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("g"):
            parameter.uniform_(0.8, 1.6)
        else:
            parameter.normal_(0, 0.5)


def make_batch(seed: int, n: int = N, labelled_rows: int = 5) -> Batch:
    """n of the POINTS rows in random order, every third labelled, and a second batch of labelled rows for VAT."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randperm(POINTS, generator=g)[:n] for _ in range(RUNS)])
    truth = torch.randint(0, CLASSES, (RUNS, n), generator=g)
    labels = torch.where(torch.arange(n) % 3 == 0, truth, -1)
    x = torch.randn(RUNS, n, 2, generator=g)
    classes = torch.randint(0, CLASSES, (RUNS, labelled_rows), generator=g)
    labelled = Batch(torch.randn(RUNS, labelled_rows, 2, generator=g), classes, rows[:, :labelled_rows])
    return Batch(x, labels, rows, labelled)


def unchanged(x: Tensor) -> Tensor:
    return x


def make_setup(
    model: Classifier, augment=unchanged, consistency=consistency_mse, points: int = POINTS, flip=unchanged, **options
) -> Setup:
    return Setup(model, augment, consistency, points, CLASSES, {**OPTIONS, **options}, flip)


def references(model: torch.nn.Module) -> list[ReferenceMLP]:
    """The weights of each run of a stack, handed to the reference."""
    arrays = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    return [ReferenceMLP({name: a[run] for name, a in arrays.items()}) for run in range(RUNS)]


@dataclass
class Step:
    """One step of a method, and what the reference says its views, its student pass and its teacher were."""

    objective: Objective
    model: MLP
    batch: Batch
    terms: dict[str, Tensor]
    seen: Seen
    views: list[np.ndarray]  # what the augmentation gave out in this step, in order, each (RUNS, n, 2)
    networks: list[ReferenceMLP]
    student: list[Trace] = field(default_factory=list)  # of each run: the pass the entropy and graph terms act on
    teacher: list[np.ndarray] = field(default_factory=list)  # of each run: the probabilities the graph is built from


def take_step(base: str, ent: bool = False, graph_term: GraphTerm | None = None, seed: int = 0, **options) -> Step:
    """One step of `base` [+ent] [+sntg] from random weights, with a teacher that differs from the student."""
    model, views, batch = make_model(seed), Views(seed), make_batch(seed)
    method = METHODS[base](make_setup(model, views, **options))
    networks = references(model)
    if base == "mt":
        randomise(method.average)
    if base == "tempens":  # an epoch that visits every row of the batch
        method.passes(batch)
        method.after_epoch()
    earlier, views.given = views.given, []
    objective = Objective(method, ent, graph_term)
    terms, seen = objective(batch)
    step = Step(objective, model, batch, terms, seen, views.given, networks)
    student_view = 1 if base == "vat" else 0  # VAT's first view is the labelled batch
    teacher_networks = references(method.average) if base == "mt" else networks
    teacher_view = earlier[0] if base == "tempens" else views.given[min(1, len(views.given) - 1)]
    for run in range(RUNS):
        step.student.append(networks[run].forward(views.given[student_view][run]))
        step.teacher.append(teacher_networks[run].forward(teacher_view[run]).p)
    return step


# --- images whose flip and translation can be read off ---------------------------------------------------------------


class Recorder(Classifier):
    """A network that remembers the images it was shown."""

    event_dims = 3
    runs = (RUNS,)

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[np.ndarray] = []
        self.scale = torch.nn.Parameter(torch.tensor(1e-3))

    def h(self, x: Tensor) -> Tensor:
        self.shown.append(x.detach().numpy().copy())
        return x.flatten(-3) * self.scale

    def g(self, features: Tensor) -> Tensor:
        return features[..., :CLASSES]


def distinct_images(n: int, size: int = 6) -> Tensor:
    """(RUNS, n, 1, size, size), no two pixels alike."""
    return torch.arange(float(RUNS * n * size * size)).reshape(RUNS, n, 1, size, size)


def changes(views: np.ndarray, images: Tensor, pixels: int) -> list[tuple[bool, int, int]]:
    """Of every image, whether its view is mirrored and by how many pixels it is moved down and right."""
    found = []
    pictures = [a.reshape(-1, *views.shape[-2:]) for a in (views, images.numpy())]
    for view, image in zip(*pictures, strict=True):
        matches = []
        for mirrored in (False, True):
            padded = np.pad(image[:, ::-1] if mirrored else image, pixels, mode="reflect")
            for top in range(2 * pixels + 1):
                for left in range(2 * pixels + 1):
                    if np.array_equal(padded[top : top + len(view), left : left + len(view)], view):
                        matches.append((mirrored, pixels - top, pixels - left))
        assert len(matches) == 1, "not a flip and a translation of the image"
        found += matches
    return found


# --- comparisons -----------------------------------------------------------------------------------------------------


def gradients(term: Tensor, model: torch.nn.Module) -> Arrays:
    """What the term alone, at weight 1, gives each parameter; zero where nothing arrives."""
    model.zero_grad(set_to_none=True)
    term.sum().backward(retain_graph=True)
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy().copy() for name, p in model.named_parameters()
    }


def assert_term(term: Tensor, model: torch.nn.Module, values: Sequence[float], expected: Sequence[Arrays]) -> None:
    """The term has the reference's value in each run, and gives every weight, down to the first layer, its gradient."""
    np.testing.assert_allclose(term.detach().numpy(), values, rtol=1e-10)
    actual = gradients(term, model)
    for run in range(RUNS):
        assert np.abs(expected[run]["hidden.0.V"]).max() > 1e-4, "the reference does not reach the first layer"
        for name in actual:
            np.testing.assert_allclose(
                actual[name][run], expected[run][name], rtol=1e-8, atol=1e-12, err_msg=f"run {run}, {name}"
            )


def differ(a: Arrays, b: Arrays) -> bool:
    """Whether two gradients of the first layer are far apart: a test that should tell them apart can."""
    scale = np.abs(a["hidden.0.V"]).max()
    return bool(np.abs(a["hidden.0.V"] - b["hidden.0.V"]).max() > 0.05 * scale)
