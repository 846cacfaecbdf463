"""The tables of what studies/vat_accuracy.py found, for docs/cifar10.md."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "cifar10" / "vat-accuracy"
ARMS = {
    "float16": "the recipe, in float16 as `auto` has it",
    "tf32": "in tf32",
    "rounding": "direction from noise in the logits, in float16",
}
WAYS = {
    "exact": "exact, as the recipe has it",
    "xi = 1e-6 in float32": "PyTorch's difference, xi = 1e-6, in float32",
    "rounding": "from noise in the logits",
    "at random": "at random",
}


def arms_table() -> str:
    """Errors on the images held out (and on the training images), and how far each arm's are from the first's."""
    found = {arm: json.loads((RESULTS / f"{arm}.json").read_text()) for arm in ARMS}
    first, seeds = found["float16"], found["float16"]["seeds"]
    head = ["VAT+Ent, 40 epochs", *(f"seed {seed}" for seed in seeds), "more than the first, mean"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for arm, title in ARMS.items():
        assert found[arm]["seeds"] == seeds
        pairs = zip(found[arm]["held_out_errors"], found[arm]["training_errors"], strict=True)
        cells = [f"{held_out:.2f} ({training:.2f})" for held_out, training in pairs]
        more = (_more(found[arm], first, images) for images in ("held_out_errors", "training_errors"))
        cells.append("" if arm == "float16" else "{:+.2f} ({:+.2f})".format(*more))
        rows.append(" | ".join(["", title, *cells, ""]).strip())
    return "\n".join(rows)


def _more(arm: dict[str, Any], first: dict[str, Any], images: str) -> float:
    return mean(a - b for a, b in zip(arm[images], first[images], strict=True))


def directions_table() -> str:
    """How far each direction moves the predictions of a trained network, and how alike two of them are."""
    runs = json.loads((RESULTS / "directions.json").read_text())["runs"]
    kinds = {
        "divergence": "KL divergence at epsilon = 8",
        "to itself from another start": "cosine to the same from another start",
        "to the exact one from another start": "cosine to the exact one from another start",
    }
    head = ["direction", *kinds.values()]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for way, title in WAYS.items():
        cells = [", ".join(f"{run[way][kind]:.2f}" for run in runs.values()) for kind in kinds]
        rows.append(" | ".join(["", title, *cells, ""]).strip())
    return "\n".join(rows)
