"""Writes the tables of the docs, the README and the demo's page from the results in docs/results.

    python studies/tables.py

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; nothing in it is written by hand.
"""

import json
import re
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench_tables import cpu_overheads_table, cpu_table, engines_table, methods_table
from crossed_runs import crossed_table
from odds import PROTOTYPE_K4, correlations_table, odds_table
from scipy import stats
from seed_effect import PI_SNTG, effect_table, gain_table, labels_table, read_run, runs_table
from vat_accuracy_tables import arms_table, directions_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STATISTICS = ROOT / "docs" / "cifar10-statistics.md"
TITLES = {"two-moons": "two moons", "four-spins": "four spins", "digits": "digits"}
METHODS = {"supervised": "supervised", "pi": "Pi", "pi-sntg": "Pi+SNTG", "label-spreading": "LabelSpreading"}
# Pi+SNTG by k: test errors of the prototype's seeds, and its cross-entropy on the labelled images where that is known.
PROTOTYPE: dict[str, tuple[list[float], float | None]] = {
    "0.1": ([PI_SNTG.prototype], 0.0014),
    "0.2": ([10.81], None),
    "0.4": (PROTOTYPE_K4, None),
    "1.0": ([14.15], 0.019),
}
# What was changed in the recipe, by the names of the run folders.
VARIANTS = {
    "": "the recipe",
    "float32-zca-": "ZCA fitted in float32",
    "both-branches-": "`both-features`: graph term on both branches' features",
    "mean-graph-": "`mean-graph`: graph of both branches' mean prediction",
    "own-flips-": "`own-flips`: flips of each branch's own",
    "both-labels-": "`both-labels`: cross-entropy of both branches",
    "three-variants-": "`own-flips+both-labels+dense-16`: these two, and features and output layer in bfloat16",
}
# Methods with few full runs: their folders' names before the seed, the published error, its deviation, and whose it is.
FEW = {
    "VAT+Ent": ("vat-ent-4000", 10.55, 0.05, "Miyato et al., 2017"),
    "Mean Teacher": ("mt-4000", 12.31, 0.28, "Tarvainen & Valpola, 2017"),
}
BEST = 5  # settings of each method that a table of the tuning shows
K_SEEDS = range(4)  # that k = 0.4, of which the prototype has two runs, was run with
LABELS = {"two-moons": 12, "four-spins": 12, "digits": 20}


def results(dataset: str, kind: str) -> dict[str, dict[str, Any]]:
    """The results of one dataset by method; kind is "test" or "tune"."""
    files = {m: RESULTS / f"{kind}-{dataset}-{m}.json" for m in METHODS}
    return {m: json.loads(f.read_text()) for m, f in files.items() if f.exists()}


def seeds_table(dataset: str) -> str:
    """Every seed's error, mean and median, a row for each method."""
    rows = ["| method | " + " | ".join(map(str, range(10))) + " | mean | median |", "|---" * 13 + "|"]
    for method, result in results(dataset, "test").items():
        errors = result["errors"]
        cells = " | ".join(f"{e:.2f}" for e in errors)
        rows.append(f"| {METHODS[method]} | {cells} | **{mean(errors):.2f}** | **{median(errors):.2f}** |")
    return "\n".join(rows)


def tuning_table(dataset: str) -> str:
    """The best settings of each method on the tuning seeds; the first of each is the chosen one."""
    rows = ["| method | score | mean | median | settings |", "|---" * 5 + "|"]
    for method, result in results(dataset, "tune").items():
        for tried in result["tried"][:BEST]:
            settings = ", ".join(f"{k} {v}" for k, v in tried["settings"].items())
            errors = tried["errors"]
            figures = f"{tried['score']:.2f} | {mean(errors):.2f} | {median(errors):.2f}"
            rows.append(f"| {METHODS[method]} | {figures} | {settings} |")
    return "\n".join(rows)


