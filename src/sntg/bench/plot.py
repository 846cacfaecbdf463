"""The bench's plot: milliseconds a step as bars, a colour for each engine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sntg.bench.cases import EVERY_WAY, METHODS
from sntg.bench.measure import Row
from sntg.figures.style import COLOURS, new_figure, save
from sntg.models import PRECISIONS
from sntg.training.engines import ENGINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 0.26  # of a bar; a group of three leaves some room to the next


@dataclass(frozen=True)
class Panel:
    """Bars of ms by group (a precision, a method) and engine."""

    title: str
    bars: dict[str, dict[str, float]]


def draw_bench(found: Sequence[Panel], title: str, path: Path) -> bool:
    """Draws the panels into a PNG file; False where there are none, as when no engine that was asked for works."""
    if not found:
        return False
    tallest = max(len(panel.bars) for panel in found)
    figure = new_figure(5.6 * len(found), 1.4 + 0.75 * tallest)
    for axes, panel in zip(figure.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        _draw(axes, panel)
        axes.set_ylim(tallest - 0.5, -0.5)  # from the top down, and bars as high in every panel
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(title)
    save(figure, path)
    return True


def panels(rows: Sequence[Row]) -> list[Panel]:
    """For each dataset, one by precision where there are several, and one by method for each precision they run in.

    >>> rows = [Row("cifar10", "pi", "eager", "eager", "tf32", auto=False, ms_per_step=2.0)]
    >>> panels(rows)
    [Panel(title='cifar10, tf32', bars={'pi': {'eager': 2.0}})]
    """
    good = [row for row in rows if row.ms_per_step is not None and row.engine == row.asked]
    found = []
    for dataset in dict.fromkeys(row.dataset for row in good):
        mine = [row for row in good if row.dataset == dataset]
        every_way = _bars(PRECISIONS, ((r.precision, r) for r in mine if r.method == EVERY_WAY))
        if len(every_way) > 1:
            found.append(Panel(f"{EVERY_WAY} on {dataset}", every_way))
        precision_of = {r.method: r.precision for r in sorted(mine, key=lambda r: r.auto)}  # what `auto` means wins
        for precision in sorted(set(precision_of.values()), key=list(PRECISIONS).index):
            theirs = [(r.method, r) for r in mine if r.precision == precision == precision_of[r.method]]
            by_method = _bars(METHODS, theirs)
            if len(by_method) > 1 or len(every_way) < 2:
                found.append(Panel(f"{dataset}, {precision}", by_method))
    return found


def _bars(groups: Iterable[str], rows: Iterable[tuple[str, Row]]) -> dict[str, dict[str, float]]:
    """The milliseconds by group and engine, groups and engines in their usual order."""
    ms = {(group, row.engine): row.ms_per_step for group, row in rows}
    found = {g: {e: value for e in ENGINES if (value := ms.get((g, e))) is not None} for g in groups}
    return {group: bars for group, bars in found.items() if bars}


def three_digits(ms: float) -> str:
    """Milliseconds to three digits, zeros included.

    >>> [three_digits(ms) for ms in (0.5, 9.999, 23.0, 1234.6)]
    ['0.500', '10.0', '23.0', '1235']
    """
    return f"{ms:#.3g}" if ms < 999.5 else f"{ms:.0f}"


def _draw(axes: "Axes", panel: Panel) -> None:
    """Horizontal bars, so that names can be read."""
    for colour, engine in zip(COLOURS, ENGINES, strict=False):
        # A group's bars stand together around its name, however many it has.
        placed = [
            (group + HEIGHT * (list(bars).index(engine) - (len(bars) - 1) / 2), bars[engine])
            for group, bars in enumerate(panel.bars.values())
            if engine in bars
        ]
        if placed:
            places, lengths = zip(*placed, strict=True)
            drawn = axes.barh(places, lengths, height=HEIGHT, color=colour, label=engine)
            axes.bar_label(drawn, fmt=three_digits, padding=3, fontsize=8)
    axes.set_yticks(range(len(panel.bars)), panel.bars)
    axes.margins(x=0.12)
    axes.set_xlabel("ms a step")
    axes.set_title(panel.title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
