"""One run from settings to a finished run folder."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from sntg.figures import Decisions, Embedding, draw_curves, draw_decisions, draw_embeddings
from sntg.training.config import Config
from sntg.training.evaluation import predict
from sntg.training.loop import Record, Trained, train
from sntg.training.run_folder import RunFolder


def run(config: Config, out: Path | str, on_epoch: Callable[[Record], None] = lambda record: None) -> Trained:
    """Trains one run into a new folder: settings first, a line of metrics each epoch, weights and figures at the end.

    >>> import tempfile
    >>> from sntg.training import resolve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = run(resolve("two-moons", 12, "pi", epochs=1), folder)
    ...     sorted(p.name for p in Path(folder).iterdir())
    ['config.json', 'figures', 'metrics.jsonl', 'model.safetensors']
    """
    folder = RunFolder(out)

    def keep(records: list[Record]) -> None:
        folder.add_metrics(records[0])
        on_epoch(records[0])

    (trained,) = train([config], keep, on_start=lambda: folder.start(config))
    folder.save_model(trained.model)
    draw_figures(trained, folder.path / "figures")
    return trained


def draw_figures(trained: Trained, folder: Path) -> None:
    """The training curves; for points in the plane the decisions, for images the features."""
    folder.mkdir(exist_ok=True)
    draw_curves(trained.history, trained.config.method, folder / "curves.png")
    if trained.data.event == (2,):
        draw_decisions([decisions(trained)], folder / "decisions.png")
    else:
        draw_embeddings([embedding(trained)], folder / "embedding.png")


def decisions(trained: Trained) -> Decisions:
    """The panel of a run on points in the plane."""
    points = trained.data.train_x.numpy()

    def classify(x: np.ndarray) -> np.ndarray:
        return predict(trained.model, torch.from_numpy(x).float()).logits.argmax(-1).numpy()

    return Decisions(caption(trained), points, points[trained.labels.numpy() >= 0], classify)


def embedding(trained: Trained) -> Embedding:
    """The panel of a run's test features."""
    features = predict(trained.model, trained.data.test_x).features.numpy()
    return Embedding(caption(trained), features, trained.data.test_y.numpy())


def caption(trained: Trained) -> str:
    """The method and its error."""
    return f"{trained.config.method}: {trained.error:.2f} % error"
