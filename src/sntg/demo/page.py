"""The demo's page: one HTML file with its figures inside, readable without a network."""

import base64
import json
import platform
from importlib.resources import files
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from jinja2 import Environment, PackageLoader

import sntg
from sntg.demo.plan import LABELS, METHODS, departures
from sntg.files import write_text
from sntg.training import Trained

TITLES = {"two-moons": "Two moons", "four-spins": "Four spins", "digits": "Handwritten digits"}


def write_page(runs: list[Trained], figures: dict[str, Path], seconds: float, path: Path) -> None:
    """Renders the page from the finished runs and their figures (dataset -> PNG file)."""
    template = Environment(loader=PackageLoader("sntg.demo"), autoescape=True).get_template("page.html")
    page = template.render(
        datasets=[_dataset(name, runs, figures[name]) for name in LABELS],
        methods=METHODS,
        changes=_changes(runs),
        ten_seeds=ten_seeds(),
        seed=runs[0].config.seed,
        seconds=round(seconds),
        facts=f"sntg {sntg.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    )
    write_text(path, page)


def error_table(runs: list[Trained]) -> list[dict[str, object]]:
    """The table of error rates: a row for each dataset, a column for each method."""
    error = {(r.config.dataset, r.config.method): r.error for r in runs}
    return [
        {"dataset": name, "labels": labels} | {m: error[name, m] for m in METHODS} for name, labels in LABELS.items()
    ]


def ten_seeds() -> list[dict[str, Any]]:
    """The ten-seed results shipped with the package, with mean and median."""
    results = json.loads(files("sntg.demo").joinpath("ten_seeds.json").read_text(encoding="utf-8"))
    return [
        {"title": TITLES[r["dataset"]], **r, "mean": mean(r["errors"]), "median": median(r["errors"])}
        for r in results["runs"]
    ]


def _dataset(name: str, runs: list[Trained], figure: Path) -> dict[str, Any]:
    mine = [r for r in runs if r.config.dataset == name]
    return {
        "name": name,
        "title": TITLES[name],
        "labels": LABELS[name],
        "points": len(mine[0].data.train_x),
        "errors": {r.config.method: r.error for r in mine},
        "best": min(r.error for r in mine),
        "image": base64.b64encode(figure.read_bytes()).decode(),
    }


def _changes(runs: list[Trained]) -> dict[str, list[str]]:
    """For each dataset, what was changed from the recipe to save time."""
    changes: dict[str, list[str]] = {}
    for r in runs:
        for key, (full, ours) in departures(r.config).items():
            sentence = f"{key} {ours} instead of {full} ({r.config.method})"
            changes.setdefault(TITLES[r.config.dataset], []).append(sentence)
    return changes
