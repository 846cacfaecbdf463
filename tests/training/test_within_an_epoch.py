"""No step of an epoch asks what a tensor holds: on a GPU the host would wait for the answer, step after step.

A CPU can tell, since reading a value is an operation there too; and what copies to the host is called by its name.
Where there is a GPU, PyTorch itself refuses most of what the host would have to wait for.
"""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from engine_runs import LABELS, fixed_graph, make_config, make_stack, random_inputs
from torch.utils._python_dispatch import TorchDispatchMode

from sntg.data import CATALOGUE
from sntg.methods import all_names
from sntg.training import resolve

ASKING = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
ASKING |= {"allclose", "bincount", "repeat_interleave"}


class Listening(TorchDispatchMode):
    """Refuses operations whose result, or whose result's shape, the host must know."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_", "_unsafe_index") else []
        asks = name in ASKING or any(i is not None and i.dtype == torch.bool for i in indices)
        assert not asks, f"a step asks the device: {func}"
        return func(*args, **(kwargs or {}))


@contextmanager
def no_questions():
    def refuse(*args, **options):
        raise AssertionError("a step asks the device for an array")

    def to(tensor, *args, **options):
        places = [a for a in (*args, *options.values()) if isinstance(a, str | torch.device)]
        assert not places, "a step asks the device for a copy"  # or gives it one, and may wait for that
        return moved(tensor, *args, **options)

    moved = torch.Tensor.to
    with Listening(), pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "numpy", "__array__", "__dlpack__", "cpu"):  # on a CPU these are no operations
            patch.setattr(torch.Tensor, name, refuse)
        patch.setattr(torch.Tensor, "to", to)
        yield


QUESTIONS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "if": lambda x: bool((x > 0).any()),
    "list": lambda x: x.tolist(),
    "array": lambda x: x.numpy(),
    "picked by mask": lambda x: x[x > 0],
    "put by mask": lambda x: x.index_put((x > 0,), torch.ones(2)),
    "nonzero": lambda x: x.nonzero(),
    "equal": lambda x: torch.equal(x, x + 1),
    "unique": lambda x: x.unique(),
    "where": lambda x: torch.where(x > 0),
    "close": lambda x: torch.allclose(x, x + 1),
    "counts": lambda x: (x > 0).long().bincount(),
    "repeated": lambda x: x.repeat_interleave((x > 0).long()),
    "copy": lambda x: x.cpu(),
    "copy by name": lambda x: x.to("cpu"),
    "copy by device": lambda x: x.to(device=torch.device("cpu")),
    "exchange": lambda x: np.from_dlpack(x),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_noticed(question):
    with no_questions(), pytest.raises(AssertionError, match="asks the device"):
        QUESTIONS[question](torch.tensor([1.0, -1.0, 2.0]))


def watch_two_epochs(config, inputs=None):
    """All steps but the last of each epoch, which reads the epoch's sums; the second epoch has rows shuffled anew."""
    runs = make_stack(config, inputs=inputs)
    for _ in range(2):
        with no_questions():
            assert all(runs.advance() is None for _ in range(runs.epoch_steps - 1))
        with pytest.raises(AssertionError, match="asks the device"), no_questions():
            runs.log.summaries()
        assert runs.advance()


@pytest.mark.parametrize("method", all_names())
def test_the_steps_of_an_epoch_ask_nothing(method):
    watch_two_epochs(make_config(method, pairs="random", n_pairs=7, noise=0.1))


def of_dataset(dataset, method, **settings):
    """The dataset's recipe in small: two batches are a shuffle of its points. And such points."""
    small = {"batch": 12, "epochs": 3, "epoch_steps": 2, "eval_every": 3, "bn_batches": 0}
    small |= {"model": "small"} if CATALOGUE[dataset].images else {}
    small |= {"labelled_batch": 4} if method.startswith("vat") else {}
    config = resolve(dataset, LABELS[dataset], method, **(small | settings))
    return config, [random_inputs(dataset, points=24, labelled=12)]


@pytest.mark.parametrize("method", ["pi+ent+sntg", "tempens+sntg", "mt+sntg", "vat+ent+sntg"])
@pytest.mark.parametrize("dataset", LABELS)
def test_nor_do_those_of_any_dataset_by_its_recipe(dataset, method):
    watch_two_epochs(*of_dataset(dataset, method))


@pytest.mark.parametrize("graph", ["soft", "knn"])
def test_nor_do_other_graphs(graph):
    watch_two_epochs(make_config("pi+sntg", graph=graph, pairs="all"))


def test_nor_does_a_fixed_graph(tmp_path):
    settings = fixed_graph(tmp_path / "earlier", *of_dataset("cifar10", "pi"))
    watch_two_epochs(*of_dataset("cifar10", "pi+sntg", **settings))


def test_every_dataset_is_among_them():
    assert LABELS.keys() == CATALOGUE.keys()


# --- on a GPU --------------------------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@contextmanager
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("question", [torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.nonzero])
def test_waiting_is_noticed(question):
    total = torch.ones(1, device="cuda")
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        question(total)


def assert_nobody_waits(method, engine, **settings):
    """The first step of an epoch brings its schedule over, the last reads its sums; rows are shuffled in between."""
    config, inputs = of_dataset("cifar10", method, device="cuda", engine=engine, epochs=2, epoch_steps=9, **settings)
    runs = make_stack(config, inputs=inputs)
    assert runs.configs[0].engine == engine
    for _ in range(config.epochs):
        runs.advance()
        with no_waiting():
            assert all(runs.advance() is None for _ in range(config.epoch_steps - 2))
        assert runs.advance()


@needs_gpu
@pytest.mark.parametrize("method", all_names())
def test_nobody_waits_for_a_gpu_within_an_epoch(method):
    assert_nobody_waits(method, "eager")


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("method", ["pi+ent+sntg", "tempens+sntg", "mt+sntg", "vat+ent+sntg"])
def test_nor_where_steps_are_recorded(method):
    assert_nobody_waits(method, "graph")


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("graph", ["soft", "knn", "fixed"])
def test_nor_with_other_graphs(graph, tmp_path):
    fixed = graph == "fixed"
    settings = fixed_graph(tmp_path / "earlier", *of_dataset("cifar10", "pi")) if fixed else {"graph": graph}
    assert_nobody_waits("pi+sntg", "graph", **settings)
