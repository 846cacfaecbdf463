"""Pi+SNTG on CIFAR-10 in one file, written from the recipe (`sntg recipe`) without a look at the package.

    python studies/one_file.py --data DIR --labels RUN/split.txt --out FILE [--k 0.1] [--seed 0] [--epochs 300]

DIR holds cifar-10-batches-bin/. The labels are those of a run's split file, so that both train on the same; where both
then err alike, what they have in common is the recipe and the labels. On a GPU the step is compiled, recorded and
replayed, with convolutions in bfloat16. FILE gets a line an epoch, in JSON.
"""

import argparse
import json
import math
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CLASSES, BATCH, PAD, NOISE, LEAK, MARGIN = 10, 100, 2, 0.15, 0.1, 1.0
LR, W_MAX, BETA2, EPS = 3e-3, 100.0, 0.999, 1e-8
MEAN_MOMENTUM, EMA = 0.999, 0.999  # of the running means, and of the weights' average
WIDTHS = (128, 128, 128, 256, 256, 256, 512, 256, 128)  # of the nine convolutions
SIZES = (3, 3, 3, 3, 3, 3, 3, 1, 1)
BORDERS = (1, 1, 1, 1, 1, 1, 0, 0, 0)
POOLED = (2, 5)  # the convolutions that max-pooling and dropout follow
ALIGN = 64  # of the tensors in the flat vector, as those that stand alone are: convolutions want it


def schedule(epoch: int, epochs: int, labelled_share: float) -> tuple[float, float, float]:
    """Learning rate, beta1 and the consistency's weight of an epoch, counted from 0."""
    rise, fall = epochs * 80 / 300, epochs * 50 / 300
    up = math.exp(-5 * (1 - epoch / rise) ** 2) if epoch < rise else 1.0
    down = math.exp(-12.5 * ((epoch - epochs + fall) / fall) ** 2) if epoch >= epochs - fall else 1.0
    return up * down * LR, down * 0.9 + (1 - down) * 0.5, 0.0 if epoch == 0 else up * W_MAX * labelled_share


# --------------------------------------------------------------------------------------------------------------- images


