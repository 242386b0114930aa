"""What a person sees on a terminal while a command computes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from apportion.untrusted import one_line


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """Show ``doing`` on stderr if that is a terminal, and erase it at the end. Elsewhere nothing is written."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415

    with Console(stderr=True).status(Text(one_line(doing))):
        yield
