"""The kernels of one training step, and how long each takes.

    python benchmarks/profile_step.py pi+sntg [--engine graph] [--precision bfloat16] [--steps 20]

The case is the bench's own: random images in CIFAR-10's shapes on a GPU, the digits on a CPU. Times are the device's, a
step's share of all steps; what the profiler itself costs is not in them.
"""

import argparse
from collections import defaultdict
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from sntg.bench.cases import automatic, config_of, inputs_of
from sntg.training import Stack
from sntg.training.config import default_device
from sntg.training.randomness import own_randomness


def measured(stack: Stack, steps: int, on_gpu: bool) -> dict[str, list[float]]:
    """The microseconds of every kernel that ran, by name."""
    for _ in range(10):
        stack.advance()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            stack.advance()
        if on_gpu:
            torch.cuda.synchronize()
    times = defaultdict(list)
    for event in seen.events():
        took = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if took:
            times[event.name].append(took)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method")
    parser.add_argument("--engine", default="")
    parser.add_argument("--precision", default="")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    name = default_device()
    device = torch.device(name)
    on_gpu = device.type == "cuda"
    best = automatic("cifar10" if on_gpu else "digits", given.method, name)
    case = replace(best, engine=given.engine or best.engine, precision=given.precision or best.precision)
    config = config_of(case, name)
    with own_randomness(config):
        times = measured(Stack([config], [inputs_of(config)]), given.steps, on_gpu)
    total, count = sum(map(sum, times.values())), sum(map(len, times.values()))
    print(f"{case}, torch {torch.__version__}, {torch.cuda.get_device_name() if on_gpu else 'CPU'}")
    print(f"total {total / given.steps / 1000:.3f} ms per step, kernels {count / given.steps:.0f}")
    for kernel, took in sorted(times.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(took) / given.steps:9.1f} us {len(took) / given.steps:6.1f} x  {kernel[:120]}")


if __name__ == "__main__":
    main()
