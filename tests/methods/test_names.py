"""The grammar of the methods' names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sntg.errors import UsageError
from sntg.methods import METHODS, MethodName, all_names, parse

ADDED = st.permutations(["ent", "sntg"]).flatmap(lambda p: st.integers(0, 2).map(lambda k: list(p)[:k]))
BASES = st.sampled_from(sorted(METHODS))


@given(BASES, ADDED)
def test_additions_are_read_in_any_order(base, added):
    assert parse("+".join([base, *added])) == MethodName(base, "ent" in added, "sntg" in added)


@given(BASES, st.booleans(), st.booleans())
def test_a_name_printed_and_read_is_the_same_name(base, ent, sntg):
    name = MethodName(base, ent, sntg)
    assert parse(str(name)) == name


@given(BASES, ADDED, st.data())
def test_case_and_outer_spaces_do_not_matter(base, added, data):
    text = "+".join([base, *added])
    mixed = "".join(c.upper() if data.draw(st.booleans()) else c for c in text)
    assert parse(f" {mixed}\t") == parse(text)


def test_every_name_is_listed_once_and_reads_back_as_printed():
    assert len(all_names()) == len(set(all_names())) == 4 * len(METHODS)
    assert [str(parse(name)) for name in all_names()] == all_names()


def test_the_methods_of_the_paper_are_there():
    assert {"supervised", "sntg", "pi", "pi+sntg", "tempens", "tempens+sntg", "mt", "mt+sntg", "vat"} < set(all_names())
    assert {"vat+sntg", "vat+ent", "vat+ent+sntg"} < set(all_names())


@pytest.mark.parametrize("name", ["sntg", "supervised+sntg"])
def test_sntg_alone_is_the_ablation_on_supervised(name):
    assert parse(name) == MethodName("supervised", ent=False, sntg=True)
    assert str(parse(name)) == "sntg"


def test_sntg_alone_takes_the_entropy_term_too():
    assert parse("sntg+ent") == MethodName("supervised", ent=True, sntg=True)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("pi+sntgg", "pi+sntg"),
        ("tempen", "tempens"),
        ("vatt", "vat"),
        ("mt+snt", "mt+sntg"),
        ("supervise", "supervised"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_ones_and_the_list(name, nearest):
    with pytest.raises(UsageError) as caught:
        parse(name)
    message = str(caught.value)
    hint, valid = message.split("(valid: ")
    assert f"unknown method {name!r}" in hint
    assert repr(nearest) in hint
    assert valid.removesuffix(")").split(", ") == sorted(all_names())


@pytest.mark.parametrize("name", ["", "+", "ent", "pi+", "pi++sntg", "pi+pi", "pi sntg", "zzzzzz", "ent+sntg"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(UsageError, match="unknown method"):
        parse(name)


@pytest.mark.parametrize("name", ["pi+sntg+sntg", "vat+ent+sntg+ent", "sntg+sntg"])
def test_a_term_added_twice_is_refused(name):
    with pytest.raises(UsageError, match="twice"):
        parse(name)


def test_every_method_is_registered_under_its_own_name_with_a_line():
    assert all(method.name == name and method.line for name, method in METHODS.items())
