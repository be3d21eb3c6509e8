"""Tables that commands print."""

from collections.abc import Collection, Iterable

from rich.table import Table


def text_table(title: str, headings: Iterable[str] = (), left: Collection[str] = ()) -> Table:
    """Return an empty table. Columns are right-aligned, except those named in `left`."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    return table
