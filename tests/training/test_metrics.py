"""The epoch's figures against brute-force NumPy over every step, row and pair."""

import math

import numpy as np
import pytest
import torch

from sntg.graph import HardGraph, Pairs, SoftGraph, sample_pairs
from sntg.losses import consistency_mse
from sntg.methods import METHODS, GraphTerm, Objective, Seen, Setup
from sntg.models import MLP, stack
from sntg.training.batches import Batches
from sntg.training.metrics import EpochLog

RUNS, N, CLASSES, BATCH = 2, 100, 3, 9  # an odd batch: half pairs leave its last row out
OPTIONS = {"alpha": 0.6, "ema": 0.9, "epsilon": 0.3, "power_iterations": 1, "xi": 0.0}


class Epochs:
    """Epochs of a small stack without weight updates, keeping what each step was given and gave."""

    def __init__(self, method="pi", graph=None, pairs="half", merge=True, batch=BATCH):
        torch.manual_seed(1)
        self.batch = batch
        self.truth = torch.randint(CLASSES, (RUNS, N))
        labels = torch.where(torch.rand(RUNS, N) < 0.2, self.truth, -1)
        self.data = Batches(torch.randn(RUNS, N, 2), labels, batch)
        model = stack([MLP(2, CLASSES, 0.3, hidden=6) for _ in range(RUNS)])
        with torch.no_grad():
            model.output.g.mul_(10.0)  # opinions that differ from row to row
        setup = Setup(model, lambda x: x, consistency_mse, N, CLASSES, OPTIONS)
        self.term = graph and GraphTerm(graph, pairs, n_pairs=13 if pairs == "random" else None, merge_labels=merge)
        self.objective = Objective(METHODS[method](setup), graph_term=self.term)
        self.taught = []
        self._spy_on_the_teacher()

    def _spy_on_the_teacher(self):
        """Keeps the probabilities and the known rows of every step, before anything reads them."""
        base, passes = self.objective.base, self.objective.base.passes

        def keep(batch):
            result = passes(batch)
            everyone = torch.ones(batch.rows.shape, dtype=torch.bool)
            known = everyone if result.known is None else result.known
            self.taught.append((result.target.double().numpy(), known.numpy()))
            return result

        base.passes = keep

    def draw(self):
        self.data.refill()
        return self.data.next()

    def run(self):
        """One epoch: the log, and for each step (rows, probabilities, known, labels, pairs)."""
        log, steps = EpochLog(self.truth, self.objective.terms), []
        self.taught.clear()
        for _ in range(N // self.batch):
            batch = self.draw()
            terms, seen = self.objective(batch)
            add(log, batch.rows, terms, seen)
            p, known = self.taught[-1]
            pairs = None if seen.pairs is None else ends(seen.pairs, batch.rows.shape[1])
            steps.append((batch.rows.numpy(), p, known, batch.labels.numpy(), pairs, terms))
        self.objective.base.after_epoch()
        return log, steps


def add(log, rows, terms, seen):
    """Adds a step; the host counts it, as the loop does."""
    log.add(rows, terms, seen)
    log.steps += 1


def ends(pairs, n):
    return tuple(np.arange(n)[end if isinstance(end, slice) else end.numpy()] for end in pairs)


def weight(graph, p_i, p_j):
    """W of a pair from the two ends' probabilities; a known label has come in as a certain probability."""
    if isinstance(graph, HardGraph):
        return float(p_i.argmax() == p_j.argmax())
    log_i, log_j = (np.log(np.maximum(p, np.finfo(np.float32).tiny)) for p in (p_i, p_j))
    divergence = (p_i * (log_i - log_j)).sum() + (p_j * (log_j - log_i)).sum()
    return math.exp(-divergence / graph.temperature)


def brute_force(epochs, steps):
    """(teacher_error, precision, recall) of each run; pairs with a row nobody can say anything of are left out."""
    figures = []
    for run in range(RUNS):
        truth = epochs.truth[run].numpy()
        wrong = asked = hits = weights = same = 0.0
        for rows, p, known, labels, pairs, _ in steps:
            for row, q, k in zip(rows[run], p[run], known[run], strict=True):
                asked += k
                wrong += k and q.argmax() != truth[row]
            if pairs is None:
                continue
            opinion, sure = p[run].copy(), known[run].copy()
            if epochs.term.merge_labels:
                labelled = labels[run] >= 0
                opinion[labelled] = np.eye(CLASSES)[labels[run][labelled]]
                sure |= labelled
            for i, j in zip(*pairs, strict=True):
                if not (sure[i] and sure[j]):
                    continue
                W = weight(epochs.term.graph, opinion[i], opinion[j])
                alike = truth[rows[run][i]] == truth[rows[run][j]]
                hits += W * alike
                weights += W
                same += alike
        figures.append(tuple(a / b if b else None for a, b in [(100 * wrong, asked), (hits, weights), (hits, same)]))
    return figures


def logged(log):
    return [(s["teacher_error"], s["graph_precision"], s["graph_recall"]) for s in log.summaries()]


def assert_figures(log, expected):
    for ours, theirs in zip(logged(log), expected, strict=True):
        for figure, reference in zip(ours, theirs, strict=True):
            assert figure is reference is None or figure == pytest.approx(reference, rel=1e-5)


@pytest.mark.parametrize("merge", [True, False], ids=["merge", "teacher"])
@pytest.mark.parametrize("pairs", ["half", "random", "all"])
@pytest.mark.parametrize("graph", [HardGraph(), SoftGraph(5.0)], ids=["hard", "soft"])
def test_the_graphs_quality_is_that_of_brute_force(graph, pairs, merge):
    epochs = Epochs("pi", graph, pairs, merge)
    log, steps = epochs.run()
    assert len(steps) == N // BATCH
    expected = brute_force(epochs, steps)
    assert all(0.01 < x < 0.99 for _, *quality in expected for x in quality)  # nothing trivial is compared
    assert expected[0] != expected[1]
    assert_figures(log, expected)


@pytest.mark.parametrize("merge", [True, False], ids=["merge", "teacher"])
def test_rows_the_teacher_has_no_opinion_on_are_left_out(merge):
    """Temporal ensembling's second epoch: of 100 rows the first one, of one batch, has visited 60."""
    epochs = Epochs("tempens", HardGraph(), "half", merge, batch=60)
    epochs.run()
    log, steps = epochs.run()
    assert 0 < steps[0][2].sum() < steps[0][2].size
    assert_figures(log, brute_force(epochs, steps))


def test_a_graph_nobody_has_an_opinion_on_has_neither_precision_nor_recall():
    """Temporal ensembling's first epoch, labels not counted: no pair can be judged, and none is held against it."""
    log, _ = Epochs("tempens", HardGraph(), merge=False).run()
    assert logged(log) == [(None, None, None)] * RUNS


def test_without_a_graph_the_teacher_is_still_measured():
    epochs = Epochs("pi")
    log, steps = epochs.run()
    expected = brute_force(epochs, steps)
    assert all(precision is recall is None for _, precision, recall in expected)
    assert_figures(log, expected)


def make_log(truth=((0, 1, 2, 0),), names=("supervised",)):
    return EpochLog(torch.tensor(truth), names)


def test_without_a_teacher_and_a_graph_there_are_only_losses():
    log = make_log()
    add(log, torch.tensor([[0, 1]]), {"supervised": torch.tensor([0.5])}, Seen(None))
    expected = {"teacher_error": None, "graph_precision": None, "graph_recall": None}
    assert log.summaries() == [{"loss": {"supervised": 0.5}} | expected]


def test_a_graph_without_a_teacher_is_measured():
    """Rows 3, 0, 2 are of classes 0, 0, 2: one true pair of two, found beside a wrong one."""
    log = make_log(names=["sntg"])
    seen = Seen(None, Pairs(torch.tensor([0, 1]), torch.tensor([1, 2])), torch.tensor([[1.0, 1.0]]))
    add(log, torch.tensor([[3, 0, 2]]), {"sntg": torch.tensor([1.0])}, seen)
    (summary,) = log.summaries()
    assert (summary["teacher_error"], summary["graph_precision"], summary["graph_recall"]) == (None, 0.5, 1.0)


def test_a_graph_without_edges_has_no_precision_and_one_without_true_pairs_no_recall():
    """The first run's graph is empty, the second's has an edge but no two points of one class."""
    log = make_log(truth=((0, 0), (0, 1)), names=["sntg"])
    seen = Seen(None, sample_pairs(2), torch.tensor([[0.0], [1.0]]))
    add(log, torch.tensor([[0, 1], [0, 1]]), {"sntg": torch.ones(2)}, seen)
    first, second = log.summaries()
    assert (first["graph_precision"], first["graph_recall"]) == (None, 0.0)
    assert (second["graph_precision"], second["graph_recall"]) == (0.0, None)


def test_the_losses_are_each_runs_means_over_the_steps():
    epochs = Epochs("pi", HardGraph())
    log, steps = epochs.run()
    for run, summary in enumerate(log.summaries()):
        assert list(summary["loss"]) == ["supervised", "consistency", "sntg"]
        for name, value in summary["loss"].items():
            assert value == pytest.approx(np.mean([step[-1][name][run].item() for step in steps]), rel=1e-6)


def test_the_log_holds_on_to_no_gradients():
    log, _ = Epochs("pi", HardGraph()).run()
    assert not any(tensor.requires_grad for tensor in log.state().values())


def test_a_long_epoch_loses_no_small_losses():
    """In float32 a sum of 2^24 would swallow every 1 added to it."""
    log = make_log()
    values = [2.0**25] + [1.0] * 64
    for value in values:
        add(log, torch.tensor([[0, 1]]), {"supervised": torch.tensor([value])}, Seen(None))
    assert log.means() == [{"supervised": sum(values) / len(values)}]


def test_the_means_so_far_are_there_before_the_epoch_ends():
    log = make_log()
    assert log.means() == [{"supervised": 0.0}]
    for value, mean in ((1.0, 1.0), (4.0, 2.5)):
        add(log, torch.tensor([[0, 1]]), {"supervised": torch.tensor([value])}, Seen(None))
        assert log.means() == [{"supervised": mean}]


def test_the_terms_are_logged_in_the_order_of_their_names_however_a_step_gives_them():
    log = make_log(names=["supervised", "sntg"])
    add(log, torch.tensor([[0, 1]]), {"sntg": torch.tensor([2.0]), "supervised": torch.tensor([1.0])}, Seen(None))
    assert list(log.means()[0].items()) == [("supervised", 1.0), ("sntg", 2.0)]


def test_a_new_epoch_begins_at_nothing():
    """Whatever the last one had, losses that were no numbers included."""
    epochs = Epochs("pi", HardGraph())
    log, _ = epochs.run()
    add(log, epochs.draw().rows, {name: torch.full((RUNS,), math.nan) for name in log.names}, Seen(None))
    log.begin(12)
    fresh = EpochLog(epochs.truth, epochs.objective.terms)
    fresh.begin(12)
    assert all(torch.equal(tensor, fresh.state()[name]) for name, tensor in log.state().items())
    assert log.diverged() == {}


def test_the_sums_stay_where_they_are_in_memory():
    """A recorded step adds to the same memory at every replay: through steps, new epochs and loaded states."""
    epochs = Epochs("pi", HardGraph())
    log, _ = epochs.run()
    where = {name: tensor.data_ptr() for name, tensor in sums(log).items()}
    state = {name: tensor.clone() for name, tensor in log.state().items()}
    log.begin(12)
    batch = epochs.draw()
    add(log, batch.rows, *epochs.objective(batch))
    log.load_state(state)
    assert {name: tensor.data_ptr() for name, tensor in sums(log).items()} == where


def sums(log):
    return {name: getattr(log, name) for name in ("counts", "losses", "fine")}


# --- losses that are no numbers --------------------------------------------------------------------------------------


def log_of(steps, first_step=0):
    """A log of steps, each {term: (value of run 0, value of run 1)}."""
    log = EpochLog(torch.zeros(2, 4, dtype=torch.long), ["supervised", "consistency"])
    log.begin(first_step)
    for step in steps:
        add_losses(log, step)
    return log


def add_losses(log, step):
    terms = {name: torch.tensor(values) for name, values in step.items()}
    add(log, torch.tensor([[0, 1], [0, 1]]), terms, Seen(None))


FINE = {"supervised": (0.1, 0.2), "consistency": (0.0, 1e30)}


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"supervised": (0.1, 0.2), "consistency": (0.0, math.nan)}, {1: "consistency loss became nan"}),
        ({"supervised": (math.inf, 0.2), "consistency": (0.0, 0.0)}, {0: "supervised loss became inf"}),
        ({"supervised": (0.1, -math.inf), "consistency": (0.0, math.nan)}, {1: "supervised loss became -inf"}),
        (
            {"supervised": (0.1, math.nan), "consistency": (math.inf, 0.0)},
            {0: "consistency loss became inf", 1: "supervised loss became nan"},
        ),
    ],
)
def test_a_loss_that_is_no_number_is_named_with_its_run_and_step(broken, named):
    worse = {name: tuple(math.nan if run in named else 0.1 for run in range(2)) for name in broken}
    log = log_of([FINE, FINE, broken, worse], first_step=40)
    assert log.diverged() == {run: f"the {words} at step 43" for run, words in named.items()}


