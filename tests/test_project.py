"""The files around the package agree with each other."""

import inspect
import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path

import sntg
import sntg.training

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PAPER = "Smooth Neighbors on Teacher Graphs for Semi-supervised Learning"
HOMES = ("home", "root", "Users", "tmp", "work")
OF_A_MACHINE = re.compile(rf"/({'|'.join(HOMES)})/\w")


def normal(requirement: str) -> str:
    """The name in a requirement, spelt as package registries compare it (PEP 503)."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def constraints() -> list[str]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return [line for line in lines if line]


def project_files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "Makefile", "pyproject.toml"))
    for folder in ("src", "tests", "docs", "studies", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path != Path(__file__).resolve():
                yield path


def test_every_mutant_still_breaks_something_that_is_there() -> None:
    mutants = runpy.run_path(str(ROOT / "tests" / "mutants.py"))["MUTANTS"]
    source, tests = ROOT / "src" / "sntg", ROOT / "tests"
    assert not [name for _, names in mutants for name in names.split() if not (tests / name).exists()]
    for (file, _), changes in mutants.items():
        assert not [text for text, _ in changes if (source / file).read_text().count(text) != 1], file


def test_every_constraint_is_one_exact_version() -> None:
    assert not [line for line in constraints() if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    names = [normal(line) for line in constraints()]
    assert len(names) == len(set(names))


def test_every_dependency_is_pinned() -> None:
    extras = [name for names in PROJECT["optional-dependencies"].values() for name in names]
    assert {normal(name) for name in (*PROJECT["dependencies"], *extras)} <= {normal(line) for line in constraints()}
    assert all("==" in name for name in PYPROJECT["build-system"]["requires"])


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == PROJECT["version"]


def test_the_citation_names_this_version_and_the_paper() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    top = dict(line.split(": ", 1) for line in lines if re.match(r"[\w-]+: ", line))
    assert top["version"] == PROJECT["version"]
    assert top["license"] == PROJECT["license"]
    assert f"  title: {PAPER}" in lines
    assert not [line for line in lines if not re.match(r" *(- )?(\{ )?[\w-]+:( |$)", line)]  # all of it "key: value"


def test_every_public_function_shows_how_it_is_used() -> None:
    """By an example of its own, or by one that it names."""
    for module in (sntg, sntg.training):
        functions = (name for name in module.__all__ if inspect.isfunction(getattr(module, name)))
        without = [name for name in functions if not re.search(">>> |has an example", getattr(module, name).__doc__)]
        assert not without


def test_no_file_names_a_place_on_some_machine() -> None:
    found = {str(p.relative_to(ROOT)): OF_A_MACHINE.findall(p.read_text(errors="ignore")) for p in project_files()}
    assert not {name: places for name, places in found.items() if places}
