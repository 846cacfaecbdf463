"""How hard the labels of a seed are on CIFAR-10: the test error of a plain classifier that sees nothing else.

    python studies/label_sets.py --data DIR --out FILE [--seeds 20]

Ridge regression on fixed features: 400 whitened patches as filters, rectified, averaged over the image's quarters. A
seed's labels are those a run with that seed gets. Errors are on the test set, and nothing is chosen by them: they tell
an unlucky draw of labels from a defect.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor
from tuning import save

from sntg.data import load_dataset, make_split, whiten

LABELS, FILTERS, SIZE, PENALTY = 4000, 400, 6, 800.0


def filters(x: Tensor) -> Tensor:
    """Patches of random images, of length one."""
    torch.manual_seed(0)
    some = x[torch.randperm(len(x))[:2000]]
    patches = F.unfold(some, SIZE, stride=3).transpose(1, 2).flatten(0, 1)
    chosen = patches[torch.randperm(len(patches))[:FILTERS]]
    return (chosen / chosen.norm(dim=1, keepdim=True)).view(FILTERS, x.shape[1], SIZE, SIZE)


def features(x: Tensor, kernel: Tensor) -> Tensor:
    def of(part: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(F.relu(F.conv2d(part, kernel, stride=2) - 0.5), 2).flatten(1)

    return torch.cat([of(part) for part in torch.split(x, 250)]).double()


def ridge_error(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> float:
    """Of the ridge regression of the classes, +1 and -1, on the features."""
    targets = 2.0 * F.one_hot(y, 10).double() - 1
    weights = torch.linalg.solve(x.T @ x + PENALTY * torch.eye(x.shape[1]).double(), x.T @ targets)
    return 100 * float(((test_x @ weights).argmax(1) != test_y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    data = whiten(load_dataset("cifar10", 0, given.data), "zca")
    kernel = filters(data.train_x)
    train_f, test_f = features(data.train_x, kernel), features(data.test_x, kernel)
    shift, scale = train_f.mean(0), train_f.std(0)
    train_f, test_f = (F.pad((f - shift) / scale, (0, 1), value=1.0) for f in (train_f, test_f))
    errors = []
    for seed in range(given.seeds):
        shown = make_split(data.train_y, LABELS, 10, seed).labels >= 0
        errors.append(ridge_error(train_f[shown], data.train_y[shown], test_f, data.test_y))
        print(f"seed {seed}: {errors[-1]:.2f} %", flush=True)
    figures = {"errors": errors, "mean": mean(errors), "deviation": stdev(errors)}
    save({"name": "labels of a seed, ridge regression on fixed features", **figures}, given.out)


if __name__ == "__main__":
    main()
