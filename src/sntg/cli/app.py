"""The commands and their help."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import sntg
from sntg.bench import Choice, resume_bench, run_bench
from sntg.cli.data import DataFolder, data_app, dataset_rows, show_datasets
from sntg.cli.progress import resume_with_progress, train_with_progress
from sntg.cli.splits import export_split
from sntg.cli.tables import model_rows, recipe_rows
from sntg.data import data_folder
from sntg.demo import run_demo
from sntg.errors import UsageError
from sntg.methods import METHODS, MethodName
from sntg.terminal import print_table
from sntg.training import read_seeds, read_setting, resolve
from sntg.training.config import default_device

LONGEST_NAME = 60  # characters of a list of seeds that names a folder

app = typer.Typer(
    help="Smooth Neighbors on Teacher Graphs: good classifiers from a handful of labels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DatasetName = Annotated[str, typer.Argument(help="A dataset by name; see `sntg datasets`.")]
Labels = Annotated[
    str,
    typer.Option(help="How many labels to keep (evenly over the classes, unless the recipe says otherwise), or `all`."),
]
Seed = Annotated[int, typer.Option(help="Decides the labels, the initial weights and every random draw.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
]


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
    dataset: DatasetName,
    labels: Labels = "",
    method: Annotated[str, typer.Option(help="A method by name; see `sntg methods`.")] = "pi+sntg",
    seed: Annotated[
        int | None, typer.Option(help="Decides the labels, the initial weights and every random draw; 0 if not given.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Several seeds, 0-3 or 0,2,5: a run each, in a folder seed-N.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the run; by default runs/DATASET-LABELS-METHOD-SEED.")
    ] = None,
    settings: Settings = None,
    data: DataFolder = "",
    validation: Annotated[
        int, typer.Option(help="Hold out this many training points and test on them instead of the test set.")
    ] = 0,
    split: Annotated[
        str, typer.Option(help="An index file that says which points keep their labels; see `sntg split`.")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU.")] = "auto",
    engine: Annotated[
        str, typer.Option(help="How a step runs: eager, compiled, graph, or auto: as suits the device and the run.")
    ] = "auto",
    precision: Annotated[
        str, typer.Option(help="What convolutions compute in: float32, tf32, bfloat16, float16, or auto.")
    ] = "auto",
    storage: Annotated[
        str, typer.Option(help="Where points are kept: device, host (streamed), or auto: device if they fit.")
    ] = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write scalars and features for it too.")] = False,
) -> None:
    """Train one run and write its settings, metrics, weights and figures into a new folder."""
    places: dict[str, Any] = {"device": default_device() if device == "auto" else device, "data": data}
    places |= {"engine": engine, "precision": precision, "storage": storage}
    places |= {"validation": validation, "split_file": split, "tensorboard": tensorboard}
    if seeds is not None and seed is not None:
        raise UsageError(f"--seed {seed} and --seeds {seeds}: give one of them")
    each = [seed or 0] if seeds is None else read_seeds(seeds)
    configs = [resolve(dataset, _labels(labels, split), method, s, **places, **_read(settings)) for s in each]
    listed = (seeds or str(each[0])).replace(" ", "")
    listed = listed if len(listed) <= LONGEST_NAME else f"{len(each)}-seeds"
    name = f"{configs[0].dataset}-{configs[0].labels}-{configs[0].method}-{listed}"
    train_with_progress(configs, out or Path("runs") / name, seeds is not None)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    data: DataFolder = "",
) -> None:
    """Go on with an interrupted run, to the same result as if nothing had happened."""
    resume_with_progress(run, data)


@app.command()
def recipe(
    dataset: DatasetName,
    method: Annotated[str, typer.Argument(help="A method by name; see `sntg methods`.")],
    labels: Labels = "",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Show every setting of a run and where its value comes from."""
    _show(recipe_rows(dataset, method, _labels(labels, ""), _read(settings)), as_json)


@app.command()
def split(
    dataset: DatasetName,
    labels: Labels,
    out: Annotated[Path, typer.Option(help="The index file to write.")],
    seed: Seed = 0,
    kind: Annotated[str, typer.Option(help="balanced, or unbalanced.")] = "balanced",
    noise: Annotated[float, typer.Option(help="Percent of the labels to replace by random ones.")] = 0.0,
    data: DataFolder = "",
) -> None:
    """Write which training points keep their labels into an index file; `sntg train --split` reads it."""
    print(export_split(dataset, _labels(labels, ""), seed, kind, noise, data, out))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the page and its figures.")] = Path("sntg-demo"),
    seed: Annotated[int, typer.Option(help="Decides the data, the labels and every random draw.")] = 0,
) -> None:
    """Supervised-only, Pi and Pi+SNTG on three small datasets, as one page to look at."""
    run_demo(out, seed)


@app.command()
def bench(
    methods: Annotated[str | None, typer.Option(help="Only these methods, separated by commas: pi,pi+sntg.")] = None,
    engines: Annotated[str | None, typer.Option(help="Only these engines: eager, compiled, graph.")] = None,
    precisions: Annotated[
        str | None, typer.Option(help="Only these precisions: float32, tf32, bfloat16, float16.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps to measure a case for, in nine blocks; by default a second's.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for the results; by default benchmarks/results if there is one, else this."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU.")] = "auto",
    resume: Annotated[
        Path | None, typer.Option(help="Go on with a bench that was stopped: its JSON file, which says all the rest.")
    ] = None,
) -> None:
    """Measure how fast training is on this machine, by method, engine and precision: tables, JSON and a plot."""
    if resume is not None:
        if any(given is not None for given in (methods, engines, precisions, steps, out)) or device != "auto":
            raise UsageError(f"{resume} says what its bench measures: give --resume alone")
        resume_bench(resume)
        return
    where = default_device() if device == "auto" else device
    run_bench(Choice(where, methods, engines, precisions, steps), out)


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
def datasets(as_json: Json = False, data: DataFolder = "") -> None:
    """List the datasets, and which of them are on disk."""
    rows = dataset_rows(data_folder(data))
    if as_json:
        _show(rows, as_json)
    else:
        show_datasets(rows)


@app.command()
def models(
    image: Annotated[str, typer.Option("--input", help="Channels x height x width of the images.")] = "3x32x32",
    classes: Annotated[int, typer.Option(help="The number of classes.")] = 10,
    normalisation: Annotated[str, typer.Option(help="mean-only, batch or batch-logits.")] = "mean-only",
    as_json: Json = False,
) -> None:
    """Show the networks layer by layer: shapes and parameter counts."""
    tables = model_rows(image, classes, normalisation)
    if as_json:
        typer.echo(json.dumps(tables, indent=2))
    else:
        for name, rows in tables.items():
            print_table(rows, title=name)


def _labels(text: str, split_file: str) -> int | str:
    if text == "all" or (split_file and not text):
        return "all"
    if not text:
        raise UsageError("say how many labels to keep: --labels 4000, or --labels all")
    if not re.fullmatch("-?[0-9]{1,18}", text):
        raise UsageError(f"--labels {text!r} is neither a whole number nor `all`")
    return int(text)


def _read(settings: list[str] | None) -> dict[str, Any]:
    return dict(read_setting(s) for s in settings or [])


def _show(rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        print_table(rows)
