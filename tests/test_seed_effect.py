"""The statistics behind docs/cifar10.md (studies/seed_effect.py, crossed_runs.py) against closed forms and SciPy."""

import itertools
import json
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType

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


def test_the_interval_of_a_difference_is_welchs(seed_effect: ModuleType) -> None:
    ours, paper = [11.6, 11.1, 10.9, 10.8], [11.0, 11.1, 10.8, 11.2, 10.9]
    figures = [seed_effect.Figures(mean(sample), stdev(sample), len(sample)) for sample in (ours, paper)]
    expected = stats.ttest_ind(ours, paper, equal_var=False).confidence_interval(0.95)
    assert seed_effect.interval(*figures) == pytest.approx((expected.low, expected.high))


def test_the_figure_of_the_seeds_is_drawn(seed_effect: ModuleType, tmp_path: Path) -> None:
    seed_effect.draw(tmp_path / "seeds.png")
    assert (tmp_path / "seeds.png").read_bytes().startswith(b"\x89PNG")


def test_labels_and_all_else_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    crossed = load_study("crossed_runs")
    added = {"labels": [0.3, -0.1, -0.2], "else": [0.05, 0.0, -0.05]}
    errors = [[11 + a + b for b in added["else"]] for a in added["labels"]]
    monkeypatch.setattr(crossed, "errors", lambda images: errors)
    rows = [line.split(" | ") for line in crossed.crossed_table("test").splitlines()]
    assert [row[-1] for row in rows[2:5]] == ["**+0.30** |", "**-0.10** |", "**-0.20** |"]
    assert rows[5][1:] == ["**+0.05**", "**+0.00**", "**-0.05**", "mean 11.00 |"]
    assert [row[1][:8] for row in rows[2:5]] == ["[11.35](", "[10.95](", "[10.85]("]  # with all else of seed 0


def test_a_crossed_run_had_the_labels_and_the_seed_it_stands_for() -> None:
    crossed = load_study("crossed_runs")
    for labels, seed in itertools.product(crossed.SEEDS, repeat=2):
        config = json.loads((crossed.folder_of(labels, seed) / "config.json").read_text())
        assert config["seed"] == seed
        source = config["split_file"] or f"seed-{config['seed']}/split.txt"
        assert source.endswith(f"seed-{labels}/split.txt")


def test_the_figure_of_the_crossed_runs_is_drawn(tmp_path: Path) -> None:
    load_study("crossed_runs").draw(tmp_path / "crossed.png")
    assert (tmp_path / "crossed.png").read_bytes().startswith(b"\x89PNG")
