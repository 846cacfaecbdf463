"""A run as the terminal shows it: a bar with time left and the latest figures, or plain lines where there is none."""

import sys
from pathlib import Path

from rich.console import Console

from sntg.terminal import progress_bar
from sntg.training import Config, Record, run

PLAIN_LINES = 20  # how many lines a whole run prints when there is no terminal


def train_with_progress(config: Config, out: Path) -> None:
    """Trains into a folder, showing how far it is; Ctrl-C stops it and keeps what was written."""
    console = Console(stderr=True)
    try:
        with progress_bar(console) as bar:
            task = bar.add_task(config.method, total=config.epochs)

            def show(record: Record) -> None:
                bar.update(task, completed=record["epoch"], description=describe(record))
                every = max(1, config.epochs // PLAIN_LINES)
                if not console.is_terminal and (record["epoch"] % every == 0 or record["epoch"] == config.epochs):
                    console.print(
                        f"epoch {record['epoch']}/{config.epochs}  {describe(record)}", highlight=False, soft_wrap=True
                    )

            trained = run(config, out, show)
    except KeyboardInterrupt:
        console.print(f"stopped; what was written is in {out}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(130)
    print(
        f"{config.method} on {config.dataset}, {config.labels} labels, seed {config.seed}: {trained.error:.2f} % error"
    )
    print(f"run folder: {out}")


def describe(record: Record) -> str:
    """The figures of an epoch in one line."""
    terms = "  ".join(f"{name} {value:.4f}" for name, value in record["loss"].items())
    error = "" if record["error"] is None else f"  error {record['error']:.2f} %"
    return terms + error
