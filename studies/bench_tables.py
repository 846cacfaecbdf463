"""The tables of docs/performance.md, from the benches it stands on."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
GPU, CPU = "2026-11-19-nvidia-h200.json", "2026-11-19-amd-epyc.json"
STEPS = 500  # what the targets of an epoch are counted in
# What was wanted of a step, in ms: to be met, and hoped for.
TARGETS = {
    "pi+sntg": (2.6, 2.2),
    "tempens+sntg": (1.6, 1.3),
    "mt+sntg": (2.2, 1.9),
    "vat+ent+sntg": (5.5, 4.5),
}
ALL_TARGETS = ["1.015", "35", "10", "0.15", "4"]  # overhead, starts, evaluation; memory was that of Pi+SNTG

Row = dict[str, Any]


def read(name: str) -> dict[str, Any]:
    """A bench's results."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Cells as a table in Markdown."""
    first, *others = (f"| {' | '.join(line)} |" for line in (list(head), *rows))
    return "\n".join([first, "|---" * (first.count("|") - 1) + "|", *others])


def methods_table() -> str:
    """Every method as `auto` runs it on the GPU, beside what was wanted."""
    bench = read(GPU)
    ratios = {(r["method"] + "+sntg", r["engine"], r["precision"]): r["ratio"] for r in bench["overheads"]}
    head = ["method", "ms a step", "target (hoped for)", f"s in {STEPS} steps", "TFLOP/s", "of a product's rate"]
    head += ["times the step without SNTG", "start, s", "second start, s", "evaluation, s", "peak GiB"]
    rows = [["targets", *[""] * 5, *ALL_TARGETS]]
    for row in (row for row in bench["rows"] if row["auto"]):
        met, hoped = TARGETS.get(row["method"], (None, None))
        ratio = ratios.get((row["method"], row["engine"], row["precision"]))
        rows.append(
            [
                row["method"],
                f"{row['ms_per_step']:.2f}",
                f"{met:.2f} ({hoped:.2f})" if met else "",
                f"{STEPS * row['ms_per_step'] / 1e3:.2f}",
                f"{row['tflops']:.0f}",
                f"{row['share']:.0%}".replace("%", " %"),
                f"{ratio:.3f}" if ratio else "",
                *(f"{row[key]:.1f}" for key in ("warm_up_s", "second_warm_up_s")),
                f"{row['evaluation_s']:.3f}",
                f"{row['peak_gib']:.1f}",
            ]
        )
    return table(head, rows)


def engines_table() -> str:
    """ms a step of Pi+SNTG by precision and engine; and how far rounds of a case differ."""
    rows = {(r["precision"], r["asked"]): r for r in read(GPU)["rows"] if r["method"] == "pi+sntg"}
    engines = ("eager", "compiled", "graph")
    cells = (
        [precision, *(_with_spread(rows[precision, engine]) for engine in engines)]
        for precision in ("float32", "tf32", "bfloat16", "float16")
    )
    return table(["Pi+SNTG, ms a step", *engines], cells)


def _with_spread(row: Row) -> str:
    return f"{row['ms_per_step']:.2f} ({max(row['rounds_ms']) / min(row['rounds_ms']):.2f})"


def cpu_table() -> str:
    """Where both engines were measured on the CPU: steps, starts and whole runs."""
    by_case: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in read(CPU)["rows"]:
        by_case.setdefault((row["dataset"], row["model"], row["method"]), {})[row["engine"]] = row
    compared = {case: engines for case, engines in by_case.items() if len(engines) == 2}
    head = ["", "eager, ms a step", "compiled", "start of compiled, s", "a whole run eager, s", "compiled", "peak GiB"]
    cells = (
        [
            f"{dataset}, {model}, {method}",
            *(f"{engines[e]['ms_per_step']:.2f}" for e in ("eager", "compiled")),
            f"{engines['compiled']['warm_up_s']:.0f}",
            *(f"{_whole_run(engines[e]):.0f}" for e in ("eager", "compiled")),
            " and ".join(f"{engines[e]['peak_gib']:.1f}" for e in ("eager", "compiled")),
        ]
        for (dataset, model, method), engines in compared.items()
    )
    return table(head, cells)


def _whole_run(row: Row) -> float:
    """Seconds of a run of the recipe, its start included."""
    return float(row["warm_up_s"] + row["run_steps"] * row["ms_per_step"] / 1e3)


def cpu_overheads_table() -> str:
    """What the graph term costs on the CPU: the median of the rounds, the least and the greatest."""
    ratios = {(r["dataset"], r["method"]): r for r in read(CPU)["overheads"] if r["engine"] == "eager"}
    datasets = list(dict.fromkeys(dataset for dataset, _ in ratios))
    methods = list(dict.fromkeys(method for _, method in ratios))
    cells = (
        [dataset, *(_ratio(ratios[dataset, method]) if (dataset, method) in ratios else "" for method in methods)]
        for dataset in datasets
    )
    return table(["times the step without SNTG, eager", *methods], cells)


def _ratio(found: Row) -> str:
    return f"{found['ratio']:.2f} ({min(found['rounds']):.2f} to {max(found['rounds']):.2f})"
