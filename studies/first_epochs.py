"""Three epochs of every method on CIFAR-10 at full weight and learning rate: is every loss term finite, does it move?

    python studies/first_epochs.py --data DIR --device cuda --out docs/results/cifar10/first-epochs.json

The recipes ramp everything up over 80 epochs, so their own first epochs would show next to nothing. A term's gradient
in the first layer, alone and at weight one, is measured before the last step of each epoch.
"""

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tuning import save

from sntg.training import Stack, resolve
from sntg.training.randomness import own_randomness

METHODS = ["supervised", "sntg", "pi", "pi+sntg", "tempens", "tempens+sntg", "mt", "mt+sntg"]
METHODS += ["vat", "vat+sntg", "vat+ent", "vat+ent+sntg"]
FULL = {"ramp_up": 0, "ramp_down": 0}


def three_epochs(method: str, data: str, device: str, **settings: Any) -> dict[str, Any]:
    """Each epoch's losses, errors and gradient norms, and the seconds it took."""
    config = resolve("cifar10", 4000, method, data=data, device=device, epochs=3, **FULL, **settings)
    with own_randomness(config):
        runs = Stack([config])
        epochs = []
        while not runs.finished:
            started = time.monotonic()
            record = None
            while record is None:
                norms = gradient_norms(runs) if (runs.step + 1) % runs.epoch_steps == 0 else None
                record = runs.advance()
            kept = {k: record[0][k] for k in ("loss", "weight", "teacher_error", "student_error", "ema_error")}
            epochs.append(kept | {"gradient": norms, "seconds": round(time.monotonic() - started, 2)})
    moved = all(e["loss"][t] != f["loss"][t] for e, f in pairwise(epochs) for t in e["loss"])
    return {"method": method, "steps": runs.step, "epochs": epochs, "every_term_moves": moved}


def gradient_norms(runs: Stack) -> dict[str, float]:
    """The norm of each term's gradient in the first layer; the run's state is put back as it was."""
    state = {name: tensor.clone() for name, tensor in runs.state().items()}
    runs.model.train()
    terms, _ = runs.objective(runs.batches.next())
    first = next(p for name, p in runs.model.named_parameters() if name.endswith(".V"))
    norms = {
        name: float(torch.autograd.grad(term.sum(), first, retain_graph=True)[0].norm()) for name, term in terms.items()
    }
    runs.load_state(state, runs.histories)
    return norms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--model", default="conv13")
    parser.add_argument("--epoch-steps", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    settings = {"model": given.model} | ({"epoch_steps": given.epoch_steps} if given.epoch_steps else {})
    results = []
    for method in given.methods:
        results.append(three_epochs(method, given.data, given.device, **settings))
        for epoch in results[-1]["epochs"]:
            print(method, epoch, flush=True)
        save({"name": "first epochs", "runs": results}, given.out)
    sys.exit(0 if all(r["every_term_moves"] for r in results) else 1)


if __name__ == "__main__":
    main()
