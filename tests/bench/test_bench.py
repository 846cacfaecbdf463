"""`sntg bench` from end to end, on a CPU: what it prints, what it leaves behind, and how it stops."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path

import pytest

from sntg.bench import Choice, run_bench
from sntg.bench.cases import BASES, METHODS
from sntg.bench.measure import Bench
from sntg.bench.report import Results, alone
from sntg.cli import main
from sntg.training import engines


@pytest.fixture(autouse=True)
def somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def read(folder):
    (path,) = folder.glob("*.json")
    assert path.with_suffix(".png").exists()
    return json.loads(path.read_text())


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["sntg", "bench", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_command_measures_prints_and_writes(small, monkeypatch, capsys, tmp_path):
    assert not call(monkeypatch, "--engines", "eager", "--steps", "1", "--device", "cpu")
    found = read(tmp_path)
    assert found["complete"]
    assert found["provenance"]["command"] == "sntg bench --device cpu --engines eager --steps 1"
    assert {(r["dataset"], r["method"]) for r in found["rows"]} == set(product(("two-moons", "digits"), METHODS))
    assert [(o["dataset"], o["method"]) for o in found["overheads"]] == list(product(("two-moons", "digits"), BASES))
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


def test_ctrl_c_leaves_what_there_is_and_says_how_to_go_on(stopped, capsys):
    found = read(stopped.parent)
    assert not found["complete"]
    assert {row["dataset"] for row in found["rows"]} == {"two-moons"}
    assert f"sntg bench --resume {stopped}" in capsys.readouterr().err


def test_a_stopped_bench_measures_only_what_is_missing(stopped, monkeypatch):
    before, measure, measured = json.loads(stopped.read_text()), Bench.measure, []

    def noted(bench, group):
        measured.extend(case.dataset for case in group)
        return measure(bench, group)

    monkeypatch.setattr(Bench, "measure", noted)
    assert not call(monkeypatch, "--resume", stopped)
    assert set(measured) == {"digits"}
    found = read(stopped.parent)
    assert found["complete"]
    assert found["rows"][: len(before["rows"])] == before["rows"]
    assert {row["steps"] for row in found["rows"]} == {9}  # a step a round, as it was asked for
    assert [o["dataset"] for o in found["overheads"]] == ["two-moons", "digits"]
    assert found["provenance"] == before["provenance"] | {"continued": found["provenance"]["continued"]}


def test_two_cannot_go_on_with_one_at_once(stopped, monkeypatch, capsys):
    before = stopped.read_bytes()
    monkeypatch.setattr(Bench, "measure", None)
    with alone(stopped):
        assert call(monkeypatch, "--resume", stopped) == 2
    assert f"another process is at work on {stopped}" in capsys.readouterr().err
    assert stopped.read_bytes() == before


def test_two_that_begin_at_once_have_a_file_each(small, monkeypatch, tmp_path):
    """The second begins while the first measures, when it has written nothing yet."""
    measure, begun = Bench.measure, []

    def interleaved(bench, group):
        begun.append(group)
        if len(begun) == 1:
            run_bench(Choice("cpu", "mt", "eager", steps=1), tmp_path / "new")
        return measure(bench, group)

    monkeypatch.setattr(Bench, "measure", interleaved)
    run_bench(Choice("cpu", "pi", "eager", steps=1), tmp_path / "new")
    found = [json.loads(path.read_text()) for path in (tmp_path / "new").glob("*.json")]
    assert sorted({row["method"] for row in each["rows"]}.pop() for each in found) == ["mt", "pi"]
    assert all(each["complete"] for each in found)
    assert {path.suffix for path in (tmp_path / "new").iterdir()} == {".json", ".png"}


def test_the_plot_is_there_even_if_nobody_reads_on(small, monkeypatch, tmp_path):
    def closed(*arguments, **options):
        raise BrokenPipeError

    monkeypatch.setattr(sys.modules["sntg.bench"], "print_results", closed)
    with pytest.raises(BrokenPipeError):
        run_bench(Choice("cpu", "pi", "eager", steps=1))
    assert read(tmp_path)["complete"]


def test_the_tables_are_printed_even_if_the_disk_has_no_room_for_the_plot(small, monkeypatch, capsys, tmp_path):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys.modules["sntg.bench"], "draw_bench", full)
    assert call(monkeypatch, "--methods", "pi", "--engines", "eager", "--steps", "1", "--device", "cpu") == 1
    (results,) = tmp_path.iterdir()
    out, err = capsys.readouterr()
    assert "A step of mlp on two-moons" in out
    assert out.endswith(f"results: {results.name}\n")
    assert f"[Errno 28] the plot {results.with_suffix('.png').name} cannot be written: No space left on device" in err
    assert err.endswith(f"; `sntg bench --resume {results.name}` draws it when that is put right\n")


def test_a_plot_that_found_no_room_is_drawn_later_without_another_step(stopped, monkeypatch, capsys):
    assert not call(monkeypatch, "--resume", stopped)
    plot, before = stopped.with_suffix(".png"), stopped.read_bytes()
    plot.unlink()
    monkeypatch.setattr(Bench, "measure", None)
    assert not call(monkeypatch, "--resume", stopped)
    assert plot.exists()
    assert stopped.read_bytes() == before
    assert call(monkeypatch, "--resume", stopped) == 2
    assert "is complete: there is nothing left to measure" in capsys.readouterr().err


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_the_tables_are_printed_even_if_the_disk_has_no_room_for_the_figures(
    small, monkeypatch, capsys, tmp_path, writes
):
    write, written = Results.write, []

    def full(results, path):
        if len(written) == writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        write(results, path)

    monkeypatch.setattr(Results, "write", full)
    assert call(monkeypatch, "--methods", "pi", "--engines", "eager", "--steps", "1", "--device", "cpu") == 1
    out, err = capsys.readouterr()
    assert "A step of mlp on two-moons" in out
    message = "sntg: stopped by the system: [Errno 28] No space left on device"
    if not writes:
        assert err.endswith(f"{message}\n")
        assert list(tmp_path.iterdir()) == []
        return
    (results,) = tmp_path.iterdir()
    assert out.endswith(f"results: {results.name}\n")
    assert err.endswith(f"{message}; `sntg bench --resume {results.name}` goes on from the figures in it\n")
    assert not json.loads(results.read_text())["complete"]


def test_a_complete_one_is_said_to_be_that_wherever_it_is(stopped, monkeypatch, capsys):
    stopped.write_text(json.dumps(json.loads(stopped.read_text()) | {"complete": True}))
    stopped.with_suffix(".png").touch()
    monkeypatch.setattr(sys.modules["sntg.bench"], "check_writable", None)
    assert call(monkeypatch, "--resume", stopped) == 2
    assert "is complete: there is nothing left to measure" in capsys.readouterr().err


def changed(path, part, key, value):
    found = json.loads(path.read_text())
    found[part][key] = value
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [("provenance", "commit", "another"), ("provenance", "source", "another"), ("hardware", "device", "a toaster")],
)
def test_figures_of_another_source_or_machine_are_not_mixed_in(part, key, value, stopped, monkeypatch, capsys):
    changed(stopped, part, key, value)
    before = stopped.read_bytes()
    assert call(monkeypatch, "--resume", stopped) == 2
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
def test_rows_that_no_bench_wrote_are_refused_before_anything_is_measured(key, value, stopped, monkeypatch, capsys):
    changed(stopped, "rows", 0, json.loads(stopped.read_text())["rows"][0] | {key: value, "warm_up_s": 0.5})
    before = stopped.read_bytes()
    monkeypatch.setattr(Bench, "measure", None)
    assert call(monkeypatch, "--resume", stopped) == 2
    assert "holds no results of this version" in capsys.readouterr().err
    assert stopped.read_bytes() == before


def test_a_bench_stopped_when_all_was_measured_is_complete_without_another_step(stopped, monkeypatch):
    assert not call(monkeypatch, "--resume", stopped)
    found = json.loads(stopped.read_text())
    stopped.write_text(json.dumps(found | {"complete": False}))
    monkeypatch.setattr(Bench, "measure", None)
    assert not call(monkeypatch, "--resume", stopped)
    assert json.loads(stopped.read_text())["complete"]


def test_where_no_engine_that_was_asked_for_works_there_is_no_plot(small, monkeypatch, capsys, tmp_path):
    def fails(step):
        raise RuntimeError("no compiler here")

    monkeypatch.setitem(engines.ENGINES, "compiled", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", engines.SlowerEngine)
        assert not call(monkeypatch, "--engines", "compiled", "--methods", "pi+sntg", "--steps", "1", "--device", "cpu")
    assert "eager instead of compiled" in capsys.readouterr().out
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


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
def test_what_is_no_stopped_bench_is_refused(content, problem, monkeypatch, capsys, tmp_path):
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    assert call(monkeypatch, "--resume", "results.json") == 2
    assert problem in capsys.readouterr().err


def test_a_row_that_is_there_twice_is_refused(stopped, monkeypatch, capsys):
    found = json.loads(stopped.read_text())
    stopped.write_text(json.dumps(found | {"rows": found["rows"] * 2}))
    monkeypatch.setattr(Bench, "measure", None)
    assert call(monkeypatch, "--resume", stopped) == 2
    assert "holds no results of this version" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--methods", "--engines", "--precisions"])
def test_no_name_at_all_is_not_every_name(option, monkeypatch, capsys):
    monkeypatch.setattr(Bench, "measure", None)
    assert call(monkeypatch, option, "") == 2
    assert f"unknown {option.removeprefix('--').removesuffix('s')} ''" in capsys.readouterr().err


def test_a_resumed_bench_takes_no_other_choice(stopped, monkeypatch, capsys):
    assert call(monkeypatch, "--resume", stopped, "--methods", "pi") == 2
    assert "give --resume alone" in capsys.readouterr().err


def test_sigterm_stops_it_too_and_leaves_no_caches(small, monkeypatch, capsys, tmp_path):
    """Within an engine's start, too: what is raised there makes a slower engine take over."""
    caches = []

    def terminated(step):
        caches.append(Path(os.environ["TRITON_CACHE_DIR"]))
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(engines.ENGINES, "compiled", terminated)
    assert call(monkeypatch, "--device", "cpu", "--engines", "compiled", "--steps", "1") == 143
    assert capsys.readouterr().err.splitlines()[-1] == "sntg: stopped"
    assert os.listdir(tmp_path) == []
    assert not caches[0].exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_ctrl_c_before_the_first_figure_leaves_nothing(monkeypatch, tmp_path):
    def interrupted(bench, group):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "measure", interrupted)
    with pytest.raises(SystemExit) as ended:
        run_bench(Choice("cpu", engines="eager"))
    assert ended.value.code == 130
    assert os.listdir(tmp_path) == []


