"""The statistics behind docs/cifar10*.md (studies/seed_effect.py, crossed_runs.py) against closed forms and SciPy."""

import gzip
import json
import re
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType

import numpy as np
import pytest
from scipy import stats
from study_scripts import load_study


@pytest.fixture(scope="module")
def seed_effect() -> ModuleType:
    return load_study("seed_effect")


def test_a_seeds_part_is_what_all_methods_share(seed_effect: ModuleType) -> None:
    added, rest = [0.4, -0.1, -0.3], [[0.05, -0.05, 0], [-0.05, 0.05, 0]]
    runs = [[method + a + r for a, r in zip(added, row, strict=True)] for method, row in enumerate(rest)]
    effect = seed_effect.column_effect(runs)
    assert effect.added == pytest.approx(added)
    assert effect.rest == pytest.approx((4 * 0.05**2 / 2) ** 0.5)  # two degrees of freedom
    assert effect.f_test == pytest.approx(1 / (1 + 52))  # F = (2 * 0.26 / 2) / 0.005 with 2 and 2, in closed form
    assert effect.permutation == pytest.approx(1 / 6)  # both rows fall: no other order adds as much


def test_of_many_seeds_some_orders_are_drawn(seed_effect: ModuleType) -> None:
    """Ten have 10! orders in each row, too many to try; errors of a normal distribution let both tests say the same."""
    table = np.random.default_rng(0).normal(size=(3, 10))
    table[:, 0] += 2.5
    effect = seed_effect.column_effect(table.tolist())
    assert 0.001 < effect.f_test < 0.2
    assert effect.permutation == pytest.approx(effect.f_test, abs=0.02)


def test_one_more_seed_of_one_method_is_one_more_run() -> None:
    odds, errors = load_study("odds"), [11.0, 11.4, 10.9, 11.3]
    alone = odds.one_more(odds.figures(errors), 10.7)
    assert odds.one_more_seed([[error] for error in errors], [10.7]) == pytest.approx(alone)


def test_how_unusual_a_seed_is_does_not_depend_on_the_methods_units() -> None:
    """Hotelling's T^2 is that of any linear mixture; and of seeds that are nothing special, p is uniform."""
    odds, rng = load_study("odds"), np.random.default_rng(0)
    draws = rng.normal(size=(400, 7, 3)) @ rng.normal(size=(3, 3))
    found = [odds.one_more_seed(seeds[:6].tolist(), seeds[6].tolist()) for seeds in draws]
    mixture = np.array([[1, 2, 0], [0, 1, 1], [3, 0, 1]])
    mixed = odds.one_more_seed((draws[0, :6] @ mixture).tolist(), (draws[0, 6] @ mixture).tolist())
    assert mixed == pytest.approx(found[0])
    assert stats.kstest(found, "uniform").pvalue > 0.05


def test_the_interval_of_a_difference_is_welchs(seed_effect: ModuleType) -> None:
    ours, paper = [11.6, 11.1, 10.9, 10.8], [11.0, 11.1, 10.8, 11.2, 10.9]
    figures = [seed_effect.Figures(mean(sample), stdev(sample), len(sample)) for sample in (ours, paper)]
    expected = stats.ttest_ind(ours, paper, equal_var=False).confidence_interval(0.95)
    assert seed_effect.interval(*figures) == pytest.approx((expected.low, expected.high))


def test_one_more_run_falls_into_its_interval_as_often_as_it_says(seed_effect: ModuleType) -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(11.0, 0.3, (20_000, 5))
    hits = 0
    for *before, after in samples.tolist():
        low, high = seed_effect.next_run(seed_effect.Figures(mean(before), stdev(before), len(before)))
        hits += low < after < high
    assert hits / len(samples) == pytest.approx(0.95, abs=0.005)  # three standard errors


def test_a_lines_error_is_that_of_least_squares(seed_effect: ModuleType) -> None:
    """Against the covariance of the normal equations, and wider where the place itself is uncertain."""
    x, y = [45.7, 46.3, 46.6, 47.1], [10.9, 11.2, 11.1, 11.6]
    design = np.stack([np.ones(4), np.array(x) - 46.5], 1)
    solution, rest, *_ = np.linalg.lstsq(design, np.array(y), rcond=None)
    covariance = np.linalg.inv(design.T @ design) * rest[0] / 2
    line = seed_effect.line_at(x, y, seed_effect.Figures(46.5, 0.0, 20))
    assert (line.there, line.slope) == pytest.approx(tuple(solution))
    assert line.error == pytest.approx(covariance[0, 0] ** 0.5)
    assert line.freedom == 2
    wider = seed_effect.line_at(x, y, seed_effect.Figures(46.5, 0.4, 20)).error
    assert wider**2 - line.error**2 == pytest.approx((line.slope * 0.4) ** 2 / 20)