def test_the_first_step_is_named_whichever_term_breaks_later():
    """The second term breaks at the second step, the first one at the third."""
    steps = [FINE, FINE | {"consistency": (math.inf, 0.0)}, {"supervised": (math.nan, 0.1), "consistency": (0.0, 0.0)}]
    assert log_of(steps).diverged() == {0: "the consistency loss became inf at step 2"}


def test_a_loss_that_comes_back_is_still_reported():
    log = log_of([{"supervised": (math.nan, 0.1), "consistency": (0.0, 0.0)}, FINE, FINE])
    assert log.diverged() == {0: "the supervised loss became nan at step 1"}


def test_large_but_finite_losses_pass():
    assert log_of([FINE, FINE]).diverged() == {}


# --- stopping and going on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 5, N // BATCH - 1])
def test_a_log_put_back_in_mid_epoch_ends_with_the_same_figures(at):
    epochs = Epochs("pi", HardGraph())
    log, other = (EpochLog(epochs.truth, epochs.objective.terms) for _ in range(2))
    log.begin(7)
    for step in range(N // BATCH):
        if step == at:
            other.load_state({name: tensor.clone() for name, tensor in log.state().items()})
        batch = epochs.draw()
        terms, seen = epochs.objective(batch)
        for one in [log] + [other] * (step >= at):
            add(one, batch.rows, terms, seen)
    assert other.summaries() == log.summaries()
    assert other.first_step == 7


@pytest.mark.parametrize("broken_first", [True, False])
def test_a_log_put_back_still_knows_the_step_a_loss_broke_in(broken_first):
    broken = {"supervised": (0.1, math.inf), "consistency": (0.0, 0.0)}
    steps = [broken, FINE] if broken_first else [FINE, broken]
    before = log_of(steps[:1], first_step=40)
    after = log_of([])
    after.load_state(before.state())
    add_losses(after, steps[1])
    assert after.diverged() == {1: f"the supervised loss became inf at step {41 if broken_first else 42}"}
