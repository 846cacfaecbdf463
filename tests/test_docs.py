"""Every promise of the documents: the README's code runs, links lead somewhere, tables are what the results say."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from study_scripts import load_study

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README_CODE = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return load_study("tables")


def table_in(document: str, name: str) -> str:
    text = (ROOT / document).read_text()
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, flags=re.S)
    assert found, f"{document} has no table {name}"
    return found[1].strip()


@pytest.mark.parametrize("code", README_CODE, ids=lambda code: code.strip().splitlines()[0])
def test_the_readmes_code_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_the_readme_has_code_to_run() -> None:
    assert len(README_CODE) == 2


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_readme_names_the_two_commands_and_the_makefile_has_them() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in (ROOT / "README.md").read_text()
        assert re.search(rf"^{command}:", makefile, flags=re.M)


@pytest.mark.parametrize("dataset", ["two-moons", "four-spins", "digits"])
def test_the_tables_are_what_the_results_say(dataset: str, tables: ModuleType) -> None:
    document = "docs/digits.md" if dataset == "digits" else "docs/synthetic.md"
    assert table_in(document, f"{dataset} seeds") == tables.seeds_table(dataset)
    assert table_in(document, f"{dataset} tuning") == tables.tuning_table(dataset)


def test_the_gain_on_the_digits_is_what_the_results_say(tables: ModuleType) -> None:
    assert table_in("docs/digits.md", "digits gain") == tables.digits_gain_table()


def test_the_first_epochs_are_what_the_results_say_and_every_term_lives(tables: ModuleType) -> None:
    assert table_in("docs/cifar10.md", "first epochs") == tables.first_epochs_table()
    for name in ("first-epochs", "first-epochs-vat"):
        for run in json.loads((ROOT / "docs" / "results" / "cifar10" / f"{name}.json").read_text())["runs"]:
            assert run["every_term_moves"]
            assert all(0 < norm < 10 for norm in run["epochs"][-1]["gradient"].values())


def test_the_full_runs_are_what_the_results_say(tables: ModuleType) -> None:
    assert table_in("docs/cifar10.md", "full runs") == tables.runs_table()
    assert table_in("docs/cifar10.md", "gain") == tables.gain_table()
    assert table_in("docs/cifar10.md", "few runs") == tables.few_table()
    assert table_in("docs/cifar10.md", "vat accuracy") == tables.arms_table()
    assert table_in("docs/cifar10.md", "vat directions") == tables.directions_table()
    assert table_in("docs/cifar10-search.md", "variants") == tables.variants_table()
    assert table_in("docs/cifar10.md", "every k") == tables.k_table()
    for images in ("test", "training"):
        assert table_in("docs/cifar10-statistics.md", f"seed effect, {images}") == tables.effect_table(images)
        assert table_in("docs/cifar10-statistics.md", f"crossed runs, {images}") == tables.crossed_table(images)
    assert table_in("docs/cifar10-statistics.md", "labels alone") == tables.labels_table()
    assert table_in("docs/cifar10-statistics.md", "odds") == tables.odds_table()
    assert table_in("docs/cifar10-statistics.md", "correlations") == tables.correlations_table()


def test_the_benches_are_what_their_results_say(tables: ModuleType) -> None:
    assert table_in("docs/performance.md", "bench, methods") == tables.methods_table()
    assert table_in("docs/performance.md", "bench, engines") == tables.engines_table()
    assert table_in("docs/performance.md", "bench, engines on a CPU") == tables.cpu_table()
    assert table_in("docs/performance.md", "bench, SNTG on a CPU") == tables.cpu_overheads_table()


def test_the_overview_and_the_demos_page_are_what_the_results_say(tables: ModuleType) -> None:
    assert table_in("README.md", "overview") == tables.overview()
    page = json.loads((ROOT / "src" / "sntg" / "demo" / "ten_seeds.json").read_text())
    assert page == tables.for_the_page()


@pytest.mark.parametrize("dataset", ["two-moons", "four-spins", "digits"])
def test_the_recipe_holds_what_the_tuning_chose(dataset: str, tables: ModuleType) -> None:
    from sntg.training import resolve

    for method, name in (("pi", "pi"), ("pi-sntg", "pi+sntg")):
        chosen = tables.results(dataset, "tune")[method]["tried"][0]["settings"]
        assert chosen.items() <= resolve(dataset, tables.LABELS[dataset], name).as_dict().items()


def test_the_page_of_settings_has_every_setting_with_its_default() -> None:
    from sntg.training.config import ARGUMENTS, TYPES, Config

    listed = dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\|", (ROOT / "docs" / "settings.md").read_text(), flags=re.M))
    assert listed == {key: str(getattr(Config, key)) for key in TYPES if key not in ARGUMENTS}