def test_runs_are_held_against_the_labels_of_their_own_seed(
    seed_effect: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds 1, 3 and 4 of five: on the test images a line of slope a half, on the training images one that falls."""
    alone = [99.0, 46.0, 99.0, 47.0, 45.0]
    runs = {s: seed_effect.Run(11 + (alone[s] - 46) / 2, 11 - (alone[s] - 46)) for s in (1, 3, 4)}
    method = seed_effect.Method("Pi", "pi", 11.0, seed_effect.Figures(11.15, 0.3, 9))
    monkeypatch.setattr(seed_effect, "of_labels_alone", lambda: (alone, seed_effect.Figures(46.5, 0.0, 20)))
    monkeypatch.setattr(seed_effect, "runs_of", lambda method: runs)
    monkeypatch.setattr(seed_effect, "METHODS", [method])
    rows = seed_effect.labels_table().splitlines()[2:]
    assert rows[:2] == [
        "| test images | 1.00 | 0.000 | 0.50 | 11.25 |",
        "| training images | -1.00 | 0.000 | -1.00 | 10.50 |",
    ]
    half = stats.t.ppf(0.975, 1) * 0.1  # the paper's mean is known to 0.1, the line exactly
    above = f"+0.10 above the paper ({0.1 - half:+.2f} to {0.1 + half:+.2f}, 95 %), and +0.25 above the prototype."
    assert rows[-1] == f"With labels as usual: {above}"


def test_the_gain_is_taken_within_a_seed(seed_effect: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the seeds that both methods were run with: 0 and 2, whose mean is known to 12.7 standard errors."""
    runs = {
        "pi": {0: seed_effect.Run(13.0, 12.0), 2: seed_effect.Run(11.0, 10.0)},
        "pi+sntg": {s: seed_effect.Run(*errors) for s, errors in enumerate([(11.6, 11.0), (0.0, 0.0), (9.4, 8.2)])},
    }
    figures = [seed_effect.Figures(12.4, 0.3, 10), seed_effect.Figures(11.1, 0.1, 10)]
    methods = [seed_effect.Method(m, m, p, f) for m, p, f in zip(runs, (12.6, 10.7), figures, strict=True)]
    monkeypatch.setattr(seed_effect, "METHODS", methods)
    monkeypatch.setattr(seed_effect, "runs_of", lambda method: runs[method.folder])
    assert seed_effect.gain_table().splitlines() == [
        "| SNTG takes off Pi's error | seed 0 | seed 2 | mean (95 %) | prototype | paper |",
        "|---|---|---|---|---|---|",
        "| test images | 1.40 | 1.60 | 1.50 (0.23 to 2.77) | 1.90 | 1.30 |",
        "| training images | 1.00 | 1.80 | 1.40 (-3.68 to 6.48) |  |  |",
    ]


def test_the_figure_of_the_seeds_is_drawn(seed_effect: ModuleType, tmp_path: Path) -> None:
    seed_effect.draw(tmp_path / "seeds.png")
    assert (tmp_path / "seeds.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_its_last_test_error_and_its_last_training_errors_in_the_mean(
    seed_effect: ModuleType, tmp_path: Path
) -> None:
    history = [{"error": None, "teacher_error": 90.0}] + [{"error": e, "teacher_error": 2 * e} for e in range(10)]
    lines = "".join(json.dumps(epoch) + "\n" for epoch in history)
    (tmp_path / "metrics.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert seed_effect.read_run(tmp_path) == (9, 9.0)


def test_labels_and_all_else_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    crossed = load_study("crossed_runs")
    labels, others = [0.3, -0.1, -0.2], [0.06, 0.0, -0.06]
    rest = [[0.1, -0.1, 0.0], [-0.1, 0.1, 0.0], [0.0, 0.0, 0.0]]  # four degrees of freedom: a deviation of 0.1
    errors = [[11 + a + b + c for b, c in zip(others, row, strict=True)] for a, row in zip(labels, rest, strict=True)]
    monkeypatch.setattr(crossed, "errors", lambda images: errors)
    lines = crossed.crossed_table("test").splitlines()
    rows = [line.split(" | ") for line in lines]
    assert [row[-1] for row in rows[2:5]] == ["**+0.30** |", "**-0.10** |", "**-0.20** |"]
    assert rows[5][1:] == ["**+0.06**", "**+0.00**", "**-0.06**", "mean 11.00 |"]
    assert rows[3][1] == "[10.86](results/cifar10/tempens-sntg-4000-labels-1-seed-0)"
    half = stats.t.ppf(0.975, 4) * 0.1 * (1 / 3 + 1 / 6) ** 0.5
    for line, part, above in ((-3, "the labels", 0.45), (-2, "all else", 0.09)):
        interval = f"{above:+.2f} ({above - half:+.2f} to {above + half:+.2f}, 95 %)"
        assert lines[line] == f"With {part} of seed 0 instead of another's: {interval}."
    assert lines[-1].endswith("0.10.")


def test_a_crossed_run_had_the_labels_and_the_seed_its_folder_names(seed_effect: ModuleType) -> None:
    folders = list(seed_effect.RESULTS.glob("tempens-sntg-4000-labels-*"))
    assert len(folders) == 8
    for folder in folders:
        labels, seed = map(int, re.findall(r"-labels-(\d+)-seed-(\d+)$", folder.name)[0])
        config, result = (json.loads((folder / name).read_text()) for name in ("config.json", "result.json"))
        assert config["seed"] == result["seed"] == seed
        assert config["split_file"].endswith(f"-seed-{labels}/split.txt")
        assert config["split_file"] in result["provenance"]["command"]


def test_where_labels_and_all_else_are_of_one_seed_no_labels_were_listed() -> None:
    crossed = load_study("crossed_runs")
    for seed in (1, 2):
        config = json.loads((crossed.folder_of(seed, seed) / "config.json").read_text())
        assert (config["seed"], config["split_file"]) == (seed, "")


def test_the_figure_of_the_crossed_runs_is_drawn(tmp_path: Path) -> None:
    load_study("crossed_runs").draw(tmp_path / "crossed.png")
    assert (tmp_path / "crossed.png").read_bytes().startswith(b"\x89PNG")