def read(folder: Path, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 3072) and classes (N,)."""
    raw = np.concatenate([np.fromfile(folder / "cifar-10-batches-bin" / n, np.uint8).reshape(-1, 3073) for n in names])
    return raw[:, 1:], raw[:, 0].astype(np.int64)


def fit_zca(pixels: np.ndarray) -> tuple[Tensor, Tensor]:
    """The mean, and U diag(1 / sqrt(S + 1e-5)) U^T, in float64."""
    parts = [torch.from_numpy(part).double() / 255 for part in np.array_split(pixels, -(-len(pixels) // 5000))]
    mean = sum((part.sum(0) for part in parts), torch.zeros(())) / len(pixels)
    covariance = sum(((part - mean).T @ (part - mean) for part in parts), torch.zeros(())) / len(pixels)
    S, U = torch.linalg.eigh(covariance)
    return mean, (U * (S.clamp_min(0) + 1e-5).rsqrt()) @ U.T


def whitened(pixels: np.ndarray, mean: Tensor, matrix: Tensor, device: torch.device) -> Tensor:
    parts = np.array_split(pixels, -(-len(pixels) // 5000))
    flat = [((torch.from_numpy(p).double() / 255 - mean) @ matrix).float() for p in parts]
    return torch.cat(flat).view(-1, 3, 32, 32).to(device)


def augmented(padded: Tensor, rows: Tensor, views: int) -> Tensor:
    """Views of the rows of padded (N, 36, 36, 3), one after the other: one flip an image, a place and noise a view."""
    n, device = len(rows), padded.device
    mirrored = torch.rand(n, device=device) < 0.5
    places = torch.randint(0, 2 * PAD + 1, (views, n, 2), device=device)
    line = torch.arange(32, device=device)
    seen = []
    for place in places:
        down = place[:, :1] + line
        across = place[:, 1:] + torch.where(mirrored[:, None], 31 - line, line)
        seen.append(padded[rows[:, None, None], down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2))
    x = torch.cat(seen)
    return x + NOISE * torch.randn_like(x)


def dropout_masks(rows: int, device: torch.device) -> list[Tensor]:
    """Where outputs of the two pooled layers stay."""
    shapes = [(rows, WIDTHS[POOLED[0]], 16, 16), (rows, WIDTHS[POOLED[1]], 8, 8)]
    empty = [torch.empty(s, dtype=torch.bool, device=device, memory_format=torch.channels_last) for s in shapes]
    return [mask.bernoulli_(0.5) for mask in empty]


# -------------------------------------------------------------------------------------------------------------- network

SHAPES = [(c, i, s, s) for c, i, s in zip(WIDTHS, (3, *WIDTHS[:-1]), SIZES, strict=True)] + [(CLASSES, WIDTHS[-1])]
PARTS = [part for shape in SHAPES for part in (shape, shape[:1], shape[:1])]  # V, g, b of each layer
ENDS = list(accumulate(-(-math.prod(part) // ALIGN) * ALIGN for part in PARTS))  # in the flat vector of all of them


def parts_of(flat: Tensor) -> list[Tensor]:
    """V, g, b of the first layer, then of the second, and so on, as views of the flat vector."""
    begins = [0, *ENDS[:-1]]
    return [flat[i : i + math.prod(part)].view(part) for i, part in zip(begins, PARTS, strict=True)]


def initial(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    flat = torch.zeros(ENDS[-1])
    for i, parameter in enumerate(parts_of(flat)):
        if i % 3 == 0:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
        elif i % 3 == 1:
            parameter.fill_(1.0)
    return flat


def product(i: int, x: Tensor, V: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    """Layer i without mean and bias: weight-normed, the convolutions in dtype, the dense layer as x is."""
    norm = V.flatten(1).square().sum(1).sqrt()
    weight = V * (g / norm).view(-1, *[1] * (V.dim() - 1))
    if i == len(WIDTHS):
        return F.linear(x, weight)
    weight = weight.to(dtype=dtype, memory_format=torch.channels_last)
    return F.conv2d(x.to(dtype), weight, padding=BORDERS[i])


def forward(
    parameters: list[Tensor], x: Tensor, masks: list[Tensor], views: int, dtype: torch.dtype, initialise: bool = False
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Training mode: logits, features, and every layer's batch means (views, outputs).

    initialise: divides every g, in place, by the deviation of the layer's output.
    """
    means, features, exact = [], x, parameters[0].dtype
    for i in range(len(SHAPES)):
        V, g, b = parameters[3 * i : 3 * i + 3]
        y = product(i, x, V, g, dtype)
        y = y.view(views, -1, *y.shape[1:]).to(exact)
        over = (1, 3, 4) if y.dim() == 5 else (1,)
        like = (1, 1, -1, *[1] * (y.dim() - 3))
        mean = y.mean(over, keepdim=True)
        means.append(mean.view(views, -1))
        y = y - mean
        if initialise:
            deviation = y.square().mean((0, *over)).sqrt()
            g.div_(deviation)
            y = y / deviation.view(like)
        y = (y + b.view(like)).flatten(0, 1)
        if i == len(WIDTHS):
            return y, features, means
        x = F.leaky_relu(y, LEAK)
        if i in POOLED:
            x = F.max_pool2d(x.to(dtype), 2) * masks[POOLED.index(i)] * 2.0
        if i == len(WIDTHS) - 1:
            x = features = x.mean((2, 3))
    raise AssertionError("the last layer returns")


@torch.no_grad()
def predicted(flat: Tensor, running: list[Tensor], x: Tensor) -> Tensor:
    """Logits in evaluation mode, in float32: running means, no noise, no dropout."""
    parameters = parts_of(flat)
    for i in range(len(SHAPES)):
        V, g, b = parameters[3 * i : 3 * i + 3]
        x = product(i, x, V, g, torch.float32)
        x = x + (b - running[i]).view(1, -1, *[1] * (x.dim() - 2))
        if i < len(WIDTHS):
            x = F.leaky_relu(x, LEAK)
        if i in POOLED:
            x = F.max_pool2d(x, 2)
        if i == len(WIDTHS) - 1:
            x = x.mean((2, 3))
    return x


