"""Tables as text: aligned columns, a drawn table for a terminal, and Markdown."""

from collections.abc import Iterable, Sequence


def text_table(rows: Iterable[Sequence[str]], header: Sequence[str] = (), *, align: str, terminal: bool = False) -> str:
    """Return ``rows`` as aligned columns, or as a drawn table for a ``terminal``. Without a ``header`` there is none.

    ``align`` has a letter for each column, "l" for left and "r" for right.

    >>> print(text_table([["samples", "40"], ["waves", "3.2"]], ["name", "value"], align="lr"))
    name     value
    samples     40
    waves      3.2
    """
    rows = list(rows)
    if terminal:
        return _drawn(rows, header, align)
    return "\n".join("  ".join(cells).rstrip() for cells in _padded([header, *rows] if header else rows, align))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> list[str]:
    """Return the lines of a Markdown table whose columns are also aligned as text: to the left unless ``align`` says.

    >>> markdown_table(["rule", "hits"], [["vip", "7"]], align="lr")
    ['| rule | hits |', '|------|-----:|', '| vip  |    7 |']
    """
    align = align or "l" * len(header)
    head, *body = _padded([header, *rows], align)
    rule = "|".join(
        "-" * (len(cell) + 1) + ("-" if side == "l" else ":") for cell, side in zip(head, align, strict=True)
    )
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(cells)} |" for cells in body)]


def _padded(rows: Sequence[Sequence[str]], align: str) -> list[list[str]]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        for row in rows
    ]


def _drawn(rows: Iterable[Sequence[str]], header: Sequence[str], align: str) -> str:
    from rich.box import ROUNDED  # noqa: PLC0415 - an optional extra, and slow to import
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=ROUNDED, show_header=bool(header))
    for name, side in zip(header or [""] * len(align), align, strict=True):
        table.add_column(name, justify="right" if side == "r" else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console(highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()