def test_figures_that_ctrl_c_kept_from_being_written_are_written_then(small, monkeypatch, capsys, tmp_path):
    write, asked = Results.write, []

    def interrupted(results, path):
        if not asked:
            asked.append(path)
            raise KeyboardInterrupt
        write(results, path)

    monkeypatch.setattr(Results, "write", interrupted)
    assert call(monkeypatch, "--device", "cpu", "--engines", "eager", "--methods", "pi", "--steps", "1") == 130
    assert [row["dataset"] for row in read(tmp_path)["rows"]] == ["two-moons"]
    out, err = capsys.readouterr()
    assert f"results: {asked[0]}" in out
    assert f"`sntg bench --resume {asked[0]}` goes on" in err


def test_a_group_interrupted_before_its_overhead_is_known_is_measured_again(small, monkeypatch, capsys, tmp_path):
    module, asked = sys.modules["sntg.bench"], []
    of_rows = module.overheads

    def interrupted(rows):
        asked.append(rows)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return of_rows(rows)

    monkeypatch.setattr(module, "overheads", interrupted)
    words = "--device", "cpu", "--engines", "eager", "--methods", "pi,pi+sntg", "--steps", "1"
    assert call(monkeypatch, *words) == 130
    found = read(tmp_path)
    assert {row["dataset"] for row in found["rows"]} == {o["dataset"] for o in found["overheads"]} == {"two-moons"}
    (path,) = tmp_path.glob("*.json")
    monkeypatch.setattr(sys, "argv", ["sntg", "bench", "--resume", str(path)])
    with pytest.raises(SystemExit):
        main()
    assert [o["dataset"] for o in read(tmp_path)["overheads"]] == ["two-moons", "digits"]


def test_the_compiler_is_loaded_before_anything_is_measured():
    """A request to stop that came while it loads would leave half of it, with which nothing can be put in order."""
    loads = "import sys, sntg.bench.measure as m; assert 'torch._dynamo' not in sys.modules; m.Bench('cpu')"
    check = "; assert hasattr(sys.modules['torch._dynamo'], 'reset')"
    assert subprocess.run([sys.executable, "-c", loads + check], check=False).returncode == 0


def test_bad_usage_ends_in_one_sentence(monkeypatch, capsys):
    assert call(monkeypatch, "--methods", "pie") == 2
    assert "did you mean 'pi'" in capsys.readouterr().err


@pytest.mark.slow
def test_eager_and_compiled_are_compared_and_auto_says_what_it_is(capsys, tmp_path):
    run_bench(Choice("cpu", methods="pi,pi+sntg", steps=9))
    rows = read(tmp_path)["rows"]
    assert {(r["dataset"], r["engine"]) for r in rows if r["method"] == "pi+sntg"} == {
        (name, engine) for name in ("two-moons", "digits") for engine in ("eager", "compiled")
    }
    assert all(r["warm_up_s"] for r in rows)
    assert capsys.readouterr().out.count("auto is eager, ") == 2
