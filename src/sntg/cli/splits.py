"""What `sntg split` does."""

from pathlib import Path

from sntg.data import entry, load_dataset, make_split, write_split
from sntg.training import resolve


def export_split(dataset: str, labels: int | str, seed: int, kind: str, noise: float, data: str, out: Path) -> str:
    """Writes the index file and says so in a line."""
    c = resolve(dataset, labels, "supervised", seed, split=kind, label_noise=noise)  # refuses what no run may have
    y = load_dataset(dataset, seed, data).train_y
    split = make_split(y, c.labels, entry(dataset).classes, seed, kind, noise)
    write_split(out, split, f"{dataset}, {c.labels} labels, seed {seed}, {kind}, {noise:g} % noise")
    return f"{c.labels} labelled rows of {dataset} in {out}"
