"""What the commands show on a terminal: tables, and a progress bar with the time left."""

from collections.abc import Mapping, Sequence

from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table


def print_table(rows: Sequence[Mapping[str, object]], title: str | None = None) -> None:
    """Prints rows of equal keys as a table; numbers are set to the right.

    >>> print_table([{"method": "pi", "error": 0.25}])
    ┏━━━━━━━━┳━━━━━━━┓
    ┃ method ┃ error ┃
    ┡━━━━━━━━╇━━━━━━━┩
    │ pi     │  0.25 │
    └────────┴───────┘
    """
    table = Table(title=title, title_justify="left")
    for key, value in rows[0].items():
        side: JustifyMethod = "right" if isinstance(value, int | float) else "left"
        table.add_column(key, justify=side, overflow="fold", no_wrap=not table.columns)  # a name stays in one piece
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


def progress_bar(console: Console) -> Progress:
    """A bar with time left, then what there is to say, as far as the line goes; silent where there is no terminal."""
    times = (TimeElapsedColumn(_whole(7)), TimeRemainingColumn(table_column=_whole(7)))
    said = TextColumn("{task.description}", table_column=Column(no_wrap=True, ratio=1))
    columns = (BarColumn(bar_width=20), TaskProgressColumn(table_column=_whole(4)), *times, said)
    return Progress(*columns, expand=True, console=console, disable=not console.is_terminal)


def _whole(width: int) -> Column:
    return Column(no_wrap=True, min_width=width)
