"""What the commands show on a terminal: tables, and a progress bar with the time left."""

from collections.abc import Mapping, Sequence

from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


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
    """A bar with time left; it stays silent where there is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, *times, console=console, disable=not console.is_terminal)
