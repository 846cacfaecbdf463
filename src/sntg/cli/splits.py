"""What `sntg split` does."""

from pathlib import Path

from sntg.data import entry, load_dataset, make_split, write_split


def export_split(dataset: str, labels: int | str, seed: int, kind: str, noise: float, data: str, out: Path) -> str:
    """Writes the index file and says so in a line."""
    y = load_dataset(dataset, seed, data).train_y
    count = len(y) if labels == "all" else int(labels)
    split = make_split(y, count, entry(dataset).classes, seed, kind, noise)
    write_split(out, split, f"{dataset}, {count} labels, seed {seed}, {kind}, {noise:g} % noise")
    return f"{count} labelled rows of {dataset} in {out}"
