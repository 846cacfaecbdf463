"""The demo: runs trained by workers, a table, and a page that needs nothing but itself."""

import base64
import json
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from importlib.resources import files
from io import StringIO
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from sntg import demo
from sntg.demo import page, run_demo
from sntg.demo.plan import LABELS, METHODS, cost, departures, plan
from sntg.errors import UsageError
from sntg.figures import embeddings
from sntg.training import Trained, resolve, train, workers

PLAN = sys.modules["sntg.demo.plan"]  # the package has the function under the module's name
SHORT = {
    "two-moons": {"epochs": 2, "batch": 3000},
    "four-spins": {"epochs": 2, "batch": 3000},
    "digits": {"epochs": 1, "batch": 600},
}
SEED = 4


@dataclass
class Shown:
    """A demo that was run: its folder, what it printed, and its runs."""

    out: Path
    stdout: str
    stderr: str
    runs: list

    @property
    def html(self):
        return (self.out / "index.html").read_text()


def show(out, seed=SEED):
    """Runs the demo and catches what it prints."""
    stdout, stderr = StringIO(), StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        run_demo(out, seed)
    return stdout.getvalue(), stderr.getvalue()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The whole demo with short runs, in real workers; only t-SNE, which takes seconds, is replaced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PLAN, "DEPARTURES", [(dataset, "*", row) for dataset, row in SHORT.items()])
        patch.setattr(embeddings, "project", lambda features: features[:, :2])
        kept = []
        patch.setattr(demo, "train_all", lambda *a: kept.extend(workers.train_all(*a)) or kept)
        out = tmp_path_factory.mktemp("demo") / "page"
        return Shown(out, *show(out), kept)


@pytest.fixture
def again(shown, monkeypatch):
    """Lets the demo be run with the runs already trained."""
    monkeypatch.setattr(PLAN, "DEPARTURES", [(dataset, "*", row) for dataset, row in SHORT.items()])
    monkeypatch.setattr(embeddings, "project", lambda features: features[:, :2])
    monkeypatch.setattr(demo, "train_all", lambda configs, on_epoch: shown.runs)


