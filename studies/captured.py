"""One full run on a GPU in minutes: the training loop as it is, its forward and backward pass compiled in bfloat16 and
captured once as a CUDA graph.

    python studies/captured.py --labels 4000 --method pi+sntg --data DIR --out RUN [--set KEY=VALUE ...]

Parameters, losses, running means and the optimiser stay in float32. It writes a run folder without checkpoints.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tuning import save

from sntg.methods import Batch
from sntg.models.layers import ConvMap
from sntg.training import Config, RunFolder, Stack, read_setting, resolve
from sntg.training.loop import Record, own_randomness
from sntg.training.run import draw_figures


class CapturedStack(Stack):
    """A stack of one whose forward and backward pass is a graph that is replayed on the batch at hand."""

    def __init__(self, config: Config) -> None:
        super().__init__([config])
        first = self.batches.next()
        self.static = Batch(first.x.clone(), first.labels.clone(), first.rows.clone())
        self.weights = {name: weight.clone() for name, weight in self.values().weights.items()}
        before = {name: tensor.clone() for name, tensor in self.state().items()}
        self.model.train()
        self.model.forward = torch.compile(self.model.forward)  # type: ignore[method-assign]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._passes()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self._passes()
        del self.model.forward  # evaluation runs as ever
        self.optimiser.gradient.zero_()
        self.load_state(before, self.histories)

    def _passes(self) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            terms, seen = self.objective(self.static)
        torch.stack([self.weights[name] * term for name, term in terms.items()]).sum().backward()
        return terms, seen

    def advance(self) -> list[Record] | None:
        values = self.values()
        for name, weight in values.weights.items():
            self.weights[name].copy_(weight)
        batch = self.batches.next()
        for static, new in zip(
            (self.static.x, self.static.labels, self.static.rows), (batch.x, batch.labels, batch.rows), strict=True
        ):
            static.copy_(new)
        self.graph.replay()
        self.optimiser.step(values.lr, values.beta1)
        self.objective.base.after_step(values.ema)
        self.log.add(batch, *self.out)
        return self._end_epoch() if self.step % self.epoch_steps == 0 else None


def channels_last(self: ConvMap, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A convolution of a stack of one, in the layout the tensor cores like."""
    last = torch.channels_last
    w = weight[0] if weight.ndim == 5 else weight
    images = x.flatten(0, -4).to(memory_format=last)
    y = F.conv2d(images, w.to(memory_format=last), bias, padding=self.padding)
    return y.reshape(*x.shape[:-3], *y.shape[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--data", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    given = parser.parse_args()
    settings = dict(read_setting(s) for s in given.settings)
    config = resolve("cifar10", given.labels, given.method, data=given.data, device="cuda", **settings)
    ConvMap.linear_map = channels_last  # type: ignore[method-assign]
    with own_randomness(config):
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
        started = time.monotonic()
        runs = CapturedStack(config)
        folder = RunFolder(given.out)
        with folder.locked():
            folder.start(runs.configs[0], runs.inputs[0].split)
            print(f"ready after {time.monotonic() - started:.0f} s", flush=True)
            started = time.monotonic()
            while not runs.finished:
                records = runs.advance()
                if records:
                    folder.add_metrics(records[0])
                    print(f"{time.monotonic() - started:.0f} s", records[0], flush=True)
            seconds = time.monotonic() - started
            (trained,) = runs.trained()
            folder.save_model(trained.model)
            folder.save_features(trained.features, trained.data.test_y)
            draw_figures(trained, folder.path / "figures")
    last = {k: trained.history[-1][k] for k in ("epoch", "loss", "student_error", "ema_error", "error")}
    save(
        {"name": f"cifar10 {config.method}", "seed": config.seed, "seconds": seconds, **last}, given.out / "result.json"
    )


if __name__ == "__main__":
    main()
