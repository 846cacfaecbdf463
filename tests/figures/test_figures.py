"""Figures: PNG files written whole, with what they should show on their axes."""

import warnings

import numpy as np
import pytest
from matplotlib import colors, image
from matplotlib.figure import Figure

from sntg.figures import (
    Decisions,
    Embedding,
    curves,
    decisions,
    draw_curves,
    draw_decisions,
    draw_embeddings,
    embeddings,
)
from sntg.figures.style import COLOURS, save

RNG = np.random.default_rng(0)
POINTS = RNG.uniform(-1, 1, (60, 2))


@pytest.fixture
def drawn(monkeypatch):
    """The figures as they were handed to `save`; the file is written all the same."""
    kept = []

    def keep(figure, path):
        kept.append(figure)
        save(figure, path)

    for module in (curves, decisions, embeddings):
        monkeypatch.setattr(module, "save", keep)
    return kept


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def record(epoch, error=None, teacher=None, **losses):
    return {
        "epoch": epoch,
        "loss": losses,
        "weight": dict.fromkeys(losses, 0.5),
        "error": error,
        "student_error": error,
        "teacher_error": teacher,
    }


def lines(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_curves_show_errors_where_there_are_any_and_weighted_terms(tmp_path, drawn):
    history = [
        record(1, None, None, supervised=2.0, sntg=1.0),
        record(2, 40.0, 45.0, supervised=1.0, sntg=0.5),
        record(3, 20.0, 25.0, supervised=0.2, sntg=0.0),
    ]
    draw_curves(history, "pi+sntg", tmp_path / "curves.png")
    left, right = drawn[0].axes
    assert lines(left) == {
        "test error (reported)": [[2, 40], [3, 20]],
        "student, test": [[2, 40], [3, 20]],
        "teacher, training points": [[2, 45], [3, 25]],
    }
    assert lines(right) == {"supervised": [[1, 1.0], [2, 0.5], [3, 0.1]], "sntg": [[1, 0.5], [2, 0.25], [3, 0.0]]}
    assert drawn[0].get_suptitle() == "pi+sntg"
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["supervised", "sntg"]


def test_curves_leave_out_a_teacher_there_is_none_of(tmp_path, drawn):
    draw_curves([record(1, 50.0, None, supervised=0.7)], "supervised", tmp_path / "curves.png")
    assert "teacher, training points" not in lines(drawn[0].axes[0])


def halves(x):
    return (x[:, 0] > 0).astype(int)


def offsets(axes):
    """Each scatter's colour and points."""
    return [
        (colors.to_hex(c.get_facecolor()[0]), c.get_offsets().tolist())
        for c in axes.collections
        if len(c.get_offsets()) > 1
    ]


def test_decisions_colour_the_points_by_predicted_class_and_cross_the_labelled(tmp_path, drawn):
    panels = [Decisions(title, POINTS, POINTS[:4], halves) for title in ("pi", "pi+sntg")]
    draw_decisions(panels, tmp_path / "decisions.png")
    assert [axes.get_title() for axes in drawn[0].axes] == ["pi", "pi+sntg"]
    for axes in drawn[0].axes:
        first, second, crosses = offsets(axes)
        assert first == (COLOURS[0].lower(), POINTS[halves(POINTS) == 0].tolist())
        assert second == (COLOURS[1].lower(), POINTS[halves(POINTS) == 1].tolist())
        assert crosses == ("#000000", POINTS[:4].tolist())


def test_the_boundary_is_where_the_class_changes(tmp_path, drawn):
    draw_decisions([Decisions("", POINTS, POINTS[:4], halves)], tmp_path / "decisions.png")
    borders = [c for c in drawn[0].axes[0].collections if type(c).__name__ == "QuadContourSet" and not c.filled]
    assert borders
    for border in borders:
        vertices = np.concatenate([path.vertices for path in border.get_paths()])
        assert np.abs(vertices[:, 0]).max() < 0.01
        assert np.ptp(vertices[:, 1]) > 2.0  # from edge to edge


@pytest.mark.parametrize("only", [0, 2])
def test_a_classifier_that_has_collapsed_into_one_class_is_drawn_without_a_warning(tmp_path, only):
    panel = Decisions("collapsed", POINTS, POINTS[:4], lambda x: np.full(len(x), only))
    draw_decisions([panel], tmp_path / "decisions.png")
    assert (tmp_path / "decisions.png").exists()


def test_embeddings_have_a_panel_each_and_a_legend_of_the_classes(tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(embeddings, "project", lambda features: features[:, :2])
    classes = np.arange(60) % 10
    panels = [Embedding(title, np.c_[POINTS + shift, POINTS], classes) for shift, title in enumerate(("pi", "pi+sntg"))]
    draw_embeddings(panels, tmp_path / "embedding.png")
    assert [axes.get_title() for axes in drawn[0].axes] == ["pi", "pi+sntg"]
    for shift, axes in enumerate(drawn[0].axes):
        assert len(offsets(axes)) == 10
        for c, (colour, points) in enumerate(offsets(axes)):
            assert colour == COLOURS[c].lower()
            np.testing.assert_allclose(points, POINTS[classes == c] + shift)
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == [str(c) for c in range(10)]


def test_the_projection_keeps_far_clusters_apart_and_is_the_same_every_time():
    features = np.concatenate([RNG.normal(size=(50, 5)), 100.0 + RNG.normal(size=(50, 5))]).astype(np.float32)
    plane = embeddings.project(features)
    assert plane.shape == (100, 2)
    centres = plane[:50].mean(0), plane[50:].mean(0)
    spread = max(
        np.linalg.norm(plane[part] - centre, axis=1).max()
        for part, centre in zip((slice(50), slice(50, None)), centres, strict=True)
    )
    assert np.linalg.norm(centres[0] - centres[1]) > spread
    np.testing.assert_array_equal(plane, embeddings.project(features))


def test_many_points_are_shown_by_their_principal_components(monkeypatch):
    """t-SNE would take minutes. The widest direction comes first, whatever the others do."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(embeddings.MOST_FOR_TSNE + 1, 6)) * [1, 9, 1, 3, 1, 1]
    monkeypatch.setattr("sklearn.manifold.TSNE", lambda **options: pytest.fail("t-SNE was begun"))
    plane = embeddings.project(features)
    assert plane.shape == (2001, 2)
    centred = features - features.mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    np.testing.assert_allclose(np.abs(plane), np.abs(centred @ directions.T), atol=1e-6)
    np.testing.assert_array_equal(plane, embeddings.project(features))


def test_up_to_two_thousand_points_are_shown_by_t_sne(monkeypatch):
    class Pretended:
        def __init__(self, **options):
            assert options == {"perplexity": 36, "init": "pca", "random_state": 0}

        def fit_transform(self, features):
            return features[:, 2:4]

    features = np.random.default_rng(1).normal(size=(2000, 5))
    monkeypatch.setattr("sklearn.manifold.TSNE", Pretended)
    off = features - features.mean(0)
    np.testing.assert_array_equal(embeddings.project(features), (off / np.abs(off).max())[:, 2:4])


SMALL = np.random.default_rng(0).random((60, 8))


@pytest.mark.parametrize(
    "features",
    [np.full((60, 8), 0.1), np.ones((1, 8)), np.zeros((60, 8))],
    ids=["equal", "one", "zero"],
)
def test_features_that_are_the_same_are_one_place(features):
    """t-SNE would end the process, with nothing that could be caught."""
    np.testing.assert_array_equal(embeddings.project(features.astype(np.float32)), np.zeros((len(features), 2)))


@pytest.mark.parametrize("n", [2, 20, 36, 37])
def test_few_points_are_projected_too(n):
    """t-SNE takes no fewer than its perplexity."""
    plane = embeddings.project(SMALL[:n].astype(np.float32))
    assert plane.shape == (n, 2)
    assert len(np.unique(plane, axis=0)) == n


def test_features_that_differ_in_their_last_place_are_projected():
    features = np.full((60, 8), 0.1, dtype=np.float32)
    features[0, 0] = np.nextafter(features[0, 0], np.float32(1))
    assert np.isfinite(embeddings.project(features)).all()


@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e37])
def test_features_of_any_size_are_projected(size):
    plane = embeddings.project((SMALL * size).astype(np.float32))
    assert np.isfinite(plane).all()
    assert len(np.unique(plane, axis=0)) == 60


def test_a_figure_is_a_png_written_whole(tmp_path):
    save(Figure(figsize=(2, 1)), tmp_path / "figure.png")
    assert [p.name for p in tmp_path.iterdir()] == ["figure.png"]
    assert image.imread(tmp_path / "figure.png").ndim == 3


def test_a_figure_that_cannot_be_drawn_leaves_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "figure.png").write_bytes(b"old")

    def fail(self, path, **options):
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save(Figure(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes() == b"old"


def test_the_colours_tell_ten_classes_apart():
    assert len({c.lower() for c in COLOURS}) == len(COLOURS) >= 10
    assert all(colors.is_color_like(c) for c in COLOURS)
