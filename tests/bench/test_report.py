"""What a bench tells: the file, the tables, the plot."""

import json
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sntg.bench import provenance, report
from sntg.bench.measure import Row
from sntg.bench.plot import draw_bench, panels
from sntg.bench.provenance import hardware, made_by
from sntg.bench.report import Results, aligned, alone, around, disturbances, new_file, print_results, speed, verdicts
from sntg.errors import UsageError

EAGER = Row("cifar10", "pi+sntg", "eager", "eager", "bfloat16", auto=False, model="conv13")
EAGER = replace(EAGER, ms_per_step=20.0, run_steps=1000)
GRAPH = replace(EAGER, asked="graph", engine="graph", auto=True, ms_per_step=5.0, tflops=250.0, share=0.3125)
FALLEN = replace(GRAPH, engine="compiled", auto=False, ms_per_step=7.0)
FAILED = replace(EAGER, precision="float16", ms_per_step=None, failed="CUDA out of memory")


def make_results(*rows, overheads=()):
    return Results({"date": "2026-11-16"}, {"device": "NVIDIA H200"}, {"bfloat16": 800.0}, list(rows), list(overheads))


NAMES = [f"2026-11-16-nvidia-h200{number}.json" for number in ("", "-2", "-3")]


def test_a_new_file_replaces_no_other_and_leaves_no_mark(tmp_path):
    names = []
    for _ in range(3):
        with new_file(tmp_path, make_results()) as path:
            make_results(EAGER).write(path)
        names.append(path.name)
    assert names == NAMES
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(NAMES)


def test_nor_one_that_others_are_about_to_write(tmp_path):
    with new_file(tmp_path, make_results()) as first, new_file(tmp_path, make_results()) as second:
        (tmp_path / NAMES[2]).touch()
        with new_file(tmp_path, make_results()) as third:
            assert [first.name, second.name] == NAMES[:2]
            assert third.name == "2026-11-16-nvidia-h200-4.json"
    assert [p.name for p in tmp_path.iterdir()] == NAMES[2:]


def test_nor_one_that_another_user_has_marked_or_that_has_just_been_written(tmp_path, monkeypatch):
    held = []

    @contextmanager
    def beside_others(path):
        if path.name == NAMES[0]:
            raise PermissionError
        if path.name == NAMES[1]:
            path.touch()
        held.append(path.name)
        yield
        held.remove(path.name)

    monkeypatch.setattr(report, "alone", beside_others)
    with new_file(tmp_path, make_results()):
        assert held == NAMES[2:]  # the second is free for others


def test_an_error_within_is_the_callers(tmp_path):
    with pytest.raises(UsageError, match="mine"), new_file(tmp_path, make_results()):
        raise UsageError("mine")
    assert not list(tmp_path.iterdir())


def test_a_file_that_another_bench_is_at_is_refused(tmp_path):
    path = tmp_path / "a.json"
    refused = pytest.raises(UsageError, match=r"another process is at work on .*a\.json: let it finish first")
    with alone(path), refused, alone(path):
        pass
    with alone(path):
        pass


def test_the_file_has_all_there_is(tmp_path):
    make_results(EAGER, FAILED, overheads=[{"ratio": 1.1}]).write(tmp_path / "a.json")
    read = json.loads((tmp_path / "a.json").read_text())
    assert list(read) == ["provenance", "hardware", "matrix_product", "rows", "overheads", "complete"]
    assert [Row(**row) for row in read["rows"]] == [EAGER, FAILED]
    assert read["complete"] is False


def test_the_tables_show_rows_in_order_and_what_auto_is(capsys):
    overhead = {"method": "pi", "dataset": "cifar10", "asked": "graph", "engine": "graph", "precision": "bfloat16"}
    overhead |= {"ratio": 1.0234}
    print_results(make_results(GRAPH, FAILED, EAGER, overheads=[overhead]))
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "pi+sntg │" in line]
    assert ["eager bfloat16" in lines[0], "graph bfloat16 *" in lines[1]] == [True, True]
    assert "│ 20.00 │" in lines[0]
    assert "│  5.00 │" in lines[1]
    assert "31 %" in lines[1]
    assert max(map(len, out.splitlines())) <= 100
    assert "a large matrix product in bfloat16: 800 TFLOP/s" in out
    assert "pi on cifar10 with +sntg: 1.023 times the step without (graph, bfloat16)" in out
    assert "auto is graph, the fastest (a run with its start: eager 20 s, graph 5 s)" in out
    assert "no figures for pi+sntg, eager, float16: CUDA out of memory" in out


def test_a_table_names_the_engine_that_ran():
    assert speed(FALLEN)["how"] == around(FALLEN)["how"] == "compiled instead of graph bfloat16"


def test_a_column_without_figures_is_left_out():
    assert list(aligned([around(EAGER)])[0]) == ["method", "how"]
    assert list(aligned([around(replace(EAGER, peak_gib=1.0))])[0]) == ["method", "how", "GiB"]


