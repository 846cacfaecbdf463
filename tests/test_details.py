"""docs/details.md: every fact names a symbol that exists and a test that exists, and the links lead to them."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DETAILS = (ROOT / "docs" / "details.md").read_text()
LINK = r"\[`([\w.]+)`\]\(\.\./([\w./]+)\)"
ROWS = re.findall(rf"^\| (.+?) \| {LINK} \| {LINK} \|$", DETAILS, flags=re.M)


def found(symbol: str) -> tuple[object, object]:
    """A dotted name as the object it stands for, and the module that has it."""
    parts = symbol.split(".")
    for split in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        thing: object = module
        for name in parts[split:]:
            thing = getattr(thing, name)
        return thing, module
    raise AssertionError(f"{symbol} does not exist")


def test_the_page_has_facts_and_every_line_of_its_tables_is_one() -> None:
    facts = DETAILS.split("## Where the text and the reference code differ")[0]
    lines = [line for line in facts.splitlines() if line.startswith("| ") and not line.startswith("| fact")]
    assert len(lines) == len(ROWS) > 30


@pytest.mark.parametrize(("fact", "symbol", "source", "test", "tests"), ROWS, ids=[row[0][:50] for row in ROWS])
def test_what_does_it_and_what_holds_it_are_there(fact: str, symbol: str, source: str, test: str, tests: str) -> None:
    _, module = found(symbol)
    assert Path(inspect.getfile(module)).resolve() == (ROOT / source).resolve()  # type: ignore[arg-type]
    assert re.search(rf"^def {test}\(", (ROOT / tests).read_text(), flags=re.M), f"{tests} has no {test}"
