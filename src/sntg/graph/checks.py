"""What a batch must be for the graph term; what is wrong with one is said in a sentence."""

import torch
from torch import Tensor

from sntg.errors import UsageError
from sntg.graph.graphs import WHOLE

REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def check_shapes(features: Tensor, teacher: Tensor | None, labels: Tensor | None, rows: Tensor | None) -> None:
    """Refuses tensors of another kind, shape or type. Nothing waits for the device, and a compiler knows all of it."""
    for name, value in {"features": features, "teacher": teacher, "labels": labels, "rows": rows}.items():
        if not isinstance(value, Tensor) and (value is not None or name == "features"):
            raise UsageError(f"{name} must be a tensor, not {type(value).__name__}")
        if value is not None and value.layout != torch.strided:
            raise UsageError(f"{name} must be a dense tensor, not one of the layout {value.layout}")
    if features.ndim < 2 or features.dtype not in REAL or features.shape[-1] == 0:
        raise UsageError(f"features must be real numbers of shape (n, p), not {features.dtype} {tuple(features.shape)}")
    batch = features.shape[:-1]
    if teacher is not None:
        _check_teachers_shape(teacher, batch)
    if rows is not None and (rows.shape != batch or rows.dtype not in WHOLE):
        what = f"{rows.dtype} {tuple(rows.shape)}"
        raise UsageError(f"rows must be {tuple(batch)} whole numbers of training points, not {what}")
    if labels is not None and (labels.shape != batch or labels.dtype not in WHOLE):
        raise UsageError(f"labels must be {tuple(batch)} whole numbers, not {labels.dtype} {tuple(labels.shape)}")


def check_values(
    features: Tensor, teacher: Tensor | None, labels: Tensor | None, rows: Tensor | None, n_points: int | None
) -> None:
    """Refuses values that mean nothing. n_points: how many a graph was built of, if `rows` are their numbers."""
    if any(value is not None and value.is_meta for value in (features, teacher, labels, rows)):
        raise UsageError("features, teacher, labels and rows must hold numbers, and on the meta device they hold none")
    _check_sizes(features)
    if teacher is not None:
        _check_teachers_values(teacher)
    if rows is not None and n_points is not None:
        _check_rows(rows, n_points)
    if labels is not None:
        _check_labels(labels, teacher)


def _check_teachers_shape(teacher: Tensor, batch: torch.Size) -> None:
    shape = teacher.shape[:-1] if teacher.is_floating_point() else teacher.shape
    if shape != batch or teacher.dtype not in REAL | WHOLE | {torch.bool}:
        raise UsageError(
            "teacher must hold (n, K) probabilities or (n,) whole class numbers "
            f"for n = {batch[-1]}, not {teacher.dtype} {tuple(teacher.shape)}"
        )
    if teacher.is_floating_point() and teacher.shape[-1] == 0:
        raise UsageError(f"teacher must hold probabilities of at least one class, not {tuple(teacher.shape)}")


def _check_sizes(features: Tensor) -> None:
    """Refuses numbers so large that squares of their differences, added up over features or pairs, overflow."""
    if not torch.isfinite(features).all():
        raise UsageError("features hold NaN or infinite values")
    largest = float(features.detach().abs().max()) if features.numel() else 0.0
    exact = torch.finfo(torch.promote_types(features.dtype, torch.float32))
    n, p = features.shape[-2:]
    if largest > (exact.max / max(n * n, p)) ** 0.5 / 2:
        raise UsageError(f"features are as large as {largest:.3g}: the squares of their distances overflow")


def _check_teachers_values(teacher: Tensor) -> None:
    if teacher.is_floating_point() and not torch.isfinite(teacher).all():
        raise UsageError("teacher holds NaN or infinite values")
    if (teacher < 0).any():
        raise UsageError(
            "teacher holds negative values: give probabilities (the softmax of the logits) or class numbers"
        )


def _check_rows(rows: Tensor, n_points: int) -> None:
    """On a GPU a row that does not exist would end the process, not the call."""
    if rows.numel() == 0:
        return
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= n_points:
        raise UsageError(f"rows run from {low} to {high}, and the graph was built of the points 0 to {n_points - 1}")


def _check_labels(labels: Tensor, teacher: Tensor | None) -> None:
    if labels.numel() == 0:
        return
    classes = teacher.shape[-1] if teacher is not None and teacher.is_floating_point() else None
    low, high = int(labels.min()), int(labels.max())
    if low < -1 or (classes is not None and high >= classes):
        valid = f"0 to {classes - 1}" if classes else "0 and up"
        raise UsageError(f"labels run from {low} to {high}: a class is {valid}, and -1 means unknown")
