"""Batches: streams of rows shuffled for each run, whole batches only, each row with its own input and label."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sntg.training.batches import Batches, Shuffled

RUNS, N = 3, 23
LABELLED = [[0, 5, 7, 22], [1, 2, 3, 4], [6, 10, 11, 12]]  # other rows in each run


def make_batches(batch=4, labelled_batch=0, separate=False, seed=0):
    """x holds (run, row), so a row picked from the wrong place shows; a labelled row's class is row % 2."""
    torch.manual_seed(seed)
    run, row = torch.meshgrid(torch.arange(RUNS), torch.arange(N), indexing="ij")
    labels = torch.full((RUNS, N), -1)
    for r, rows in enumerate(LABELLED):
        labels[r, rows] = torch.tensor(rows) % 2
    return Batches(torch.stack([run, row], -1).float(), labels, batch, labelled_batch, separate)


def draw(data):
    """A step's batch, as the loop draws it: the host shuffles where it must, the device does the rest."""
    data.refill()
    return data.next()


def take(data, steps):
    return [draw(data) for _ in range(steps)]


def rows_of(steps):
    """The rows of all steps, (runs, steps * n)."""
    return torch.cat([batch.rows for batch in steps], -1)


# --- a stream --------------------------------------------------------------------------------------------------------


