"""The package as a user gets it: a wheel, installed in a new environment, used far from the source tree."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

pytestmark = pytest.mark.slow

DOCSTRING_EXAMPLE = """
import doctest, sntg, torch
names = {"SNTGLoss": sntg.SNTGLoss, "torch": torch}
[example] = doctest.DocTestFinder(recurse=False).find(sntg.SNTGLoss, "SNTGLoss", globs=names)
failed, tried = doctest.DocTestRunner().run(example)
assert tried and not failed, (failed, tried)
print("ran", tried)
"""
LOAD = """
import sntg, torch
with torch.no_grad():
    print(tuple(sntg.load("RUN")(torch.zeros(5, 2)).logits.shape))
"""

Use = Callable[..., str]


def call(*command: object, cwd: Path) -> str:
    """Runs a command that must succeed, without this process's own sntg in sight."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def use(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Use]:
    """Calls a program of a new environment that has the wheel and what it needs, from an empty folder."""
    environment, elsewhere = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("elsewhere")
    call(sys.executable, "-m", "venv", environment, cwd=elsewhere)
    pip = (environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(*pip, "--constraint", ROOT / "constraints.txt", wheel, cwd=elsewhere)

    def call_program(program: str, *arguments: object) -> str:
        return call(environment / "bin" / program, *arguments, cwd=elsewhere)

    installed = Path(call_program("python", "-c", "import sntg; print(sntg.__file__)").strip())
    assert installed.is_relative_to(environment)
    yield call_program
    shutil.rmtree(environment)  # torch is large, and pytest keeps its temporary folders


def test_holds_the_package_with_its_data_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"sntg/py.typed", "sntg/demo/templates/page.html", "sntg/demo/ten_seeds.json"} <= names
    assert {name.split("/")[0] for name in names} == {"sntg", f"sntg-{VERSION}.dist-info"}
    assert not [name for name in names if "test" in name]


def test_holds_every_module_of_the_source(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")} <= names


def test_says_the_projects_version(use: Use) -> None:
    assert use("sntg", "--version") == f"sntg {VERSION}\n"
    assert use("python", "-m", "sntg", "--version") == f"sntg {VERSION}\n"


def test_the_docstrings_example_runs(use: Use) -> None:
    assert use("python", "-c", DOCSTRING_EXAMPLE) == "ran 3\n"


def test_trains_and_loads(use: Use) -> None:
    use("sntg", "train", "two-moons", "--labels", "12", "--set", "epochs=2", "--out", "RUN")
    assert use("python", "-c", LOAD) == "(5, 2)\n"
