"""`sntg bench` from end to end, on a CPU: what it prints, what it leaves behind, and how it stops."""

import errno
import json
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
from sntg.bench.report import Results
from sntg.training import engines


def test_the_command_measures_prints_and_writes(small, capsys, tmp_path, call, read):
    assert not call("--engines", "eager", "--steps", "1", "--device", "cpu")
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


def test_a_checkout_has_a_folder_for_results(small, tmp_path, read):
    home = tmp_path / "benchmarks" / "results"
    home.mkdir(parents=True)
    run_bench(Choice("cpu", methods="pi", steps=1))
    assert read(home)["complete"]


def test_two_that_begin_at_once_have_a_file_each(small, tmp_path, monkeypatch):
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


def test_the_plot_is_there_even_if_nobody_reads_on(small, tmp_path, read, monkeypatch):
    def closed(*arguments, **options):
        raise BrokenPipeError

    monkeypatch.setattr(sys.modules["sntg.bench"], "print_results", closed)
    with pytest.raises(BrokenPipeError):
        run_bench(Choice("cpu", "pi", "eager", steps=1))
    assert read(tmp_path)["complete"]


def test_the_tables_are_printed_even_if_the_disk_has_no_room_for_the_plot(small, capsys, tmp_path, call, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys.modules["sntg.bench"], "draw_bench", full)
    assert call("--methods", "pi", "--engines", "eager", "--steps", "1", "--device", "cpu") == 1
    (results,) = tmp_path.iterdir()
    out, err = capsys.readouterr()
    assert "A step of mlp on two-moons" in out
    assert out.endswith(f"results: {results.name}\n")
    assert f"[Errno 28] the plot {results.with_suffix('.png').name} cannot be written: No space left on device" in err
    assert err.endswith(f"; `sntg bench --resume {results.name}` draws it when that is put right\n")


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_the_tables_are_printed_even_if_the_disk_has_no_room_for_the_figures(
    small, capsys, tmp_path, writes, call, monkeypatch
):
    write, written = Results.write, []

    def full(results, path):
        if len(written) == writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        write(results, path)

    monkeypatch.setattr(Results, "write", full)
    assert call("--methods", "pi", "--engines", "eager", "--steps", "1", "--device", "cpu") == 1
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


def test_where_no_engine_that_was_asked_for_works_there_is_no_plot(small, capsys, tmp_path, call, monkeypatch):
    def fails(step):
        raise RuntimeError("no compiler here")

    monkeypatch.setitem(engines.ENGINES, "compiled", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", engines.SlowerEngine)
        assert not call("--engines", "compiled", "--methods", "pi+sntg", "--steps", "1", "--device", "cpu")
    assert "eager instead of compiled" in capsys.readouterr().out
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


@pytest.mark.parametrize("option", ["--methods", "--engines", "--precisions"])
def test_no_name_at_all_is_not_every_name(option, capsys, call, monkeypatch):
    monkeypatch.setattr(Bench, "measure", None)
    assert call(option, "") == 2
    assert f"unknown {option.removeprefix('--').removesuffix('s')} ''" in capsys.readouterr().err


def test_sigterm_stops_it_too_and_leaves_no_caches(small, capsys, tmp_path, call, monkeypatch):
    """Within an engine's start, too: what is raised there makes a slower engine take over."""
    caches = []

    def terminated(step):
        caches.append(Path(os.environ["TRITON_CACHE_DIR"]))
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(engines.ENGINES, "compiled", terminated)
    assert call("--device", "cpu", "--engines", "compiled", "--steps", "1") == 143
    assert capsys.readouterr().err.splitlines()[-1] == "sntg: stopped"
    assert os.listdir(tmp_path) == []
    assert not caches[0].exists()
    assert signal.getsignal(signal.SIGTERM) == before


def test_ctrl_c_before_the_first_figure_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(bench, group):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "measure", interrupted)
    with pytest.raises(SystemExit) as ended:
        run_bench(Choice("cpu", engines="eager"))
    assert ended.value.code == 130
    assert os.listdir(tmp_path) == []


def test_figures_that_ctrl_c_kept_from_being_written_are_written_then(small, capsys, tmp_path, call, read, monkeypatch):
    write, asked = Results.write, []

    def interrupted(results, path):
        if not asked:
            asked.append(path)
            raise KeyboardInterrupt
        write(results, path)

    monkeypatch.setattr(Results, "write", interrupted)
    assert call("--device", "cpu", "--engines", "eager", "--methods", "pi", "--steps", "1") == 130
    assert [row["dataset"] for row in read(tmp_path)["rows"]] == ["two-moons"]
    out, err = capsys.readouterr()
    assert f"results: {asked[0]}" in out
    assert f"`sntg bench --resume {asked[0]}` goes on" in err


def test_a_group_interrupted_before_its_overhead_is_known_is_measured_again(
    small, capsys, tmp_path, call, read, monkeypatch
):
    module, asked = sys.modules["sntg.bench"], []
    of_rows = module.overheads

    def interrupted(rows):
        asked.append(rows)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return of_rows(rows)

    monkeypatch.setattr(module, "overheads", interrupted)
    words = "--device", "cpu", "--engines", "eager", "--methods", "pi,pi+sntg", "--steps", "1"
    assert call(*words) == 130
    found = read(tmp_path)
    assert {row["dataset"] for row in found["rows"]} == {o["dataset"] for o in found["overheads"]} == {"two-moons"}
    (path,) = tmp_path.glob("*.json")
    assert not call("--resume", path)
    assert [o["dataset"] for o in read(tmp_path)["overheads"]] == ["two-moons", "digits"]


def test_the_compiler_is_loaded_before_anything_is_measured():
    """A request to stop that came while it loads would leave half of it, with which nothing can be put in order."""
    loads = "import sys, sntg.bench.measure as m; assert 'torch._dynamo' not in sys.modules; m.Bench('cpu')"
    check = "; assert hasattr(sys.modules['torch._dynamo'], 'reset')"
    assert subprocess.run([sys.executable, "-c", loads + check], check=False).returncode == 0


def test_bad_usage_ends_in_one_sentence(capsys, call):
    assert call("--methods", "pie") == 2
    assert "did you mean 'pi'" in capsys.readouterr().err


@pytest.mark.slow
def test_eager_and_compiled_are_compared_and_auto_says_what_it_is(capsys, tmp_path, read):
    run_bench(Choice("cpu", methods="pi,pi+sntg", steps=9))
    rows = read(tmp_path)["rows"]
    assert {(r["dataset"], r["engine"]) for r in rows if r["method"] == "pi+sntg"} == {
        (name, engine) for name in ("two-moons", "digits") for engine in ("eager", "compiled")
    }
    assert all(r["warm_up_s"] for r in rows)
    assert capsys.readouterr().out.count("auto is eager, ") == 2
