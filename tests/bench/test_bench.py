"""`sntg bench` from end to end, on a CPU: what it prints, what it leaves behind, and how it stops."""

import json
import os
import sys

import pytest

from sntg.bench import Choice, run_bench
from sntg.bench.measure import Bench
from sntg.cli import main


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def read(folder):
    (path,) = folder.glob("*.json")
    assert path.with_suffix(".png").exists()
    return json.loads(path.read_text())


def test_the_command_measures_prints_and_writes(small, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["sntg", "bench", "--engines", "eager", "--steps", "1", "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    found = read(tmp_path)
    assert found["complete"]
    assert found["provenance"]["command"] == "sntg bench --device cpu --engines eager --steps 1"
    assert [(r["dataset"], r["method"]) for r in found["rows"]] == [
        (name, method) for name in ("two-moons", "digits") for method in ("pi+sntg", "pi")
    ]
    assert [o["dataset"] for o in found["overheads"]] == ["two-moons", "digits"]
    assert found["matrix_product"] == {"float32": 2.0}
    out, err = capsys.readouterr()
    assert "A step of mlp on two-moons" in out
    assert "pi on digits, eager, float32: " in err
    assert len(os.listdir(tmp_path)) == 2


def test_a_checkout_has_a_folder_for_results(small, tmp_path):
    home = tmp_path / "benchmarks" / "results"
    home.mkdir(parents=True)
    run_bench(Choice("cpu", methods="pi", steps=1))
    assert read(home)["complete"]


def test_ctrl_c_leaves_what_there_is(small, monkeypatch, capsys, tmp_path):
    measured = Bench.measure

    def interrupted(bench, group):
        if group[0].dataset == "digits":
            raise KeyboardInterrupt
        return measured(bench, group)

    monkeypatch.setattr(Bench, "measure", interrupted)
    with pytest.raises(SystemExit) as ended:
        run_bench(Choice("cpu", engines="eager", steps=1), tmp_path / "new")
    assert ended.value.code == 130
    found = read(tmp_path / "new")
    assert not found["complete"]
    assert {row["dataset"] for row in found["rows"]} == {"two-moons"}
    assert "so far" in capsys.readouterr().err


def test_ctrl_c_before_the_first_figure_leaves_nothing(monkeypatch, tmp_path):
    def interrupted(bench, group):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "measure", interrupted)
    with pytest.raises(SystemExit) as ended:
        run_bench(Choice("cpu", engines="eager"))
    assert ended.value.code == 130
    assert os.listdir(tmp_path) == []


def test_bad_usage_ends_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sntg", "bench", "--methods", "pie"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "did you mean 'pi'" in capsys.readouterr().err


@pytest.mark.slow
def test_eager_and_compiled_are_compared_and_auto_says_what_it_is(capsys, tmp_path):
    run_bench(Choice("cpu", steps=9))
    rows = read(tmp_path)["rows"]
    assert {(r["dataset"], r["engine"]) for r in rows if r["method"] == "pi+sntg"} == {
        (name, engine) for name in ("two-moons", "digits") for engine in ("eager", "compiled")
    }
    assert all(r["warm_up_s"] for r in rows)
    assert capsys.readouterr().out.count("auto is eager, ") == 2
