"""Batches: every epoch a shuffle of its own for each run, whole batches only, each row with its own input and label."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sntg.training.batches import Batches

RUNS, N = 3, 23
LABELLED = [[0, 5, 7, 22], [1, 2, 3, 4], [6, 10, 11, 12]]  # other rows in each run


def make_batches(batch=4, labelled_batch=0, seed=0):
    """x holds (run, row), so a row picked from the wrong place shows; a labelled row's class is row % 2."""
    torch.manual_seed(seed)
    run, row = torch.meshgrid(torch.arange(RUNS), torch.arange(N), indexing="ij")
    labels = torch.full((RUNS, N), -1)
    for r, rows in enumerate(LABELLED):
        labels[r, rows] = torch.tensor(rows) % 2
    return Batches(torch.stack([run, row], -1).float(), labels, batch, labelled_batch)


def rows_of(epoch):
    """The rows of all steps, (runs, steps * n)."""
    return torch.cat([batch.rows for batch in epoch], -1)


@given(st.integers(2, N), st.integers(0, 1000))
def test_an_epoch_visits_no_row_twice_and_drops_the_partial_last_batch(batch, seed):
    data = make_batches(batch, seed=seed)
    steps = list(data.epoch())
    assert len(steps) == data.steps == N // batch
    assert all(step.rows.shape == (RUNS, batch) for step in steps)
    for rows in rows_of(steps):
        assert len(set(rows.tolist())) == len(rows)
        assert set(rows.tolist()) <= set(range(N))


def test_where_the_batches_fit_every_row_is_visited():
    (step,) = make_batches(batch=N).epoch()
    assert step.rows.sort(-1).values.tolist() == [list(range(N))] * RUNS


def test_which_rows_the_partial_batch_loses_changes_from_epoch_to_epoch():
    data = make_batches(batch=20)
    left_out = {frozenset(range(N)) - frozenset(rows_of(data.epoch())[0].tolist()) for _ in range(10)}
    assert len(left_out) > 5


def test_each_run_has_its_own_order_and_each_epoch_a_new_one():
    data = make_batches()
    first, second = rows_of(data.epoch()), rows_of(data.epoch())
    orders = [tuple(rows.tolist()) for rows in (*first, *second)]
    assert len(set(orders)) == 2 * RUNS


def test_every_row_comes_first_equally_often():
    torch.manual_seed(0)
    data = Batches(torch.zeros(2, 5, 1), torch.zeros(2, 5, dtype=torch.long), batch=2)
    firsts = torch.stack([next(data.epoch()).rows[:, 0] for _ in range(2000)], 1)
    for run in firsts:  # 400 each expected, deviation 18
        assert run.bincount(minlength=5).sub(400).abs().max() < 90


@pytest.mark.parametrize("labelled_batch", [0, 6])
def test_inputs_and_labels_are_those_of_the_runs_own_rows(labelled_batch):
    data = make_batches(labelled_batch=labelled_batch)
    for step in data.epoch():
        for part in [step] + [step.labelled] * bool(labelled_batch):
            for run in range(RUNS):
                assert (part.x[run, :, 0] == run).all()
                assert torch.equal(part.x[run, :, 1].long(), part.rows[run])
                assert torch.equal(part.labels[run], data.labels[run][part.rows[run]])


def test_the_labelled_part_has_labelled_rows_only_and_all_of_them_in_time():
    data = make_batches(batch=2, labelled_batch=6)  # more than the 4 labels there are
    drawn = [step.labelled.rows for _ in range(3) for step in data.epoch()]
    assert all(rows.shape == (RUNS, 6) for rows in drawn)
    for run, rows in enumerate(torch.cat(drawn, -1)):
        assert set(rows.tolist()) == set(LABELLED[run])


def test_the_labelled_part_is_drawn_anew_for_each_step_and_run():
    data = make_batches(labelled_batch=12)
    positions = [torch.searchsorted(data.labelled_rows, step.labelled.rows) for step in data.epoch()]
    assert len({tuple(row.tolist()) for step in positions for row in step}) == RUNS * len(positions)


def test_without_a_labelled_part_there_is_none():
    assert all(step.labelled is None for step in make_batches().epoch())


def test_images_keep_their_shape():
    x = torch.arange(2 * 6).reshape(2, 6, 1, 1, 1).expand(2, 6, 3, 4, 5).float()
    (step,) = Batches(x, torch.zeros(2, 6, dtype=torch.long), batch=6).epoch()
    assert step.x.shape == (2, 6, 3, 4, 5)
    assert torch.equal(step.x[..., 0, 0, 0].long(), step.rows + torch.tensor([[0], [6]]))
