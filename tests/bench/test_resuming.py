"""`sntg bench --resume`: what a stopped bench has left is measured, and nothing else is taken for one."""

import json
import math
import sys

import pytest

from sntg.bench import Choice, run_bench
from sntg.bench.measure import Bench
from sntg.bench.report import alone


@pytest.fixture
def stopped(small, tmp_path, capsys):
    """The file of a bench that was stopped after half of its cases."""
    measured = Bench.measure

    def interrupted(bench, group):
        if group[0].dataset == "digits":
            raise KeyboardInterrupt
        return measured(bench, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "measure", interrupted)
        with pytest.raises(SystemExit) as ended:
            run_bench(Choice("cpu", "pi, pi+sntg", "eager", steps=1), tmp_path / "new")
    assert ended.value.code == 130
    (path,) = (tmp_path / "new").glob("*.json")
    return path


def test_ctrl_c_leaves_what_there_is_and_says_how_to_go_on(stopped, capsys, read):
    found = read(stopped.parent)
    assert not found["complete"]
    assert {row["dataset"] for row in found["rows"]} == {"two-moons"}
    assert f"sntg bench --resume {stopped}" in capsys.readouterr().err


def test_a_stopped_bench_measures_only_what_is_missing(stopped, call, read, monkeypatch):
    before, measure, measured = json.loads(stopped.read_text()), Bench.measure, []

    def noted(bench, group):
        measured.extend(case.dataset for case in group)
        return measure(bench, group)

    monkeypatch.setattr(Bench, "measure", noted)
    assert not call("--resume", stopped)
    assert set(measured) == {"digits"}
    found = read(stopped.parent)
    assert found["complete"]
    assert found["rows"][: len(before["rows"])] == before["rows"]
    assert {row["steps"] for row in found["rows"]} == {9}  # a step a round, as it was asked for
    assert [o["dataset"] for o in found["overheads"]] == ["two-moons", "digits"]
    assert found["provenance"] == before["provenance"] | {"continued": found["provenance"]["continued"]}


def test_two_cannot_go_on_with_one_at_once(stopped, capsys, call, monkeypatch):
    before = stopped.read_bytes()
    monkeypatch.setattr(Bench, "measure", None)
    with alone(stopped):
        assert call("--resume", stopped) == 2
    assert f"another process is at work on {stopped}" in capsys.readouterr().err
    assert stopped.read_bytes() == before


def test_a_plot_that_found_no_room_is_drawn_later_without_another_step(stopped, capsys, call, monkeypatch):
    assert not call("--resume", stopped)
    plot, before = stopped.with_suffix(".png"), stopped.read_bytes()
    plot.unlink()
    monkeypatch.setattr(Bench, "measure", None)
    assert not call("--resume", stopped)
    assert plot.exists()
    assert stopped.read_bytes() == before
    assert call("--resume", stopped) == 2
    assert "is complete: there is nothing left to measure" in capsys.readouterr().err


def test_a_complete_one_is_said_to_be_that_wherever_it_is(stopped, capsys, call, monkeypatch):
    stopped.write_text(json.dumps(json.loads(stopped.read_text()) | {"complete": True}))
    stopped.with_suffix(".png").touch()
    monkeypatch.setattr(sys.modules["sntg.bench"], "check_writable", None)
    assert call("--resume", stopped) == 2
    assert "is complete: there is nothing left to measure" in capsys.readouterr().err


def changed(path, part, key, value):
    found = json.loads(path.read_text())
    found[part][key] = value
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [("provenance", "commit", "another"), ("provenance", "source", "another"), ("hardware", "device", "a toaster")],
)
def test_figures_of_another_source_or_machine_are_not_mixed_in(part, key, value, stopped, capsys, call):
    changed(stopped, part, key, value)
    before = stopped.read_bytes()
    assert call("--resume", stopped) == 2
    assert f"of {key} = {value}" in capsys.readouterr().err
    assert stopped.read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method", "nonsense"),
        ("method", [1]),
        ("precision", "int4"),
        ("dataset", "nonsense"),
        ("ms_per_step", "fast"),
        ("rounds_ms", [0, 1]),
        ("run_steps", None),
        ("ms_per_step", -1.0),
        ("ms_per_step", math.nan),
        ("evaluation_s", 1e308),
        ("operations", 10**400),
        ("rounds_ms", [1.0, -1.0]),
    ],
)
def test_rows_that_no_bench_wrote_are_refused_before_anything_is_measured(
    key, value, stopped, capsys, call, monkeypatch
):
    changed(stopped, "rows", 0, json.loads(stopped.read_text())["rows"][0] | {key: value, "warm_up_s": 0.5})
    before = stopped.read_bytes()
    monkeypatch.setattr(Bench, "measure", None)
    assert call("--resume", stopped) == 2
    assert "holds no results of this version" in capsys.readouterr().err
    assert stopped.read_bytes() == before