@given(st.integers(1, N), st.integers(0, 1000))
def test_between_two_shuffles_no_row_comes_twice_and_the_partial_last_batch_is_dropped(n, seed):
    """Were the rest carried over into the next shuffle, some N // n batches in a row would hold a row twice."""
    torch.manual_seed(seed)
    everything = torch.arange(N).expand(RUNS, -1)
    stream = Shuffled(everything, n)
    for _ in range(3):
        between = torch.cat([stream.draw() for _ in range(N // n)], -1)
        assert between.shape == (RUNS, N // n * n)
        for rows in between:
            assert len(set(rows.tolist())) == len(rows)
            assert set(rows.tolist()) <= set(range(N))


def test_a_stream_has_the_rows_it_was_given_and_no_others():
    rows = torch.tensor([[3, 8, 20], [0, 1, 2]])
    drawn = torch.cat([Shuffled(rows, 2).draw() for _ in range(50)], -1)
    assert [set(run.tolist()) for run in drawn] == [{3, 8, 20}, {0, 1, 2}]


@pytest.mark.parametrize(("n", "least", "most"), [(4, 1, 1), (6, 1, 2), (8, 2, 2), (11, 2, 3), (12, 3, 3), (1, 0, 1)])
def test_fewer_rows_than_a_batch_wants_are_repeated_evenly(n, least, most):
    torch.manual_seed(0)
    stream = Shuffled(torch.tensor(LABELLED), n)
    for _ in range(6):
        drawn = stream.draw()
        assert drawn.shape == (RUNS, n)
        for run, rows in enumerate(drawn.tolist()):
            counts = [rows.count(row) for row in LABELLED[run]]
            assert sum(counts) == n
            assert min(counts) >= least
            assert max(counts) <= most


def test_every_row_comes_first_equally_often():
    torch.manual_seed(0)
    everything = torch.arange(5).expand(2, -1)
    firsts = torch.stack([Shuffled(everything, 2).draw()[:, 0] for _ in range(2000)], 1)
    for run in firsts:  # 400 each expected, deviation 18
        assert run.bincount(minlength=5).sub(400).abs().max() < 90


def test_what_a_batch_is_read_from_stays_where_it_is():
    """A recorded step reads the same memory at every replay, so shuffles and places are written into it."""
    torch.manual_seed(0)
    stream = Shuffled(torch.arange(N).expand(RUNS, -1), 5)
    where = stream.order.data_ptr(), stream.place.data_ptr()
    orders = set()
    for _ in range(3 * N // 5):
        stream.draw()
        orders.add(tuple(stream.order.flatten().tolist()))
        assert (stream.order.data_ptr(), stream.place.data_ptr()) == where
    assert len(orders) > 2


def test_the_host_shuffles_only_where_the_next_rows_would_not_be_whole():
    torch.manual_seed(0)
    stream = Shuffled(torch.arange(10)[None], 4)
    shuffled = []
    for _ in range(6):
        before = torch.get_rng_state()
        stream.refill()
        shuffled.append(not torch.equal(before, torch.get_rng_state()))
        before = torch.get_rng_state()
        stream.next()
        assert torch.equal(before, torch.get_rng_state())  # the device's part takes no random numbers
    assert shuffled == [True, False] * 3


# --- batches of all points -------------------------------------------------------------------------------------------


def test_where_the_batches_fit_every_row_is_visited():
    step = draw(make_batches(batch=N))
    assert step.rows.sort(-1).values.tolist() == [list(range(N))] * RUNS


def test_which_rows_the_partial_batch_loses_changes_from_shuffle_to_shuffle():
    data = make_batches(batch=20)
    left_out = {frozenset(range(N)) - frozenset(draw(data).rows[0].tolist()) for _ in range(10)}
    assert len(left_out) > 5


def test_each_run_has_its_own_order_and_each_shuffle_a_new_one():
    data = make_batches()
    first, second = rows_of(take(data, N // 4)), rows_of(take(data, N // 4))
    orders = [tuple(rows.tolist()) for rows in (*first, *second)]
    assert len(set(orders)) == 2 * RUNS


def test_without_a_labelled_part_there_is_none_and_every_row_counts_everywhere():
    for step in take(make_batches(), 7):
        assert step.labelled is step.unlabelled is None


def test_images_keep_their_shape():
    x = torch.arange(2 * 6).reshape(2, 6, 1, 1, 1).expand(2, 6, 3, 4, 5).float()
    step = draw(Batches(x, torch.zeros(2, 6, dtype=torch.long), batch=6))
    assert step.x.shape == (2, 6, 3, 4, 5)
    assert torch.equal(step.x[..., 0, 0, 0].long(), step.rows + torch.tensor([[0], [6]]))


# --- a labelled part beside them -------------------------------------------------------------------------------------

KINDS = {"all": (4, 0, False), "joined": (5, 3, False), "apart": (5, 3, True), "labelled alone": (0, 3, False)}


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_those_of_the_runs_own_rows(kind):
    for step in take(make_batches(*KINDS[kind]), 12):
        for part in [step] + [step.labelled] * (step.labelled is not None):
            for run in range(RUNS):
                assert (part.x[run, :, 0] == run).all()
                assert torch.equal(part.x[run, :, 1].long(), part.rows[run])


def test_apart_the_two_parts_are_batches_of_their_own_with_all_their_labels():
    data = make_batches(*KINDS["apart"])
    known = 0
    for step in take(data, 12):
        assert step.rows.shape == (RUNS, 5)
        assert step.labelled.rows.shape == (RUNS, 3)
        assert step.unlabelled is step.labelled.unlabelled is None
        for part in (step, step.labelled):
            assert torch.equal(part.labels, data.labels.gather(1, part.rows))
        assert (step.labelled.labels >= 0).all()
        known += int((step.labels >= 0).sum())
    assert known > 0  # the batch of all points shows the labels it happens to have


def test_joined_the_labelled_rows_come_first_and_the_others_count_as_unlabelled():
    data = make_batches(*KINDS["joined"])
    hidden = 0
    for step in take(data, 12):
        assert step.labelled is None
        assert step.rows.shape == step.labels.shape == (RUNS, 8)
        for run in range(RUNS):
            assert set(step.rows[run, :3].tolist()) < set(LABELLED[run])
        assert torch.equal(step.labels[:, :3], data.labels.gather(1, step.rows[:, :3]))
        assert (step.labels[:, 3:] == -1).all()
        assert step.unlabelled.tolist() == [False] * 3 + [True] * 5
        hidden += int((data.labels.gather(1, step.rows[:, 3:]) >= 0).sum())
    assert hidden > 0  # labelled points among the others were there to be hidden


def test_joined_the_others_are_drawn_from_all_points_the_labelled_ones_too():
    rest = torch.cat([step.rows[:, 3:] for step in take(make_batches(*KINDS["joined"]), 60)], -1)
    assert [set(rows.tolist()) for rows in rest] == [set(range(N))] * RUNS


def test_labelled_rows_alone_make_a_plain_batch():
    data = make_batches(*KINDS["labelled alone"])
    for step in take(data, 12):
        assert step.rows.shape == (RUNS, 3)
        assert step.labelled is step.unlabelled is None
        assert (step.labels >= 0).all()
        assert torch.equal(step.labels, data.labels.gather(1, step.rows))


def test_the_labelled_part_has_all_labelled_rows_in_time_and_in_an_order_of_each_runs_own():
    data = make_batches(batch=2, labelled_batch=2, separate=True)
    drawn = torch.cat([step.labelled.rows for step in take(data, 20)], -1)
    places = []
    for run, rows in enumerate(drawn.tolist()):
        assert set(rows) == set(LABELLED[run])
        places.append(tuple(LABELLED[run].index(row) for row in rows))
    assert len(set(places)) == RUNS


# --- stopping and going on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taken", [0, 1, 4, 5, 9])
def test_batches_put_back_to_where_others_were_draw_what_those_draw(kind, taken):
    """Whatever came before; where a stream shuffles again, the random numbers must be the same too."""
    data = make_batches(*KINDS[kind])
    take(data, taken)
    state = {name: tensor.clone() for name, tensor in data.state().items()}
    torch.manual_seed(77)
    expected = take(data, 8)
    other = make_batches(*KINDS[kind], seed=5)
    take(other, 3)
    other.load_state(state)
    torch.manual_seed(77)
    for ours, theirs in zip(take(other, 8), expected, strict=True):
        assert torch.equal(ours.rows, theirs.rows)
        assert (ours.labelled is None) == (theirs.labelled is None)
        if ours.labelled is not None:
            assert torch.equal(ours.labelled.rows, theirs.labelled.rows)


def test_the_rest_of_a_shuffle_needs_no_random_numbers():
    data = make_batches(batch=4)
    first = rows_of(take(data, 2))
    other = make_batches(batch=4, seed=9)
    other.load_state(data.state())
    torch.manual_seed(123)
    rest = rows_of(take(other, 3))
    assert len(set(torch.cat([first[0], rest[0]]).tolist())) == 20
