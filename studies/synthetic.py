"""Two moons and four spins, 12 labels: Pi against Pi+SNTG, tuned on seeds 100-109, reported on seeds 0-9.

python studies/synthetic.py tune four-spins pi+sntg --device cuda --out docs/results
"""

import argparse
from pathlib import Path

from tuning import grid, tune

LABELS = 12
# The label factor L/N is 12/6000, so a w_max of 500 is a final weight of 1. 120 settings for either method.
GRIDS = {
    "pi": grid(
        w_max=[50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0],
        noise=[0.02, 0.03, 0.05, 0.08, 0.12],
        lr=[1e-3, 3e-3],
        ramp_up=[80, 200],
    ),
    "pi+sntg": grid(
        w_max=[100.0, 250.0, 500.0, 1000.0, 2500.0],
        noise=[0.05, 0.08],
        lr=[1e-3, 3e-3],
        k=[0.01, 0.03, 0.1],
        graph_start=[0, 200],
    ),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["tune"])
    parser.add_argument("dataset")
    parser.add_argument("method")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    a = parser.parse_args()
    settings = [s | ({"graph_ramp": 80} if s.get("graph_start") else {}) for s in GRIDS[a.method]]
    name = f"{a.dataset} {a.method}"
    tune(
        name,
        a.dataset,
        LABELS,
        a.method,
        settings,
        a.out / f"tune-{a.dataset}-{a.method}.json",
        device=a.device,
        eval_every=100,
    )
