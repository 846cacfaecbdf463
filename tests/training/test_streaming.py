"""Points that stay with the host: every step finds its own rows ready, whatever was fetched ahead."""

import torch

from sntg.training.batches import Batches
from sntg.training.streaming import Streamed

RUNS, N, BATCH = 2, 13, 4
CPU = torch.device("cpu")


def make_points():
    """A point holds its run and row, so one from the wrong place shows."""
    run, row = torch.meshgrid(torch.arange(RUNS), torch.arange(N), indexing="ij")
    return torch.stack([run, row], -1).float()


def expected(x, rows):
    return torch.stack([points[numbers] for points, numbers in zip(x, rows, strict=True)])


def draw_rows():
    return torch.stack([torch.randperm(N)[:BATCH] for _ in range(RUNS)])


def test_rows_announced_a_step_ahead_are_ready_in_their_turn():
    torch.manual_seed(0)
    x = make_points()
    points, steps = Streamed(x, BATCH, CPU), [draw_rows() for _ in range(20)]
    for rows, following in zip(steps, [*steps[1:], None], strict=True):
        points.load(rows, following)
        assert torch.equal(points.ready, expected(x, rows))


def test_other_rows_than_announced_are_fetched_then():
    """After a resume the next rows are not those that were fetched ahead."""
    torch.manual_seed(0)
    x = make_points()
    points = Streamed(x, BATCH, CPU)
    for _ in range(10):
        rows = draw_rows()
        points.load(rows, following=draw_rows())
        assert torch.equal(points.ready, expected(x, rows))


def test_what_a_step_reads_stays_in_place_and_the_next_fetch_leaves_it_alone():
    """A recorded step reads one address; the batch after must not arrive there before its turn."""
    torch.manual_seed(0)
    x = make_points()
    points, first, second = Streamed(x, BATCH, CPU), draw_rows(), draw_rows()
    points.load(first, second)
    place = points.ready.data_ptr()
    points.coming[1].result()
    assert torch.equal(points.ready, expected(x, first))
    points.load(second, None)
    assert points.ready.data_ptr() == place
    assert torch.equal(points.ready, expected(x, second))


def test_streamed_batches_are_those_of_resident_points_over_shuffles_and_resumes():
    labels = torch.zeros(RUNS, N, dtype=torch.long)
    resident, streamed = (Batches(make_points(), labels, BATCH, labelled_batch=3, separate=True) for _ in range(2))
    streamed.streamed = {name: Streamed(streamed.x, s.n, CPU) for name, s in streamed.streams.items()}
    for seed in range(3):
        drawn = []
        for data in (resident, streamed):
            torch.manual_seed(seed)
            before = {name: tensor.clone() for name, tensor in data.state().items()}
            for _ in range(5):
                data.refill()
                data.next()
            data.load_state(before)
            drawn.append([])
            for _ in range(11):
                data.refill()
                batch = data.next()  # the next one may take its place in memory
                drawn[-1] += [batch.rows, batch.x.clone(), batch.labelled.rows, batch.labelled.x.clone()]
        for one, other in zip(*drawn, strict=True):
            assert torch.equal(one, other)
