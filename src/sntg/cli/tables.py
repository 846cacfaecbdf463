"""Plain tables on the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table


def print_table(rows: Sequence[Mapping[str, object]], title: str | None = None) -> None:
    """Prints rows of equal keys as a table; numbers are set to the right."""
    table = Table(title=title, title_justify="left")
    for key, value in rows[0].items():
        table.add_column(key, justify="right" if isinstance(value, int | float) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(v) for v in row.values()))
    Console().print(table)
