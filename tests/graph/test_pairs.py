"""Which pairs each mode gives, and that a random draw favours none."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import all_pairs, half_pairs
from torch.testing import assert_close

from sntg.errors import UsageError
from sntg.graph import PAIR_MODES, HardGraph, Nodes, check_pairs, sample_pairs, sntg_loss


def listed(pairs, n):
    """The pairs as tuples of row numbers, whether they are index tensors or slices."""
    rows = torch.arange(n)
    return list(zip(rows[pairs.i].tolist(), rows[pairs.j].tolist(), strict=True))


@pytest.mark.parametrize("n", [2, 3, 4, 7, 10, 101])
def test_half_pairs_row_i_with_row_i_plus_half(n):
    assert listed(sample_pairs(n, "half"), n) == half_pairs(n)


def test_half_is_the_default():
    assert listed(sample_pairs(6), 6) == [(0, 3), (1, 4), (2, 5)]


def test_half_leaves_out_the_last_row_of_an_odd_batch_and_uses_every_other_once():
    used = [row for pair in listed(sample_pairs(7, "half"), 7) for row in pair]
    assert sorted(used) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("n", [2, 3, 6])
def test_all_holds_every_ordered_pair_once(n):
    assert sorted(listed(sample_pairs(n, "all"), n)) == all_pairs(n)


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_random_with_all_n_pairs_is_every_ordered_pair_exactly_once(n):
    """randperm is uniform over the numbers 0..n(n-1)-1, so a one-to-one map makes all pairs equally likely."""
    assert sorted(listed(sample_pairs(n, "random", n * (n - 1)), n)) == all_pairs(n)


@given(st.integers(2, 40), st.data())
def test_random_pairs_are_distinct_and_join_two_different_rows(n, data):
    s = data.draw(st.integers(1, n * (n - 1)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    pairs = listed(sample_pairs(n, "random", s, generator=generator), n)
    assert len(pairs) == len(set(pairs)) == s
    assert all(i != j and 0 <= i < n and 0 <= j < n for i, j in pairs)


def test_every_ordered_pair_is_drawn_equally_often():
    n, draws = 4, 6000
    generator = torch.Generator().manual_seed(0)
    counts = Counter(listed(sample_pairs(n, "random", 1, generator=generator), n)[0] for _ in range(draws))
    expected = draws / (n * (n - 1))
    chi_squared = sum((counts[pair] - expected) ** 2 / expected for pair in all_pairs(n))
    assert chi_squared < 37.4  # the 0.9999 quantile for 11 degrees of freedom; one pair never drawn gives over 500


@pytest.mark.parametrize("n", [2, 5, 100])
def test_random_draws_half_the_batch_unless_told(n):
    assert len(listed(sample_pairs(n, "random"), n)) == n // 2


def test_random_repeats_with_its_generator_and_changes_from_draw_to_draw():
    first = torch.Generator().manual_seed(3)
    again = torch.Generator().manual_seed(3)
    draw = listed(sample_pairs(20, "random", generator=first), 20)
    assert draw == listed(sample_pairs(20, "random", generator=again), 20)
    assert draw != listed(sample_pairs(20, "random", generator=first), 20)


def test_each_mode_has_a_line_of_help():
    assert set(PAIR_MODES) == {"half", "random", "all"}
    assert all(PAIR_MODES.values())


@pytest.mark.parametrize(
    ("n", "mode", "n_pairs", "message"),
    [
        (1, "half", None, "a batch of 1 has no pairs"),
        (0, "all", None, "a batch of 0 has no pairs"),
        (4, "random", 13, r"n_pairs = 13 .* n\(n-1\) = 12 .* n = 4"),
        (4, "random", 0, "n_pairs = 0"),
        (4, "random", -1, "n_pairs = -1"),
        (4, "half", 2, "n_pairs = 2 .* not half"),
        (4, "all", 2, "n_pairs = 2 .* not all"),
        (4, "halve", None, "unknown pairs 'halve': did you mean 'half'"),
    ],
)
def test_what_no_batch_can_give_is_refused_by_name(n, mode, n_pairs, message):
    with pytest.raises(UsageError, match=message):
        check_pairs(n, mode, n_pairs)
    with pytest.raises(UsageError, match=message):
        sample_pairs(n, mode, n_pairs)


def test_the_largest_possible_number_of_pairs_is_accepted():
    check_pairs(4, "random", 12)


def test_a_compiler_may_leave_the_batchs_size_open():
    """As it does when it meets a second one."""

    @torch.compile(backend="eager", fullgraph=True, dynamic=True)
    def loss(features, classes):
        pairs = sample_pairs(features.shape[-2])
        return sntg_loss(features, HardGraph()(Nodes(classes), pairs), pairs)

    for n in (4, 6, 8):
        features, classes = torch.randn(n, 3), torch.arange(n) % 2
        pairs = sample_pairs(n)
        assert_close(loss(features, classes), sntg_loss(features, HardGraph()(Nodes(classes), pairs), pairs))
