"""The examples run as they stand, and keep what they promise."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_loop.py"


def run(source: str) -> str:
    short = source.replace("EPOCHS = 200", "EPOCHS = 6")
    assert short != source
    done = subprocess.run([sys.executable, "-c", short], capture_output=True, text=True, check=True)
    return done.stdout


def marked(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.endswith("# sntg")]


def test_the_loop_gains_sntg_by_three_lines() -> None:
    assert len(marked(EXAMPLE.read_text())) == 3


def test_the_loop_trains_with_the_three_lines_and_without_them() -> None:
    source = EXAMPLE.read_text()
    plain = "\n".join(line for line in source.splitlines() if line not in marked(source))
    with_sntg, without = run(source), run(plain)
    assert "error on all points" in with_sntg
    assert "error on all points" in without
    assert with_sntg != without  # the three lines do something
