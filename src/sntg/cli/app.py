"""The commands and their help."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

import sntg
from sntg.cli.progress import train_with_progress
from sntg.data import CATALOGUE
from sntg.demo import run_demo
from sntg.methods import METHODS, MethodName
from sntg.terminal import print_table
from sntg.training import read_setting, resolve

app = typer.Typer(
    help="Smooth Neighbors on Teacher Graphs: good classifiers from a handful of labels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sntg {sntg.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    dataset: Annotated[str, typer.Argument(help="A dataset by name; see `sntg datasets`.")],
    labels: Annotated[int, typer.Option(help="How many labels to keep, evenly over the classes.")],
    out: Annotated[Path, typer.Option(help="A new folder for the run.")],
    method: Annotated[str, typer.Option(help="A method by name; see `sntg methods`.")] = "pi+sntg",
    seed: Annotated[int, typer.Option(help="Decides the labels, the initial weights and every random draw.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda where there is a GPU.")] = "cpu",
) -> None:
    """Train one run and write its settings, metrics, weights and figures into a new folder."""
    config = resolve(dataset, labels, method, seed, device=device, **dict(read_setting(s) for s in settings or []))
    train_with_progress(config, out)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the page and its figures.")] = Path("sntg-demo"),
    seed: Annotated[int, typer.Option(help="Decides the data, the labels and every random draw.")] = 0,
) -> None:
    """Supervised-only, Pi and Pi+SNTG on three small datasets, as one page to look at."""
    run_demo(out, seed)


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods and what can be added to them."""
    rows = [{"method": m.name, "kind": "method", "what": m.line} for m in METHODS.values()]
    alone = str(MethodName("supervised", sntg=True))
    rows.append({"method": alone, "kind": "method", "what": "the graph term alone: the ablation L_S + R_S"})
    rows.append({"method": "+ent", "kind": "addition", "what": "entropy minimisation, on any of them: pi+ent"})
    rows.append({"method": "+sntg", "kind": "addition", "what": "the graph term, on any of them: vat+ent+sntg"})
    _show(rows, as_json)


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the datasets."""
    _show(
        [
            {"dataset": e.name, "training": e.points, "test": e.test_points, "classes": e.classes, "what": e.line}
            for e in CATALOGUE.values()
        ],
        as_json,
    )


def _show(rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        print_table(rows)
