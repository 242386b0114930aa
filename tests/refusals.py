"""Many refusals in one test."""

import re
from collections.abc import Callable, Iterable
from typing import Any


def assert_refused(make: Callable[[Any], object], cases: Iterable[tuple[str, Any]]) -> None:
    """Assert that ``make`` refuses each case in one line that has its pattern. The cases are (pattern, argument)."""
    wrong = []
    for pattern, given in cases:
        try:
            make(given)
        except ValueError as error:
            if not re.search(pattern, str(error)) or "\n" in str(error):
                wrong.append(f"{given} should say {pattern!r}, got {str(error)!r}")
        else:
            wrong.append(f"{given} should say {pattern!r}, was accepted")
    assert not wrong, "\n".join(wrong)
