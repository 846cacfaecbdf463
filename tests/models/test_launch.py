"""How kernels are launched, and compiled before they are."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from sntg.models import fused, grid, means, shifted
from sntg.models.launch import STAGES, compiling
from sntg.models.lines import Lines
from sntg.models.slices import MOST_SLICES, Slices

SHAPES = [
    (1, 3, 32, 4, 4),
    (2, 11, 32, 4, 8),
    (1, 5, 96, 2, 2),
    (2, 100, 32, 16, 16),  # 100 images in slices of 7: fewer slices than would fill the GPU
    (2, 100, 128, 32, 32),
    (1, 128, 256, 6, 6),
]


def are_powers_of_two(*sizes):
    """As Triton's blocks have to be."""
    return all(size > 0 and size & (size - 1) == 0 for size in sizes)


@pytest.mark.parametrize("reads", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_row_has_a_program_and_every_program_a_row(shape, dtype, reads):
    groups, n, C, H, W = shape
    shared = Slices.over(torch.empty((groups, n, H, W, C), dtype=dtype, device="meta"), reads)
    across, slices, depth = shared.grid
    sizes = shared.sizes
    assert (across * sizes["COLUMNS"], depth, sizes["M"]) == (C, groups, n * H * W)
    assert (slices - 1) * sizes["slice_rows"] < sizes["M"] <= slices * sizes["slice_rows"]
    assert slices <= MOST_SLICES
    assert are_powers_of_two(sizes["ROWS"], sizes["COLUMNS"])


@pytest.mark.parametrize("reads", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_image_of_a_line_has_a_program_and_every_program_an_image(shape, reads):
    groups, n, C, H, W = shape
    lines = Lines.over(torch.empty((groups, n, H, W, C), device="meta"), reads)
    across, down, depth = lines.grid
    sizes = lines.sizes
    assert (across * sizes["COLUMNS"], down, depth) == (C, H * sizes["slices"], groups)
    assert tuple(sizes[name] for name in "nHWC") == (n, H, W, C)
    assert (sizes["slices"] - 1) * sizes["slice_images"] < n <= sizes["slices"] * sizes["slice_images"]
    assert sizes["PIXELS"] >= W  # a program holds a line at a time
    assert are_powers_of_two(sizes["PIXELS"], sizes["COLUMNS"], sizes["num_warps"])


@pytest.mark.parametrize(("W", "stages"), [(32, STAGES), (64, 2), (128, 1), (2048, 1)])
def test_of_wide_lines_fewer_are_under_way(W, stages):
    """All that are must fit into a multiprocessor's memory."""
    assert Lines.over(torch.empty((1, 8, 4, W, 32), dtype=torch.bfloat16, device="meta"), 4).sizes["STAGES"] == stages


class Kernel:
    """Notes what is done with it."""

    def __init__(self):
        self.done = []

    def __getitem__(self, grid):
        return lambda *handed, **constants: self.done.append(("launched", handed, constants))

    def warmup(self, *handed, grid, **constants):
        self.done.append(("compiled", handed, constants))


@pytest.fixture
def a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: nullcontext())


def finish_compiling():
    compiling().submit(int).result()  # one after the other


def run(kernel, x):
    Slices((1, 1, 1), {"M": 3}, 0).run(kernel, x, x.half(), 0.1, PUSH=True)
    finish_compiling()
    return kernel.done


def test_a_kernel_is_launched_with_its_tensors(a_gpu):
    x = torch.zeros(2)
    ((what, (first, second, slope), constants),) = run(Kernel(), x)
    assert what == "launched"
    assert first is x
    assert (second.dtype, slope, constants) == (torch.float16, 0.1, {"M": 3, "PUSH": True})


def test_where_the_tensors_hold_nothing_it_is_compiled_for_their_dtypes(a_gpu):
    with FakeTensorMode():
        done = run(Kernel(), torch.zeros(2))
    assert done == [("compiled", (torch.float32, torch.float16, 0.1), {"M": 3, "PUSH": True})]


def test_without_a_gpu_there_is_nothing_to_compile_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(Kernel(), torch.zeros(2, device="meta")) == []
    with FakeTensorMode():
        assert run(Kernel(), torch.zeros(2)) == []


def test_a_kernel_that_cannot_be_compiled_is_none_of_the_compilers_business(a_gpu):
    class Broken(Kernel):
        def warmup(self, *handed, **constants):
            raise RuntimeError("no room on the disk")

    with FakeTensorMode():
        assert run(Broken(), torch.zeros(2)) == []


def left_open():
    """A mode in which tensors hold nothing, and a size that is not known."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with mode:
        n = mode.shape_env.create_unbacked_symint()
        torch._check(n >= 2)
    return mode, n


@pytest.mark.parametrize("pool", [False, True])
def test_sizes_may_be_left_open(pool):
    """As `torch.export` and a compiler of dynamic shapes leave them: what comes out is as open as what goes in."""
    mode, n = left_open()
    with mode:
        y = torch.empty(1, n, 4, 4, 32).permute(0, 1, 4, 2, 3)
        b, mask = torch.empty(1, 32), torch.empty(1, n, 2, 2, 32).permute(0, 1, 4, 2, 3)
        if pool:
            p, channels, code = fused.pooled(y, b, b, mask, 0.1, 1e-6, 0)
            gradient, _ = fused.pooled_pull(p, y, mask, code, channels, 0.1, 0)
            p, sums, code = shifted.pooled(y, b, mask, 0.1, 1, 0)
            other, _ = shifted.pooled_gradient(p, sums, mask, code, 0.1, 1, 0)
        else:
            a, channels = fused.leaky(y, b, b, 0.1, 1e-6, 0)
            gradient, _ = fused.linear(a, y, channels, 0.1, 0, False)
            a, sums = shifted.leaky(y, b, 0.1, 3, 1)
            other, _ = shifted.leaky_gradient(a, sums, a, 0.1, 3, 1)
    assert gradient.shape == other.shape == y.shape
    assert gradient.stride() == other.stride() == y.stride()


def test_kernels_are_not_compiled_for_sizes_left_open(a_gpu):
    kernel, (mode, n) = Kernel(), left_open()
    with mode:
        x = torch.empty(1, n, 4, 4, 32)
        Slices.over(x, 2).sums(kernel, 2, x)
        Lines.over(x, 2).sums(kernel, (3, 1), 3, x)
    finish_compiling()
    assert kernel.done == []


@pytest.fixture
def device(monkeypatch, request):
    """Where Triton finds something to compile for: a GPU, or one that only says what it is."""
    if torch.cuda.is_available():
        return "cuda"
    request.getfixturevalue("a_gpu")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    known = {"get_current_target": lambda: target, "get_current_device": lambda: 0, "get_current_stream": lambda _: 0}
    driver = pytest.importorskip("triton.runtime").driver
    monkeypatch.setattr(driver, "_active", SimpleNamespace(**known))
    return "cpu"


def two_passes(y, b, mask):
    fused.leaky(y, b, b, 0.1, 1e-6, 0)


def one_pass(y, b, mask):
    a, sums = shifted.leaky(y, b, 0.1, 3, 1)
    shifted.leaky_gradient(a, sums, a, 0.1, 3, 1)
    p, sums, code = shifted.pooled(y, b, mask, 0.1, 3, 1)
    shifted.pooled_gradient(p, sums, mask, code, 0.1, 3, 1)


def weights(y, b, mask):
    V, sums = y.new_empty(4, 32, 3, 3), y.new_empty(1, 9, 32)
    weight, shift, _, norms = means.layer(V, b[0, :4], b[0, :4], sums, 7, 288, torch.float32)
    means.gradient(weight, shift, V, b[0, :4], sums, norms, 7)
    means.sums_gradient(shift, weight, 9, 32, 7)


OPERATORS = {
    two_passes: ["moments", "normalised_leaky"],
    one_pass: [
        "shifted_leaky",
        "add_lines",
        "leaky_gradient",
        "add_lines",  # of one tap
        "shifted_leaky_pooled",
        "pooled_gradient",
    ],
    weights: ["mean_only_layer", "parameters_gradient", "sums_gradient"],
}


def forget_compiled_kernels(jit):
    """Other tests may have launched some, on a GPU."""
    for module in (fused, means, shifted):
        for kernel in vars(module.kernels).values():
            if isinstance(kernel, jit):
                kernel.device_caches.clear()


@pytest.mark.skipif(not grid.AVAILABLE, reason="needs Triton")
@pytest.mark.parametrize(("operators", "kernels"), OPERATORS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_compiler_that_asks_for_shapes_has_the_kernels_compiled(operators, kernels, device, monkeypatch, tmp_path):
    """Asked once it compiles all; asked again there is nothing left to compile."""
    jit = pytest.importorskip("triton.runtime.jit").JITFunction
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled, really_compile = [], jit._do_compile

    def compile_kernel(kernel, *args, **kwargs):
        compiled.append(kernel.fn.__name__)
        return really_compile(kernel, *args, **kwargs)

    monkeypatch.setattr(jit, "_do_compile", compile_kernel)
    forget_compiled_kernels(jit)

    def ask():
        with FakeTensorMode():
            y, b = torch.empty(1, 1, 32, 4, 4, device=device), torch.empty(1, 32, device=device)
            operators(y, b, torch.empty(1, 1, 32, 2, 2, device=device))
        finish_compiling()

    ask()
    assert compiled == kernels
    ask()
    assert compiled == kernels
