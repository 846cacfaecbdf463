"""What is measured, in which order, and what a choice leaves of it."""

from itertools import product

import pytest
import torch

from sntg.bench import Choice
from sntg.bench.cases import LABELS, METHODS, Case, automatic, chosen, config_of, inputs_of, narrowed, plan
from sntg.errors import UsageError
from sntg.models import PRECISIONS
from sntg.training import Stack, resolve
from sntg.training.engines import ENGINES


@pytest.fixture
def gpu_plan(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    return plan("cuda")


def half(method):
    return "float16" if method.startswith("vat") else "bfloat16"


def flat(groups):
    return [case for group in groups for case in group]


def test_a_gpu_measures_every_engine_and_precision_of_one_method_and_two_ways_of_the_others(gpu_plan):
    cases = flat(gpu_plan)
    assert len(cases) == len(set(cases))
    assert {case.dataset for case in cases} == {"cifar10"}
    ways = {m: {(c.engine, c.precision) for c in cases if c.method == m} for m in METHODS}
    assert ways.pop("pi+sntg") == set(product(ENGINES, PRECISIONS))
    assert all(found == {("eager", half(m)), ("graph", half(m))} for m, found in ways.items())


def test_what_auto_is_takes_turns_with_the_same_without_the_graph_term(gpu_plan):
    pairs = [[(c.method, c.engine, c.precision) for c in group] for group in gpu_plan if len(group) > 1]
    bases = ("pi", "tempens", "mt", "vat", "vat+ent")
    assert pairs == [[(name, "graph", half(m)) for name in (f"{m}+sntg", m)] for m in bases]
    assert gpu_plan[0][0] == Case("cifar10", "pi+sntg", "graph", "bfloat16")  # with nothing compiled before it


def test_compiled_follows_graph_of_the_same_precision_at_once(gpu_plan):
    ways = [(c.precision, c.engine) for c in flat(gpu_plan) if c.method == "pi+sntg"]
    assert all(ways[ways.index((p, "graph")) + 1] == (p, "compiled") for p in PRECISIONS)


def test_a_cpu_compares_engines_and_the_graph_term_on_both_small_nets(monkeypatch):
    monkeypatch.setattr("sntg.training.automatic.cpp_compiler", lambda: "g++")
    for dataset, model, best_of_vat in (("two-moons", "mlp", ["compiled", "eager"]), ("digits", "small", ["eager"])):
        groups = [group for group in plan("cpu") if group[0].dataset == dataset]
        assert {config_of(case, "cpu").model for group in groups for case in group} == {model}
        first, *others = [[(c.method, c.engine) for c in group] for group in groups]
        assert first == [("pi+sntg", "eager"), ("pi+sntg", "compiled"), ("pi", "eager")]
        assert others == [
            [(name, engine) for name in names for engine in (best_of_vat if "vat" in name else ["eager"])]
            for names in (*((f"{base}+sntg", base) for base in ("tempens", "mt", "vat", "vat+ent")), ("supervised",))
        ]


def test_what_auto_means_is_what_a_run_of_the_recipe_would_take(monkeypatch):
    monkeypatch.setitem(ENGINES, "compiled", lambda step: step)
    monkeypatch.setattr("sntg.training.automatic.cpp_compiler", lambda: "g++")
    for dataset, method in (("two-moons", "vat"), ("two-moons", "pi"), ("digits", "vat")):
        case = automatic(dataset, method, "cpu")
        (decided,) = Stack([resolve(dataset, LABELS[dataset], method, device="cpu")]).configs
        assert (case.engine, case.precision) == (decided.engine, decided.precision)


def test_a_choice_leaves_what_fits_it(gpu_plan):
    left = narrowed(gpu_plan, ["pi", "mt"], list(ENGINES), list(PRECISIONS))
    assert [[(c.method, c.engine) for c in group] for group in left] == [
        [("pi", "graph")],
        [("mt", "graph")],
        [("pi", "eager")],
        [("mt", "eager")],
    ]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"methods": "pi,mean"}, "unknown method 'mean'.*valid: mt, mt\\+sntg, pi"),
        ({"engines": "fast"}, "unknown engine 'fast'.*valid: compiled, eager, graph"),
        ({"precisions": "float8"}, "unknown precision 'float8'.*valid: bfloat16, float16, float32, tf32"),
        ({"engines": "graph"}, "none of the bench's cases.*pi\\+sntg compiled float32"),
        ({"steps": 0}, "--steps 0"),
        ({"steps": 2**31}, "--steps 2147483648"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_what_cannot_be_is_refused(choice, message):
    with pytest.raises(UsageError, match=message):
        _ = Choice(**{"device": "cpu"} | choice).groups


def test_blanks_around_names_do_not_matter():
    assert chosen("method", " pi , mt", METHODS) == ("pi", "mt")


@pytest.mark.parametrize("method", METHODS)
def test_the_settings_are_the_recipes_and_no_evaluation_falls_among_the_steps(method):
    config = config_of(Case("cifar10", method, "eager", "float32"), "cpu")
    assert (config.labels, config.model) == (4000, "conv13")
    assert config.overridden == ("eval_every",)
    assert config.eval_every > 10**6


def test_the_small_datasets_are_themselves():
    config = config_of(plan("cpu")[-1][0], "cpu")
    assert int((inputs_of(config).labels >= 0).sum()) == config.labels == 20
