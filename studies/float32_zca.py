"""Pi+SNTG on images whose ZCA was fitted in float32, as the public code's is, and not in float64.

    python studies/float32_zca.py --seeds 1-3 --set k=0.1

CIFAR-10's largest variance is about 5e6 times the 1e-5 that is added to all of them, so float32, which rounds to a part
in 1e7, gets the small ones wrong by about as much as is added. All else is `sntg train cifar10 --labels 4000`.
"""

import sys

import torch
from torch import Tensor

from sntg.cli import main
from sntg.data import whitening
from sntg.data.whitening_cache import ZCA, read_or_fit


def fit_in_float32(x: Tensor, prepare: whitening.Map, scales: whitening.Map, worker: torch.device) -> ZCA:
    """Mean, covariance and its singular vectors, all in float32 on the CPU; the result is float64 by type only."""
    rows = prepare(x.float()).flatten(1)
    mean = rows.mean(0)
    rows -= mean
    directions, variances, _ = torch.linalg.svd(rows.T @ rows / len(rows))
    matrix = (directions * scales(variances)) @ directions.T
    return ZCA(mean.double(), matrix.double())


if __name__ == "__main__":
    whitening._fit = fit_in_float32
    # Under a name of its own, or the float64 one would be read from the cache, or this one later taken for it.
    whitening.read_or_fit = lambda label, pixels, fit: read_or_fit(f"float32-{label}", pixels, fit)
    sys.argv[1:] = ["train", "cifar10", "--labels", "4000", "--method", "pi+sntg", *sys.argv[1:]]
    main()