class Page(HTMLParser):
    """What a browser would see: tags, the cells of each table, and the text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.tables, self.text, self.inside = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(["", dict(attributes).get("class")])

    def handle_endtag(self, tag):
        while self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" in self.inside:
            return
        self.text.append(data)
        if {"td", "th"} & set(self.inside):
            self.tables[-1][-1][-1][0] += data

    def having(self, attribute):
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]

    @property
    def words(self):
        return " ".join("".join(self.text).split())


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_from_anywhere(shown):
    seen = Page(shown.html)
    assert all(source.startswith("data:image/png;base64,") for source in seen.having("src"))
    assert all(link.startswith("#") for link in seen.having("href"))
    assert not {tag for tag, _ in seen.tags} & {"script", "link", "iframe", "object", "embed", "video", "audio"}
    assert "@import" not in shown.html
    assert "url(" not in shown.html
    assert "http:" not in shown.html
    assert "https:" not in shown.html


def test_every_link_leads_somewhere_on_the_page(shown):
    seen = Page(shown.html)
    assert {link.removeprefix("#") for link in seen.having("href")} <= set(seen.having("id"))
    assert "#ten-seeds" in seen.having("href")


def test_the_figures_are_inside_and_beside_the_page(shown):
    sources = Page(shown.html).having("src")
    images = [base64.b64decode(source.partition(",")[2]) for source in sources]
    assert images == [(shown.out / f"{name}.png").read_bytes() for name in ("two-moons", "four-spins", "digits")]
    assert all(image.startswith(b"\x89PNG\r\n\x1a\n") for image in images)
    assert len(set(images)) == 3


def test_the_page_has_the_table_of_errors_with_the_best_marked(shown):
    header, *rows = Page(shown.html).tables[0]
    assert [text for text, _ in header] == ["dataset", "points", "labels", *METHODS]
    assert [row[0][0] for row in rows] == ["Two moons", "Four spins", "Handwritten digits"]
    assert [[cell for cell, _ in row[1:3]] for row in rows] == [["6000", "12"], ["6000", "12"], ["1198", "20"]]
    for name, row in zip(LABELS, rows, strict=True):
        errors = {run.config.method: run.error for run in shown.runs if run.config.dataset == name}
        assert [text for text, _ in row[3:]] == [f"{errors[method]:.2f}" for method in METHODS]
        marked = [method for method, (_, mark) in zip(METHODS, row[3:], strict=True) if mark == "best"]
        assert marked == [method for method in METHODS if errors[method] == min(errors.values())]


def test_the_page_says_what_was_shortened(shown):
    words = Page(shown.html).words
    assert "the demo departs from the recipes" in words
    for run in shown.runs:
        changed, full = departures(run.config), resolve(run.config.dataset, run.config.labels, run.config.method)
        assert changed["epochs"] == (full.epochs, SHORT[run.config.dataset]["epochs"])
        for key, (theirs, ours) in changed.items():
            assert f"{key} {ours} instead of {theirs}" in words


def test_the_page_names_seed_versions_and_a_command_that_is_true(shown):
    words = Page(shown.html).words
    assert f"Seed {SEED};" in words
    assert f"torch {torch.__version__}" in words
    assert f"sntg train two-moons --labels 12 --method pi+sntg --seed {SEED} --out RUN" in words


def test_the_page_ends_with_the_ten_seeds_shipped(shown):
    header, *rows = Page(shown.html).tables[1]
    shipped = json.loads(files("sntg.demo").joinpath("ten_seeds.json").read_text())["runs"]
    assert [text for text, _ in header] == ["dataset", "method", *map(str, range(10)), "mean", "median"]
    assert len(rows) == len(shipped) > 0
    for row, result in zip(rows, shipped, strict=True):
        errors = result["errors"]
        assert len(errors) == 10
        expected = [page.TITLES[result["dataset"]], result["method"]]
        expected += [f"{value:.2f}" for value in (*errors, mean(errors), median(errors))]
        assert [text for text, _ in row] == expected


def test_what_is_shipped_is_of_datasets_and_methods_of_the_demo():
    shipped = json.loads(files("sntg.demo").joinpath("ten_seeds.json").read_text())["runs"]
    assert {result["dataset"] for result in shipped} <= set(LABELS)
    assert max(Counter((result["dataset"], result["method"]) for result in shipped).values()) == 1


def pretend(method, dataset="two-moons", error=1.0, **settings):
    """A run that was never trained, for the page."""
    config = resolve(dataset, LABELS[dataset], method, **settings)
    data = SimpleNamespace(train_x=torch.zeros(1198 if dataset == "digits" else 6000, 2))
    return Trained(config, None, data, None, None, [{"error": error}])


def pretended_page(tmp_path, changes):
    """The page of nine pretended runs, `changes` to the two moons by method."""
    figure = tmp_path / "figure.png"
    figure.write_bytes(b"png")
    runs = [pretend(m, d, **(changes.get(m, {}) if d == "two-moons" else {})) for d in LABELS for m in METHODS]
    page.write_page(runs, dict.fromkeys(LABELS, figure), 12.6, tmp_path / "index.html")
    return Page((tmp_path / "index.html").read_text()).words


def test_where_nothing_was_shortened_the_page_says_that(tmp_path):
    words = pretended_page(tmp_path, {})
    assert "Every run is the full recipe, unshortened." in words
    assert "instead of" not in words
    assert "trained here in 13 s" in words


def test_how_often_the_test_set_is_looked_at_is_no_departure(tmp_path):
    assert "instead of" not in pretended_page(tmp_path, {"pi": {"eval_every": 77}})


def test_every_methods_own_departures_are_listed(tmp_path):
    """Also where the methods of one dataset depart in different ways."""
    words = pretended_page(tmp_path, {"pi": {"batch": 777}, "pi+sntg": {"lr": 0.125}})
    assert "batch 777 instead of" in words
    assert "lr 0.125 instead of" in words


def test_the_page_is_whole_or_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "ten_seeds", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pretended_page(tmp_path, {})
    assert not (tmp_path / "index.html").exists()


# --- the plan --------------------------------------------------------------------------------------------------------


def test_the_plan_is_every_method_on_every_dataset_with_the_seed_asked_for():
    configs = plan(7)
    assert [(c.dataset, c.method) for c in configs] == [(d, m) for d in LABELS for m in METHODS]
    assert {c.seed for c in configs} == {7}
    assert {(c.dataset, c.labels) for c in configs} == {("two-moons", 12), ("four-spins", 12), ("digits", 20)}
    assert METHODS == ("supervised", "pi", "pi+sntg")


def test_a_departure_is_what_the_demo_sets_and_nothing_that_follows_from_it(shown):
    for run in shown.runs:
        assert run.config.data_hash
        short = SHORT[run.config.dataset]
        assert {key: value for key, (_, value) in departures(run.config).items()} == short


def test_two_views_cost_twice_one_and_images_more_than_points():
    costs = {(c.dataset, c.method): cost(c) for c in plan(0)}
    assert costs["digits", "pi+sntg"] == costs["digits", "pi"] == 2 * costs["digits", "supervised"]
    assert costs["two-moons", "pi"] == 2 * costs["two-moons", "supervised"]
    assert costs["digits", "supervised"] > costs["two-moons", "pi"] > 0


# --- in the terminal and the folder ----------------------------------------------------------------------------------


def test_all_planned_runs_come_back_the_longest_first(shown, monkeypatch):
    monkeypatch.setattr(PLAN, "DEPARTURES", [(dataset, "*", row) for dataset, row in SHORT.items()])
    unsaid = {"data_hash": "", "split_hash": "", "engine": "auto", "precision": "auto"}
    as_planned = [replace(run.config, **unsaid) for run in shown.runs]
    assert as_planned == sorted(plan(SEED), key=lambda c: -cost(c) * c.epochs)


def test_a_worker_trains_what_this_process_would(shown):
    trained = shown.runs[2]
    (here,) = train([trained.config])
    assert here.history == trained.history
    assert all(torch.equal(value, trained.model.state_dict()[name]) for name, value in here.model.state_dict().items())


def test_the_terminal_shows_the_table_and_where_the_page_is(shown):
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("Error rates (%)")
    for row in page.error_table(shown.runs):
        assert list(row) == ["dataset", "labels", *METHODS]
        (line,) = [line for line in lines if f" {row['dataset']} " in line]
        cells = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()]
        assert [cell.strip() for cell in line.strip("│").split("│")] == cells
    assert lines[-1] == f"the page with the figures: {shown.out / 'index.html'}"


def test_without_a_terminal_every_finished_run_is_told(shown):
    expected = {f"{run.config.method} on {run.config.dataset}: done" for run in shown.runs}
    assert len(expected) == 9
    assert sorted(shown.stderr.splitlines()) == sorted(expected)


def test_the_folder_holds_the_page_and_its_figures_only(shown):
    assert sorted(p.name for p in shown.out.iterdir()) == [
        "digits.png",
        "four-spins.png",
        "index.html",
        "two-moons.png",
    ]


def test_the_demo_may_be_run_again_into_the_same_folder(shown, again, tmp_path):
    (tmp_path / "index.html").write_text("an old page")
    (tmp_path / "mine.txt").write_text("mine")
    show(tmp_path)
    assert "an old page" not in (tmp_path / "index.html").read_text()
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "digits.png").read_bytes() == (shown.out / "digits.png").read_bytes()


def test_on_a_terminal_there_is_a_bar_that_fills(shown, monkeypatch):
    screen = StringIO()
    monkeypatch.setattr(demo, "Console", lambda **options: Console(file=screen, force_terminal=True, width=100))
    configs = [run.config for run in shown.runs]

    def report(configs, on_epoch):
        for number, config in enumerate(configs):
            on_epoch(number, config.epochs)
        return shown.runs

    monkeypatch.setattr(demo, "train_all", report)
    assert demo._train_with_bar(configs) == shown.runs
    assert "9 runs" in screen.getvalue()
    assert "100%" in screen.getvalue()
    assert "done" not in screen.getvalue()


def test_ctrl_c_ends_with_code_130_and_without_a_page(again, monkeypatch, tmp_path, capsys):
    def interrupt(configs, on_epoch):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train_all", interrupt)
    with pytest.raises(SystemExit) as ended:
        run_demo(tmp_path / "demo", 0)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped; no page was written\n"
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("name", ["file", "file/demo"])
def test_a_folder_that_cannot_be_made_is_refused_before_any_work(tmp_path, monkeypatch, name):
    monkeypatch.setattr(demo, "train_all", lambda *a: pytest.fail("work was begun"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="cannot be made"):
        run_demo(tmp_path / name, 0)
    assert (tmp_path / "file").read_text() == "mine"
