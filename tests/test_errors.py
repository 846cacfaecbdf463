"""A wrong name is answered with the right ones."""

import pytest

from sntg.errors import DivergenceError, UsageError, unknown


def test_unknown_offers_the_nearest_name_and_lists_all_in_order():
    message = str(unknown("dataset", "two-mons", ["two-moons", "digits"]))
    assert message == "unknown dataset 'two-mons': did you mean 'two-moons'? (valid: digits, two-moons)"


def test_unknown_offers_several_near_names():
    message = str(unknown("method", "pi", ["pi1", "pi2"]))
    assert "did you mean " in message
    assert "'pi1'" in message
    assert "'pi2'" in message
    assert " or " in message


def test_unknown_makes_no_suggestion_when_nothing_is_near():
    message = str(unknown("pairs", "zzz", ["half", "random", "all"]))
    assert message == "unknown pairs 'zzz' (valid: all, half, random)"


def test_unknown_returns_the_error_and_takes_any_iterable():
    error = unknown("graph", "sift", iter({"soft": 1, "hard": 2}))
    assert isinstance(error, UsageError)
    assert "'soft'" in str(error)


def test_a_usage_error_is_caught_as_a_value_error():
    with pytest.raises(ValueError, match="no such thing"):
        raise UsageError("no such thing")


def test_divergence_is_not_the_callers_mistake():
    assert issubclass(DivergenceError, RuntimeError)
    assert not issubclass(DivergenceError, UsageError)
