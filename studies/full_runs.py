"""Full runs on CIFAR-10, and the choice of k that precedes them.

    python studies/full_runs.py run --method pi+sntg --data DIR --out RUN [--seed 1] [--precision tf32] [--set K=V ...]
    python studies/full_runs.py choose --method pi+sntg --data DIR --out FOLDER [--then]

`run` is `sntg train` with its provenance in RUN/result.json. `choose` trains once with each k in {0.1, 0.2, 0.4} on a
schedule of a fifth of the length, with 5,000 training images held out, and takes the k with the lowest error on them;
the test set has no part in it. With `--then` a full run with that k follows, in FOLDER/full.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from tuning import save

from sntg.training import Record, Trained, read_setting, resolve, run
from sntg.training.config import default_device

LABELS, KS, HELD_OUT, SHORT = 4000, (0.1, 0.2, 0.4), 5000, 60


def train(method: str, data: str, out: Path, **settings: Any) -> Trained:
    """One run with a line an epoch, and a result file that says where it comes from."""
    config = resolve("cifar10", LABELS, method, data=data, device=default_device(), **settings)
    begun = time.monotonic()
    first = []

    def note(record: Record) -> None:
        first.append(time.monotonic())
        print(f"{time.monotonic() - begun:.1f} s {json.dumps(record)}", flush=True)

    trained = run(config, out, on_epoch=note)
    timing = {"seconds": time.monotonic() - begun, "before_epoch_2": first[0] - begun}
    timing["seconds_per_epoch"] = (first[-1] - first[0]) / max(1, len(first) - 1)
    last = {key: trained.history[-1][key] for key in ("epoch", "loss", "student_error", "ema_error", "error")}
    how = {key: getattr(trained.config, key) for key in ("engine", "precision", "seed", "k", "validation")}
    save({"name": f"cifar10 {method}", **how, **timing, **last}, out / "result.json")
    return trained


def choose(method: str, data: str, out: Path, then: bool, settings: dict[str, Any]) -> None:
    """The k with the lowest error on the held-out images."""
    errors = {}
    for k in KS:
        short = {"epochs": SHORT, "eval_every": SHORT // 6, "validation": HELD_OUT, "k": k}
        errors[k] = train(method, data, out / f"k-{k}", **short, **settings).error
    best = min(errors, key=lambda k: errors[k])
    save({"name": f"k of {method} on cifar10", "held_out_errors": errors, "chosen": best}, out / "choice.json")
    print(f"held-out errors {errors}: k = {best}", flush=True)
    if then:
        train(method, data, out / "full", k=best, eval_every=10, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "choose"))
    parser.add_argument("--method", required=True)
    parser.add_argument("--data", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--then", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    given = parser.parse_args()
    settings = {"seed": given.seed, "precision": given.precision, **dict(read_setting(s) for s in given.settings)}
    if given.what == "choose":
        choose(given.method, given.data, given.out, given.then, settings)
    else:
        train(given.method, given.data, given.out, **settings)


if __name__ == "__main__":
    main()