def test_a_single_engine_is_not_called_the_fastest():
    assert verdicts([GRAPH]) == []
    assert verdicts([EAGER, FALLEN]) == []  # what auto means did not run


def test_a_start_that_takes_longer_than_the_steps_gain_counts():
    (line,) = verdicts([EAGER, replace(GRAPH, warm_up_s=14.0)])
    assert "auto is graph, the fastest (a run with its start: eager 20 s, graph 19 s)" in line
    (line,) = verdicts([EAGER, replace(GRAPH, warm_up_s=16.0)])
    assert "auto is graph, but eager is faster (a run with its start: eager 20 s, graph 21 s)" in line


def test_a_busy_machine_is_told_of_and_a_calm_one_is_not():
    assert disturbances([replace(EAGER, rounds_ms=[5.0, 5.1, 5.6]), FAILED]) == []
    assert "up to 2.4" in disturbances([replace(EAGER, rounds_ms=[5.0, 12.0, 5.6]), EAGER])[0]


def test_the_plot_has_a_panel_by_precision_and_one_by_method():
    other = replace(EAGER, method="mt", ms_per_step=9.0)
    tf32 = replace(EAGER, precision="tf32", ms_per_step=30.0)
    by_precision, by_method = panels([tf32, EAGER, GRAPH, other])
    assert by_precision.bars == {"tf32": {"eager": 30.0}, "bfloat16": {"eager": 20.0, "graph": 5.0}}
    assert by_method.bars == {"pi+sntg": {"eager": 20.0, "graph": 5.0}, "mt": {"eager": 9.0}}


def test_the_plot_shows_a_method_in_the_precision_that_auto_means_for_it():
    vat = replace(GRAPH, method="vat+ent", precision="float16", auto=True, ms_per_step=7.0)
    other = replace(GRAPH, method="pi", auto=True, ms_per_step=4.0)
    found = panels([replace(vat, precision="bfloat16", auto=False, ms_per_step=6.0), vat, GRAPH, other])
    assert [panel.title for panel in found] == ["cifar10, bfloat16", "cifar10, float16"]
    assert list(found[0].bars) == ["pi", "pi+sntg"]
    assert found[1].bars == {"vat+ent": {"graph": 7.0}}


def test_the_plot_has_no_bar_for_what_did_not_run():
    (panel,) = panels([EAGER, FALLEN, FAILED])
    assert panel.bars == {"pi+sntg": {"eager": 20.0}}


def test_the_plot_is_a_png(tmp_path):
    draw_bench(panels([EAGER, GRAPH, replace(EAGER, precision="tf32")]), "a machine", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_where_figures_come_from_is_told_without_a_place_on_the_machine(monkeypatch):
    monkeypatch.setenv("COMMIT", "abc1234")
    told = made_by("sntg bench") | hardware("cpu")
    assert told["commit"] == "abc1234"
    assert told["cpu_cores"] >= 1
    assert told["device"] == told["cpu"] != ""
    assert str(Path.home()) not in json.dumps(told)


def test_an_installed_copy_is_told_by_its_code(monkeypatch, tmp_path):
    for name, text in (("__init__.py", ""), ("a/b.py", "1"), ("a/notes.txt", "any")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(provenance.sntg, "__file__", str(tmp_path / "__init__.py"))
    source = made_by("sntg bench")["source"]
    (tmp_path / "a/notes.txt").write_text("other")
    assert made_by("sntg bench")["source"] == source
    (tmp_path / "a/b.py").write_text("2")
    changed = made_by("sntg bench")["source"]
    (tmp_path / "a/b.py").rename(tmp_path / "a/c.py")
    assert len({source, changed, made_by("sntg bench")["source"]}) == 3


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.delenv("COMMIT", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert made_by("sntg bench")["commit"] == ""


def git(folder, *command):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("known", [False, True])
def test_the_commit_is_the_sources_own_and_not_that_of_a_repository_it_lies_in(tmp_path, monkeypatch, known):
    monkeypatch.delenv("COMMIT", raising=False)
    copy = tmp_path / "lib" / "provenance.py"
    copy.parent.mkdir()
    copy.touch()
    (tmp_path / "theirs").touch()
    git(tmp_path, "init")
    git(tmp_path, "add", "." if known else "theirs")
    git(tmp_path, "commit", "-m", "theirs")
    monkeypatch.setattr(provenance, "__file__", str(copy))
    assert bool(made_by("sntg bench")["commit"]) == known


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_gpu_is_told_with_its_driver(monkeypatch, name):
    class Properties:
        name, total_memory, major, minor = "NVIDIA H200", 2**37, 9, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr("sntg.bench.provenance._output", lambda *command: "570.1\n570.1")
    told = hardware(name)
    assert (told["device"], told["driver"], told["compute_capability"]) == ("NVIDIA H200", "570.1", "9.0")
