"""The features h(x) of test points projected to the plane, a colour for each true class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sntg.figures.style import COLOURS, new_figure, save

PERPLEXITY = 36  # that of the paper's figure of MNIST
MOST_FOR_TSNE = 2000  # beyond that t-SNE takes minutes; the paper's figure of CIFAR-10 has principal components too


@dataclass(frozen=True)
class Embedding:
    """One panel: features (M, p) and true classes (M,)."""

    title: str
    features: np.ndarray
    classes: np.ndarray


def project(features: np.ndarray) -> np.ndarray:
    """The features in two dimensions, by t-SNE started from their principal components, or by those alone.

    By those alone if there are many points, or no more than t-SNE takes for a neighbourhood. All in one place if their
    features are the same.

    >>> project(np.random.default_rng(0).normal(size=(120, 5))).shape
    (120, 2)
    """
    from sklearn.decomposition import PCA  # here: scikit-learn takes a second to load
    from sklearn.manifold import TSNE

    if not np.ptp(features, axis=0).any():  # of one point, or of a network that has collapsed: t-SNE ends the process
        return np.zeros((len(features), 2))
    off = features.astype(np.float64) - features.mean(0, dtype=np.float64)
    if not PERPLEXITY < len(features) <= MOST_FOR_TSNE:
        components: np.ndarray = PCA(2, random_state=0).fit_transform(off)
        return components
    alike = off / np.abs(off).max()  # its float32 has room for the squares of these, whatever the features' size
    projected: np.ndarray = TSNE(perplexity=PERPLEXITY, init="pca", random_state=0).fit_transform(alike)
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
