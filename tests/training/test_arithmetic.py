"""Switches of PyTorch that a run sets: inside they are as it says, in whatever state they were; outside as before."""

import warnings

import pytest
import torch

from sntg.errors import UsageError
from sntg.training import resolve, run, run_series, train
from sntg.training.arithmetic import full_float32, repeatable, sums_in_order

b = torch.backends
# What a caller may have done. In some of these the newer switches contradict the older ones, and PyTorch refuses to say
# what the older ones are.
CALLERS = {
    "nothing": lambda: None,
    "products in TF32": lambda: torch.set_float32_matmul_precision("high"),
    "products in bfloat16": lambda: torch.set_float32_matmul_precision("medium"),
    "convolutions in float32": lambda: setattr(b.cudnn, "allow_tf32", False),
    "all in TF32": lambda: setattr(b, "fp32_precision", "tf32"),
    "all in float32": lambda: setattr(b, "fp32_precision", "ieee"),
    "cuDNN in TF32": lambda: setattr(b.cudnn, "fp32_precision", "tf32"),
    "cuDNN in float32": lambda: setattr(b.cudnn, "fp32_precision", "ieee"),
    "convolutions alone in float32": lambda: setattr(b.cudnn.conv, "fp32_precision", "ieee"),
    "a GPU's products in TF32": lambda: setattr(b.cuda.matmul, "fp32_precision", "tf32"),
    "a CPU's convolutions in bfloat16": lambda: setattr(b.mkldnn.conv, "fp32_precision", "bf16"),
}


def fail():
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("around", "words"),
    [
        (torch.no_grad, "gradients are off"),
        (torch.inference_mode, "gradients are off"),
        (lambda: torch.autocast("cpu", torch.bfloat16), "torch.autocast is on"),
        (lambda: torch.device("meta"), "default device is meta"),
    ],
)
def test_a_run_is_refused_where_it_could_not_compute_as_it_says(around, words, tmp_path):
    config = resolve("two-moons", 12, "pi", epochs=1)
    for begin in (
        lambda: train([config]),
        lambda: run(config, tmp_path / "run"),
        lambda: run_series([config], tmp_path / "series"),
    ):
        with around(), pytest.raises(UsageError, match=words):
            begin()
    assert list(tmp_path.rglob("*.json")) == []


def test_a_run_is_refused_where_numbers_have_another_size(tmp_path):
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(UsageError, match=r"default dtype is torch\.float64"):
            train([resolve("two-moons", 12, "pi", epochs=1)])
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("tf32", [False, True])
def test_float32_is_float32_whatever_was_set_before(caller, tf32, caller_settings):
    CALLERS[caller]()
    before = caller_settings()
    with full_float32(tf32):
        assert b.cudnn.conv.fp32_precision == b.cudnn.rnn.fp32_precision == ("tf32" if tf32 else "ieee")
        assert b.cuda.matmul.fp32_precision == b.mkldnn.matmul.fp32_precision == b.mkldnn.conv.fp32_precision == "ieee"
        # What PyTorch's compiler and others ask. They would be refused if old and new contradicted each other.
        assert b.cudnn.allow_tf32 == tf32
        assert not b.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == "highest"
        with full_float32(not tf32):
            assert b.cudnn.allow_tf32 != tf32
        assert b.cudnn.allow_tf32 == tf32
    assert caller_settings() == before
    with pytest.raises(ZeroDivisionError), full_float32(tf32):
        fail()
    assert caller_settings() == before


@pytest.mark.parametrize("general", [b, b.cudnn], ids=["generic", "cudnn"])
@pytest.mark.parametrize(("before", "after"), [("tf32", "ieee"), ("ieee", "tf32"), ("none", "tf32")])
def test_products_follow_what_the_caller_says_in_general_as_if_there_had_been_no_run(
    general, before, after, caller_settings
):
    products = b.cuda.matmul, b.mkldnn.matmul, b.mkldnn.conv

    def products_follow(run_between):
        for place in products:
            place.fp32_precision = "none"
        general.fp32_precision = before
        if run_between:
            with full_float32(tf32_convolutions=False):
                pass
        general.fp32_precision = after
        return [place.fp32_precision for place in products]

    expected = products_follow(run_between=False)
    assert after in expected
    assert products_follow(run_between=True) == expected


@pytest.mark.parametrize("before", [(False, True), (True, False)])
def test_kernels_are_repeatable_inside_and_as_they_were_outside_even_after_an_error(before, monkeypatch):
    for name, value in zip(("deterministic", "benchmark"), before, strict=True):
        monkeypatch.setattr(b.cudnn, name, value)
    with repeatable():
        assert (b.cudnn.deterministic, b.cudnn.benchmark) == (True, False)
    with pytest.raises(ZeroDivisionError), repeatable():
        fail()
    assert (b.cudnn.deterministic, b.cudnn.benchmark) == before


@pytest.mark.parametrize("before", [(False, False), (True, True), (True, False)])
def test_sums_are_in_order_inside_and_as_they_were_outside(before):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    try:
        with sums_in_order():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.utils.deterministic.fill_uninitialized_memory  # it would write all that we allocate
        assert torch.utils.deterministic.fill_uninitialized_memory
        with pytest.raises(ZeroDivisionError), sums_in_order():
            fail()
        after = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        assert after == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_runs_that_end_in_another_order_than_they_began_leave_it_to_the_one_around_them():
    """As seeds do that take turns."""
    filters = list(warnings.filters)
    with sums_in_order():
        first, second = sums_in_order(), sums_in_order()
        for run in (first, second):
            run.__enter__()
        for run in (first, second):
            run.__exit__(None, None, None)
            assert torch.are_deterministic_algorithms_enabled()
            with warnings.catch_warnings(record=True) as caught:
                warnings.warn("this operation is not deterministic because it uses CuBLAS", stacklevel=1)
            assert caught == []
    assert not torch.are_deterministic_algorithms_enabled()
    assert warnings.filters == filters


def test_only_the_matrix_products_warning_is_left_unsaid():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with sums_in_order():
            warnings.warn("this operation is not deterministic because it uses CuBLAS", stacklevel=1)
            warnings.warn("another", stacklevel=1)
    assert [str(w.message) for w in caught] == ["another"]
