"""Every promise of the documents: the README's code runs, links lead somewhere, tables are what the results say."""

import json
import re
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType

import pytest
from scipy import stats
from study_scripts import load_study

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README_CODE = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return load_study("tables")


@pytest.fixture(scope="module")
def seed_effect() -> ModuleType:
    return load_study("seed_effect")


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


def test_the_first_epochs_are_what_the_results_say_and_every_term_lives(tables: ModuleType) -> None:
    assert table_in("docs/cifar10.md", "first epochs") == tables.first_epochs_table()
    for name in ("first-epochs", "first-epochs-vat"):
        for run in json.loads((ROOT / "docs" / "results" / "cifar10" / f"{name}.json").read_text())["runs"]:
            assert run["every_term_moves"]
            assert all(0 < norm < 10 for norm in run["epochs"][-1]["gradient"].values())


def test_the_full_runs_are_what_the_results_say(tables: ModuleType) -> None:
    assert table_in("docs/cifar10.md", "full runs") == tables.runs_table()
    for images in ("test", "training"):
        assert table_in("docs/cifar10.md", f"seed effect, {images}") == tables.effect_table(images)


def test_a_seeds_part_is_what_all_methods_share(seed_effect: ModuleType) -> None:
    added, rest = [0.4, -0.1, -0.3], [[0.05, -0.05, 0], [-0.05, 0.05, 0]]
    runs = [[method + a + r for a, r in zip(added, row, strict=True)] for method, row in enumerate(rest)]
    effect = seed_effect.seed_effect(runs)
    assert effect.added == pytest.approx(added)
    assert effect.rest == pytest.approx((4 * 0.05**2 / 2) ** 0.5)  # two degrees of freedom
    assert effect.f_test == pytest.approx(1 / (1 + 52))  # F = (2 * 0.26 / 2) / 0.005 with 2 and 2, in closed form
    assert effect.permutation == pytest.approx(1 / 6)  # both rows fall: no other order adds as much


def test_the_interval_of_a_difference_is_welchs(seed_effect: ModuleType) -> None:
    ours, paper = [11.6, 11.1, 10.9, 10.8], [11.0, 11.1, 10.8, 11.2, 10.9]
    figures = [seed_effect.Figures(mean(sample), stdev(sample), len(sample)) for sample in (ours, paper)]
    expected = stats.ttest_ind(ours, paper, equal_var=False).confidence_interval(0.95)
    assert seed_effect.interval(*figures) == pytest.approx((expected.low, expected.high))


def test_the_figure_of_the_seeds_is_drawn(seed_effect: ModuleType, tmp_path: Path) -> None:
    seed_effect.draw(tmp_path / "seeds.png")
    assert (tmp_path / "seeds.png").read_bytes().startswith(b"\x89PNG")


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
