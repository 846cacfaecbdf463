"""`sntg demo`: three methods on three small datasets, and one page that shows what the graph term does."""

import sys
import time
from pathlib import Path

from rich.console import Console

from sntg.demo.page import error_table, write_page
from sntg.demo.plan import LABELS, cost, plan
from sntg.figures import draw_decisions, draw_embeddings
from sntg.terminal import print_table, progress_bar
from sntg.training import Config, Trained, train_all
from sntg.training.run import decisions, embedding
from sntg.training.run_folder import check_writable


def run_demo(out: Path, seed: int) -> None:
    """Trains, prints the table, and writes the figures and the page into `out`."""
    configs = sorted(plan(seed), key=lambda c: -cost(c) * c.epochs)  # the longest first, so that no core waits long
    check_writable(out)
    started = time.monotonic()
    runs = _train_with_bar(configs)
    print_table(error_table(runs), title="Error rates (%)")
    out.mkdir(parents=True, exist_ok=True)
    write_page(runs, _draw(runs, out), time.monotonic() - started, out / "index.html")
    print(f"the page with the figures: {out / 'index.html'}")


def _train_with_bar(configs: list[Config]) -> list[Trained]:
    console = Console(stderr=True)
    done = [0] * len(configs)
    with progress_bar(console) as bar:
        task = bar.add_task(f"{len(configs)} runs", total=sum(cost(c) * c.epochs for c in configs))

        def show(number: int, epochs: int) -> None:
            done[number] = epochs
            bar.update(task, completed=sum(cost(c) * e for c, e in zip(configs, done, strict=True)))
            if epochs == configs[number].epochs and not console.is_terminal:
                console.print(f"{configs[number].method} on {configs[number].dataset}: done", highlight=False)

        try:
            return train_all(configs, show)
        except KeyboardInterrupt:
            console.print("stopped; no page was written")
            sys.exit(130)


def _draw(runs: list[Trained], out: Path) -> dict[str, Path]:
    """A figure for each dataset, Pi beside Pi+SNTG."""
    figures = {name: out / f"{name}.png" for name in LABELS}
    for name, path in figures.items():
        pair = [r for m in ("pi", "pi+sntg") for r in runs if (r.config.dataset, r.config.method) == (name, m)]
        if pair[0].data.event == (2,):
            draw_decisions([decisions(r) for r in pair], path)
        else:
            draw_embeddings([embedding(r) for r in pair], path)
    return figures