def error(flat: Tensor, running: list[Tensor], x: Tensor, y: Tensor) -> float:
    """In percent."""
    logits = torch.cat([predicted(flat, running, part) for part in torch.split(x, 500)])
    return 100 * float((logits.argmax(1) != y).double().mean())


# ----------------------------------------------------------------------------------------------------------------- loss


def terms(logits: Tensor, h: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, consistency and SNTG of logits and features (2n, ...), labels (n,) with -1 where unknown."""
    n = len(labels)
    a, b = logits[:n], logits[n:]
    known = labels >= 0
    supervised = -(F.log_softmax(a, 1).gather(1, labels.clamp_min(0)[:, None])[:, 0] * known).sum() / n
    consistency = (F.softmax(a, 1) - F.softmax(b, 1)).square().mean()
    target = torch.where(known, labels, b.detach().argmax(1))
    half = n // 2
    neighbours = target[:half] == target[half:]
    d2 = (h[:half] - h[half:n]).square().mean(1)
    apart = d2 > 0
    d = torch.where(apart, torch.where(apart, d2, 1.0).sqrt(), 0.0)  # the root has no gradient at 0
    sntg = torch.where(neighbours, d2, (MARGIN - d).clamp_min(0).square()).mean()
    return torch.stack([supervised, consistency, sntg])


def loss(
    parameters: list[Tensor], x: Tensor, masks: list[Tensor], labels: Tensor, w: Tensor, k: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The loss, its terms, and the batch means of branch b."""
    logits, h, means = forward(parameters, x, masks, 2, dtype)
    found = terms(logits, h, labels)
    return found[0] + w * (found[1] + k * found[2]), found.detach(), [m[1].detach() for m in means]


def update(P: Tensor, m: Tensor, v: Tensor, average: Tensor, gradient: Tensor, rate: Tensor, beta1: Tensor) -> None:
    """Adam with its epsilon beside the root of the uncorrected v, and the average of the new weights."""
    m.copy_(beta1 * m + (1 - beta1) * gradient)
    v.copy_(BETA2 * v + (1 - BETA2) * gradient * gradient)
    P.copy_(P - rate * m / (v.sqrt() + EPS))
    average.copy_(EMA * average + (1 - EMA) * P)


# ------------------------------------------------------------------------------------------------------------------ run


class Run:
    """All that a step changes is in tensors, so that on a GPU it can be recorded once and replayed."""

    def __init__(self, padded: Tensor, labels: Tensor, k: float, seed: int) -> None:
        self.padded, self.labels, self.k, self.device = padded, labels, k, padded.device
        on_gpu = self.device.type == "cuda"
        self.P = initial(seed).to(self.device)
        self.dtype = torch.bfloat16 if on_gpu else self.P.dtype  # of the convolutions
        self._set_scales()
        self.m, self.v, self.average = torch.zeros_like(self.P), torch.zeros_like(self.P), self.P.clone()
        self.running = [torch.zeros(shape[0], device=self.device) for shape in SHAPES]
        self.order = torch.zeros(len(padded) // BATCH, BATCH, dtype=torch.int64, device=self.device)
        self.place = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.sums = torch.zeros(3, device=self.device)
        # In float64, for 1 - beta^t takes small differences.
        self.t, self.lr, self.beta1 = (torch.zeros((), dtype=torch.float64, device=self.device) for _ in range(3))
        self.w = torch.zeros((), device=self.device)
        self.loss = torch.compile(loss, dynamic=False) if on_gpu else loss
        self.update = torch.compile(update, dynamic=False) if on_gpu else update
        self.replay = self._recorded() if on_gpu else self.step

    @torch.no_grad()
    def _set_scales(self) -> None:
        """Data-dependent initialisation on one augmented batch, in full precision."""
        rows = torch.randperm(len(self.padded), device=self.device)[:BATCH]
        x, masks = augmented(self.padded, rows, 1), dropout_masks(BATCH, self.device)
        forward(parts_of(self.P), x, masks, 1, self.P.dtype, initialise=True)

    def step(self) -> None:
        rows = self.order.index_select(0, self.place)[0]
        x, masks = augmented(self.padded, rows, 2), dropout_masks(2 * BATCH, self.device)
        # Fresh leaves: none of autograd's nodes outlives a step, or belongs to another stream than the recording's.
        parameters = [p.detach().requires_grad_() for p in parts_of(self.P)]
        value, found, means = self.loss(parameters, x, masks, self.labels[rows], self.w, self.k, self.dtype)
        flat = torch.zeros_like(self.P)
        for slot, gradient in zip(parts_of(flat), torch.autograd.grad(value, parameters), strict=True):
            slot.copy_(gradient)
        with torch.no_grad():
            self.t += 1
            rate = self.lr * torch.sqrt(1 - torch.pow(BETA2, self.t)) / (1 - torch.pow(self.beta1, self.t))
            self.update(self.P, self.m, self.v, self.average, flat, rate.to(flat.dtype), self.beta1.to(flat.dtype))
            for running, mean in zip(self.running, means, strict=True):
                running.mul_(MEAN_MOMENTUM).add_(mean, alpha=1 - MEAN_MOMENTUM)
            self.sums += found
            self.place += 1

    def _recorded(self) -> Callable[[], None]:
        """The step as a CUDA graph; what its first calls have changed is put back."""
        self.order.copy_(torch.arange(self.order.numel(), device=self.device).view_as(self.order))
        state = [self.P, self.m, self.v, self.average, *self.running, self.t, self.place, self.sums]
        before = [s.clone() for s in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        for s, old in zip(state, before, strict=True):
            s.copy_(old)
        return graph.replay

    def epoch(self, order: Tensor, lr: float, beta1: float, w: float) -> list[float]:
        """The terms' means over the batches of the order (steps, n)."""
        self.order.copy_(order)
        self.place.zero_()
        self.sums.zero_()
        for value, tensor in zip((lr, beta1, w), (self.lr, self.beta1, self.w), strict=True):
            tensor.fill_(value)
        for _ in order:
            self.replay()
        return (self.sums / len(order)).tolist()


def load(data: Path, split: Path, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Padded training images, their labels (-1 where unknown), test images and their classes."""
    pixels, _ = read(data, [f"data_batch_{i}.bin" for i in range(1, 6)])
    test_pixels, test_y = read(data, ["test_batch.bin"])
    mean, matrix = fit_zca(pixels)
    padded = F.pad(whitened(pixels, mean, matrix, device), (PAD,) * 4, mode="reflect").permute(0, 2, 3, 1).contiguous()
    rows, classes = np.loadtxt(split, dtype=np.int64).T
    labels = np.full(len(pixels), -1)
    labels[rows] = classes
    test_x = whitened(test_pixels, mean, matrix, device).contiguous(memory_format=torch.channels_last)
    return padded, torch.from_numpy(labels).to(device), test_x, torch.from_numpy(test_y).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--k", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=300)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    padded, labels, test_x, test_y = load(given.data, given.labels, device)
    torch.backends.cudnn.allow_tf32 = False  # initialisation and evaluation are float32's
    torch.backends.cudnn.benchmark = True  # the recording keeps the fastest kernels
    run = Run(padded, labels, given.k, given.seed)
    torch.backends.cudnn.benchmark = False  # an evaluation is over before they are found
    share = int((labels >= 0).sum()) / len(labels)
    steps = len(padded) // BATCH
    shuffler = torch.Generator().manual_seed(given.seed + 1)
    with given.out.open("w") as lines:
        for epoch in range(given.epochs):
            lr, beta1, w = schedule(epoch, given.epochs, share)
            order = torch.randperm(len(padded), generator=shuffler)[: steps * BATCH].view(steps, BATCH)
            record = dict(zip(("supervised", "consistency", "sntg"), run.epoch(order, lr, beta1, w), strict=True))
            if not all(map(math.isfinite, record.values())):
                raise SystemExit(f"a loss of epoch {epoch + 1} is not finite: {record}")
            if (epoch + 1) % 10 == 0 or epoch + 1 == given.epochs:
                record["ema_error"] = error(run.average, run.running, test_x, test_y)
                record["student_error"] = error(run.P, run.running, test_x, test_y)
            print(json.dumps({"epoch": epoch + 1, **record}), file=lines, flush=True)


if __name__ == "__main__":
    main()
