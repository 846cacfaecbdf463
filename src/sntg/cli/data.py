"""`sntg data fetch`, and what `sntg datasets` shows."""

from pathlib import Path
from typing import Annotated

import typer

from sntg.data import CATALOGUE
from sntg.data.fetch import fetch
from sntg.data.folders import data_folder
from sntg.data.image_sets import IMAGE_SETS, ImageSet
from sntg.data.images import find, only_pickled
from sntg.errors import unknown
from sntg.terminal import print_table

data_app = typer.Typer(help="Get the datasets.", no_args_is_help=True)
DataFolder = Annotated[
    str,
    typer.Option(
        "--data", metavar="DIR", help="Where the datasets are; else $SNTG_DATA, else the platform's cache folder."
    ),
]


@data_app.callback()
def _data() -> None:
    """Get the datasets."""


@data_app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="A dataset by name; see `sntg datasets`.")], data: DataFolder = ""
) -> None:
    """Download a dataset, or what is missing of it, and check it."""
    if name not in IMAGE_SETS:
        if name not in CATALOGUE:
            raise unknown("dataset", name, IMAGE_SETS)
        typer.echo(f"{name} is built in: there is nothing to fetch")
        return
    images = IMAGE_SETS[name]
    place = fetch(images, data_folder(data))
    typer.echo(f"{name}: {images.points} + {images.test_points} images in {place}")


def dataset_rows(folder: Path) -> list[dict[str, object]]:
    """What there is to say about each dataset, and what of it is in the data folder.

    >>> [row["on disk"] for row in dataset_rows(Path("nowhere")) if row["dataset"] in ("digits", "svhn")]
    ['built in', 'no']
    """
    built_in = [
        _row(e.name, e.points, e.test_points, e.classes, ("built in", "", ""), e.line)
        for e in CATALOGUE.values()
        if e.name not in IMAGE_SETS
    ]
    return built_in + [
        _row(s.name, s.points, s.test_points, s.classes, _on_disk(s, folder), s.line) for s in IMAGE_SETS.values()
    ]


def show_datasets(rows: list[dict[str, object]]) -> None:
    """Prints them as a table that fits a terminal: a set's size beside whether it is there, and paths below."""
    joined = [row | {"on disk": f"{row['on disk']} {row['size on disk']}".strip()} for row in rows]
    print_table([{key: row[key] for key in row if key not in ("size on disk", "where")} for row in joined])
    for row in rows:
        if row["where"]:
            typer.echo(f"{row['dataset']}: {row['where']}")


def _row(
    name: str, points: int, test_points: int, classes: int, on_disk: tuple[str, str, str], line: str
) -> dict[str, object]:
    state, size, where = on_disk
    counts = {"dataset": name, "training": points, "test": test_points, "classes": classes}
    return {**counts, "on disk": state, "size on disk": size, "where": where, "what": line}


def _on_disk(images: ImageSet, folder: Path) -> tuple[str, str, str]:
    found = find(images, folder)
    if found.files:
        return "partly" if found.missing else "yes", f"{found.size / 1e6:.1f} MB", str(found.folder)
    pickled = only_pickled(images, folder)
    if pickled:
        return "no", "", f"{pickled} is pickle, which is never loaded"
    return "no", "", f"looked in {folder} for {', '.join(images.folders)}"
