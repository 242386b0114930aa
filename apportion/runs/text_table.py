"""Tables as text: aligned columns, and Markdown."""

from collections.abc import Iterable, Sequence


def text_table(rows: Iterable[Sequence[str]], header: Sequence[str] = (), *, align: str = "") -> str:
    """Return ``rows`` as aligned columns. Without a ``header`` there is none.

    ``align`` has a letter for each column, "l" for left and "r" for right; by default the first is to the left and all
    others to the right. Nothing is cut: a terminal that is narrower than the table breaks its lines.

    >>> print(text_table([["samples", "40"], ["waves", "3.2"]], ["name", "value"]))
    name     value
    samples     40
    waves      3.2
    """
    align = align or "l" + "r" * (len(header) - 1)
    return "\n".join("  ".join(cells).rstrip() for cells in _padded([header, *rows] if header else [*rows], align))


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
