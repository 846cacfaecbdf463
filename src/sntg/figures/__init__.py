"""Figures, written as PNG files. They take plain arrays, so nothing here knows how a run came to be."""

from sntg.figures.curves import draw_curves
from sntg.figures.decisions import Decisions, draw_decisions
from sntg.figures.embeddings import Embedding, draw_embeddings

__all__ = ["Decisions", "Embedding", "draw_curves", "draw_decisions", "draw_embeddings"]