def digits_gain_table() -> str:
    """What the graph term takes off Pi's error on the digits: seeds 0-9, those trained after them, and all."""
    found = [
        [json.loads((folder / f"test-digits-{method}.json").read_text()) for method in ("pi", "pi-sntg")]
        for folder in (RESULTS, RESULTS / "fresh")
    ]
    rows = ["| seeds | Pi | Pi+SNTG | SNTG takes off (95 %) |", "|---" * 4 + "|"]
    every: list[tuple[float, float]] = []
    for pi, with_graph in found:
        pairs = list(zip(pi["errors"], with_graph["errors"], strict=True))
        rows.append(_gain_row(f"{pi['seeds'][0]}-{pi['seeds'][-1]}", pairs))
        every += pairs
    return "\n".join([*rows, _gain_row(f"all {len(every)}", every)])


def _gain_row(name: str, pairs: list[tuple[float, float]]) -> str:
    gains = [before - after for before, after in pairs]
    low, high = stats.ttest_1samp(gains, 0).confidence_interval()
    before, after = (mean(errors) for errors in zip(*pairs, strict=True))
    return f"| {name} | {before:.2f} | {after:.2f} | {mean(gains):.2f} ({low:+.2f} to {high:+.2f}) |"


def overview() -> str:
    """The README's table: mean and median for each dataset and method."""
    rows = ["| dataset | labels | " + " | ".join(METHODS.values()) + " |", "|---" * (2 + len(METHODS)) + "|"]
    for dataset, title in TITLES.items():
        found = {m: r["errors"] for m, r in results(dataset, "test").items()}
        cells = [f"{mean(found[m]):.2f} ({median(found[m]):.2f})" if m in found else "" for m in METHODS]
        rows.append(f"| {title} | {LABELS[dataset]} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def first_epochs_table() -> str:
    """Each method's loss terms and their gradients over three epochs at full weight."""
    rows = [
        "| method | steps | term | loss, epoch by epoch | norm of its gradient in the first layer |",
        "|---" * 5 + "|",
    ]
    for name in ("first-epochs", "first-epochs-vat"):
        for run in json.loads((RESULTS / "cifar10" / f"{name}.json").read_text())["runs"]:
            for term in run["epochs"][0]["loss"]:
                figures = (", ".join(f"{e[kind][term]:.3g}" for e in run["epochs"]) for kind in ("loss", "gradient"))
                rows.append(f"| {run['method']} | {run['steps']} | {term} | " + " | ".join(figures) + " |")
    return "\n".join(rows)


def k_table() -> str:
    """What the short schedule says of every k on the images held out, and the full runs of four seeds."""
    home = RESULTS / "cifar10"
    head = ["k", "60 epochs: held out", *(f"300 epochs: seed {seed}" for seed in K_SEEDS), "mean", "cross-entropy"]
    head += ["prototype", "ours above it", "its cross-entropy"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    held_out = json.loads((home / "pi-sntg-choice-of-k" / "choice.json").read_text())["held_out_errors"]
    for k, (prototype, cross_entropy) in PROTOTYPE.items():
        name = "pi-sntg-4000" if k == "0.4" else f"pi-sntg-k{float(k):g}-4000"  # 0.4 is the recipe's
        folders = {seed: home / f"{name}-seed-{seed}" for seed in K_SEEDS}
        runs = {seed: read_run(folder) for seed, folder in folders.items() if folder.exists()}
        ours = mean(run.test for run in runs.values())
        cells = ["", k, _cell(held_out.get(k), ".2f")]
        cells += [f"{runs[seed].test:.2f} ({runs[seed].training:.2f})" if seed in runs else "" for seed in K_SEEDS]
        cells += [f"{ours:.2f}", _cell(mean(last_loss(folders[seed]) for seed in runs), ".2g")]
        cells += [", ".join(f"{error:.2f}" for error in prototype), f"{ours - mean(prototype):+.2f}"]
        rows.append(" | ".join([*cells, _cell(cross_entropy, ".2g"), ""]).strip())
    return "\n".join(rows)


def few_table() -> str:
    """The full runs of methods that have few, beside what was published for them."""
    rows = ["| | seed | error | published | above it | precision | minutes |", "|---" * 7 + "|"]
    for title, (name, error, deviation, source) in FEW.items():
        published = f"{error:.2f} ± {deviation:.2f} ({source})"
        for folder in sorted((RESULTS / "cifar10").glob(f"{name}-seed-*")):
            run = json.loads((folder / "result.json").read_text())
            cells = f"{run['seed']} | [{run['error']:.2f}](results/cifar10/{folder.name}) | {published}"
            cells += f" | {run['error'] - error:+.2f} | {run['precision']} | {run['seconds'] / 60:.1f}"
            rows.append(f"| {title} | {cells} |")
    return "\n".join(rows)


def variants_table() -> str:
    """Pi+SNTG, k = 0.1, as the recipe has it and with one thing changed: errors on test (and training) images."""
    seeds = range(4)
    rows = ["| Pi+SNTG, k = 0.1 | " + " | ".join(f"seed {seed}" for seed in seeds) + " |", "|---" * 5 + "|"]
    for name, title in VARIANTS.items():
        folders = [f"pi-sntg-{name}k0.1-4000-seed-{seed}" for seed in seeds]
        runs = [read_run(RESULTS / "cifar10" / f) if (RESULTS / "cifar10" / f).exists() else None for f in folders]
        cells = [
            f"[{run.test:.2f}](results/cifar10/{folder}) ({run.training:.2f})" if run else ""
            for folder, run in zip(folders, runs, strict=True)
        ]
        rows.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def last_loss(folder: Path) -> float:
    """The last epoch's cross-entropy on the labelled images, averaged over whole batches."""
    loss: float = json.loads((folder / "result.json").read_text())["loss"]["supervised"]
    return loss


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def put(path: Path, name: str, table: str) -> None:
    """Replaces the table called `name` in a document."""
    text = path.read_text()
    new, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\g<1>\n{table}\n\n\g<2>", text, flags=re.S)
    assert count == 1, f"{path} has no table {name}"
    path.write_text(new)


def for_the_page() -> dict[str, Any]:
    """The ten-seed results as the demo's page shows them."""
    return {
        "runs": [
            {"dataset": dataset, "method": METHODS[method], "errors": [round(e, 4) for e in result["errors"]]}
            for dataset in TITLES
            for method, result in results(dataset, "test").items()
        ]
    }


if __name__ == "__main__":
    for dataset in TITLES:
        document = ROOT / "docs" / ("digits.md" if dataset == "digits" else "synthetic.md")
        put(document, f"{dataset} seeds", seeds_table(dataset))
        put(document, f"{dataset} tuning", tuning_table(dataset))
    put(ROOT / "docs" / "digits.md", "digits gain", digits_gain_table())
    put(ROOT / "docs" / "cifar10.md", "first epochs", first_epochs_table())
    put(ROOT / "docs" / "cifar10.md", "full runs", runs_table())
    put(ROOT / "docs" / "cifar10.md", "gain", gain_table())
    put(ROOT / "docs" / "cifar10.md", "few runs", few_table())
    put(ROOT / "docs" / "cifar10.md", "vat accuracy", arms_table())
    put(ROOT / "docs" / "cifar10.md", "vat directions", directions_table())
    put(ROOT / "docs" / "cifar10-search.md", "variants", variants_table())
    put(ROOT / "docs" / "cifar10.md", "every k", k_table())
    for images in ("test", "training"):
        put(STATISTICS, f"seed effect, {images}", effect_table(images))
        put(STATISTICS, f"crossed runs, {images}", crossed_table(images))
    put(STATISTICS, "labels alone", labels_table())
    put(STATISTICS, "odds", odds_table())
    put(STATISTICS, "correlations", correlations_table())
    for name, table in (
        ("bench, methods", methods_table()),
        ("bench, engines", engines_table()),
        ("bench, engines on a CPU", cpu_table()),
        ("bench, SNTG on a CPU", cpu_overheads_table()),
    ):
        put(ROOT / "docs" / "performance.md", name, table)
    put(ROOT / "README.md", "overview", overview())
    page = ROOT / "src" / "sntg" / "demo" / "ten_seeds.json"
    page.write_text(json.dumps(for_the_page(), indent=1) + "\n")