@pytest.mark.parametrize(("key", "value"), [("dataset", "cifar10"), ("method", "mt"), ("asked", "compiled")])
def test_figures_of_a_case_that_it_does_not_measure_are_refused(key, value, stopped, capsys, call, monkeypatch):
    changed(stopped, "rows", 0, json.loads(stopped.read_text())["rows"][0] | {key: value})
    before = stopped.read_bytes()
    monkeypatch.setattr(Bench, "measure", None)
    assert call("--resume", stopped) == 2
    assert "which `sntg bench --device cpu --methods 'pi, pi+sntg' --engines eager --steps 1` does not measure" in (
        capsys.readouterr().err
    )
    assert stopped.read_bytes() == before


def test_a_bench_stopped_when_all_was_measured_is_complete_without_another_step(stopped, call, monkeypatch):
    assert not call("--resume", stopped)
    found = json.loads(stopped.read_text())
    stopped.write_text(json.dumps(found | {"complete": False}))
    monkeypatch.setattr(Bench, "measure", None)
    assert not call("--resume", stopped)
    assert json.loads(stopped.read_text())["complete"]


def written(provenance, **parts):
    provenance = {"date": "2026-11-17", **provenance}
    found = {
        "provenance": provenance,
        "hardware": {"device": "cpu", "torch": "2.13.0"},
        "matrix_product": {},
        "rows": [],
    }
    return json.dumps(found | {"overheads": [], "complete": False} | parts)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("{", "holds no results"),
        ("[]", "holds no results"),
        ('{"rows": [{"speed": 1}]}', "holds no results"),
        ("[" * 100_000, "holds no results"),
        (written({}), "holds no results"),
        (written({"command": 5}), "holds no results"),
        (written({"command": "sntg train two-moons"}), "holds no results"),
        (written({"command": "sntg bench --device cpu"}, hardware=None), "holds no results"),
        (written({"command": "sntg bench --device cpu"}, matrix_product=[1]), "holds no results"),
        (written({"command": "sntg bench --device cpu"}, matrix_product={"float32": "x"}), "holds no results"),
        (written({"command": "sntg bench --device cpu"}, matrix_product={"float32": 0.0}), "holds no results"),
        (written({"command": "sntg bench --device cpu"}, overheads=[{"ratio": math.nan}]), "holds no results"),
        (written({"command": "sntg bench --device cpu"}, overheads=None), "holds no results"),
        (written({"command": "sntg bench --device cpu"}, overheads=[{"a": 1}]), "holds no results"),
        (written({"command": "sntg bench --device cpu"}, complete="no"), "holds no results"),
        (written({"command": "sntg bench --device cpu"}), "begin a new one"),
        (written({"command": "sntg bench --device cpu"}, complete=True), "nothing left"),
    ],
)
def test_what_is_no_stopped_bench_is_refused(content, problem, capsys, tmp_path, call):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    assert call("--resume", "results.json") == 2
    assert problem in capsys.readouterr().err


def test_a_row_that_is_there_twice_is_refused(stopped, capsys, call, monkeypatch):
    found = json.loads(stopped.read_text())
    stopped.write_text(json.dumps(found | {"rows": found["rows"] * 2}))
    monkeypatch.setattr(Bench, "measure", None)
    assert call("--resume", stopped) == 2
    assert "holds no results of this version" in capsys.readouterr().err


def test_a_resumed_bench_takes_no_other_choice(stopped, capsys, call):
    assert call("--resume", stopped, "--methods", "pi") == 2
    assert "give --resume alone" in capsys.readouterr().err
