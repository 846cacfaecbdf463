"""The features h(x) of test points projected to the plane, a colour for each true class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sntg.figures.style import COLOURS, new_figure, save

PERPLEXITY = 36  # the paper's, for its MNIST figure
MOST_FOR_TSNE = 2000  # beyond that t-SNE takes minutes; the paper's CIFAR-10 figure shows principal components too


@dataclass(frozen=True)
class Embedding:
    """One panel: features (M, p) and true classes (M,)."""

    title: str
    features: np.ndarray
    classes: np.ndarray


def project(features: np.ndarray) -> np.ndarray:
    """The features in two dimensions, by t-SNE started from their principal components, or by those alone if many.

    >>> project(np.random.default_rng(0).normal(size=(120, 5))).shape
    (120, 2)
    """
    from sklearn.decomposition import PCA  # here: scikit-learn takes a second to load
    from sklearn.manifold import TSNE

    if len(features) > MOST_FOR_TSNE:
        components: np.ndarray = PCA(2, random_state=0).fit_transform(features)
        return components
    projected: np.ndarray = TSNE(perplexity=PERPLEXITY, init="pca", random_state=0).fit_transform(features)
    return projected


def draw_embeddings(panels: Sequence[Embedding], path: Path) -> None:
    """Draws the panels side by side into a PNG file."""
    figure = new_figure(4.9 * len(panels), 4.8)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        plane = project(panel.features)
        for c in np.unique(panel.classes):
            axes.scatter(*plane[panel.classes == c].T, s=9, color=COLOURS[c % len(COLOURS)], linewidths=0, label=str(c))
        axes.set_title(panel.title)
        axes.set_xticks([])
        axes.set_yticks([])
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", markerscale=3, frameon=False, title="class")
    save(figure, path)
