"""Two moons and four spins, 12 labels: Pi against Pi+SNTG, tuned on seeds 100-109, reported on seeds 0-9.

    python studies/synthetic.py tune four-spins pi+sntg --device cuda
    python studies/synthetic.py test four-spins pi+sntg

`tune` tries the grid below; `test` trains the recipe, which holds what was chosen.
"""

import argparse
from pathlib import Path

from tuning import grid, measure, one_by_one, seed_range, stacked, tune

LABELS = 12
# The label factor L/N is 12/6000, so a w_max of 500 is a final weight of 1. 36 settings for either method.
GRIDS = {
    ("two-moons", "pi"): grid(w_max=[50.0, 100.0, 250.0], noise=[0.05, 0.08, 0.12], lr=[1e-3, 3e-3], ramp_up=[80, 200]),
    ("two-moons", "pi+sntg"): grid(
        w_max=[50.0, 100.0, 250.0], noise=[0.05, 0.08], k=[0.03, 0.1, 0.2], graph_start=[100, 200], graph_ramp=[80]
    ),
    ("four-spins", "pi"): grid(
        w_max=[250.0, 500.0, 1000.0], noise=[0.03, 0.05, 0.08], lr=[1e-3, 3e-3], ramp_up=[80, 200]
    ),
    ("four-spins", "pi+sntg"): grid(
        w_max=[250.0, 500.0, 1000.0], noise=[0.03, 0.05], k=[0.01, 0.02, 0.05], graph_start=[0, 200], graph_ramp=[80]
    ),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "test"])
    parser.add_argument("dataset", choices=["two-moons", "four-spins"])
    parser.add_argument("method", choices=["pi", "pi+sntg"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=seed_range, default="0-9", help="the seeds to test, as first-last")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    a = parser.parse_args()
    name = f"{a.dataset}-{a.method.replace('+', '-')}"
    if a.what == "tune":
        errors = stacked(a.dataset, LABELS, a.method, device=a.device, eval_every=100)
        tune(name, GRIDS[a.dataset, a.method], errors, a.out / f"tune-{name}.json")
    else:
        errors = one_by_one(a.dataset, LABELS, a.method, eval_every=25)
        measure(name, {}, errors, a.out / f"test-{name}.json", a.seeds)
