"""Digits, 20 labels: supervised, Pi, Pi+SNTG and LabelSpreading, tuned on seeds 100-102, reported on seeds 0-9.

    python studies/digits.py tune pi+sntg
    python studies/digits.py test pi+sntg

`tune` tries the grid below, 4 settings for each method on seeds 100-102; `test` trains the recipe, which holds what was
chosen.
"""

import argparse
import warnings
from pathlib import Path

import torch
from sklearn.semi_supervised import LabelSpreading
from tuning import TUNING_SEEDS, Settings, grid, measure, one_by_one, seed_range, tune

from sntg.data import balanced_split
from sntg.data.digits import raw_digits

LABELS = 20
SPREADING = "label-spreading"
CHOSEN_SPREADING: Settings = {"n_neighbors": 10, "alpha": 0.2}
GRIDS = {
    "supervised": grid(lr=[1e-3, 3e-3], dropout=[0.2, 0.5]),
    "pi": grid(w_max=[10.0, 30.0], dropout=[0.2, 0.5]),
    "pi+sntg": grid(w_max=[10.0, 30.0], k=[0.1, 0.4]),
    SPREADING: grid(n_neighbors=[5, 7, 10, 15], alpha=[0.2]),
}


def label_spreading(settings: list[Settings], seeds: range) -> list[list[float]]:
    """LabelSpreading on the same training images and labels, tested on the same held-out third."""
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # it divides 0 by 0 where a point has no labelled kin
    images, y, train, held_out = raw_digits()
    truth = torch.from_numpy(y[train]).long()
    found = []
    for s in settings:
        model = LabelSpreading(kernel="knn", max_iter=200, **s)
        wrong = []
        for seed in seeds:
            model.fit(images[train], balanced_split(truth, LABELS, 10, seed).numpy())
            wrong.append(100.0 * float((model.predict(images[held_out]) != y[held_out]).mean()))
        found.append(wrong)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "test"])
    parser.add_argument("method", choices=sorted(GRIDS))
    parser.add_argument("--seeds", type=seed_range, default="0-9", help="the seeds to test, as first-last")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    a = parser.parse_args()
    name = f"digits-{a.method.replace('+', '-')}"
    spreading = a.method == SPREADING
    errors = label_spreading if spreading else one_by_one("digits", LABELS, a.method, eval_every=20)
    if a.what == "tune":
        tune(name, GRIDS[a.method], errors, a.out / f"tune-{name}.json", TUNING_SEEDS[:3], reach=0)
    else:
        measure(name, CHOSEN_SPREADING if spreading else {}, errors, a.out / f"test-{name}.json", a.seeds)
