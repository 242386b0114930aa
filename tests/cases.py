"""Tables of cases that one test walks: every case is tried, and all that fail are named at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def lines(text: str) -> list[tuple[str, ...]]:
    """Return the parts of each line of ``text``, which stand between ``=>``."""
    return [tuple(re.split(r" *=> ?", line.strip())) for line in text.strip().splitlines()]


def check_all(check: Callable[..., Any], cases: Iterable[Sequence[Any]]) -> None:
    """Call ``check`` with each of ``cases``. Fail with the cases for which it raises, and what it says."""
    cases = list(cases)
    wrong = [f"{str(case)[:500]}: {error}" for case in cases if (error := _error(check, case)) is not None]
    assert cases and not wrong, "\n".join(wrong)


def check_refused(error: type[Exception], act: Callable[..., Any], cases: Iterable[Sequence[Any]]) -> None:
    """Check that ``act(*values)`` raises ``error`` with the pattern ``message`` for each ``(*values, message)``."""

    def check(*case: Any) -> None:
        with pytest.raises(error, match=case[-1]):
            act(*case[:-1])

    check_all(check, cases)


def assert_refused(make: Callable[[Any], object], cases: Iterable[tuple[str, Any]]) -> None:
    """Assert that ``make`` refuses each case by a ValueError of one line. The cases are (pattern, argument)."""

    def check(pattern: str, given: Any) -> None:
        with pytest.raises(ValueError, match=pattern) as refused:
            make(given)
        assert "\n" not in str(refused.value)

    check_all(check, cases)


def refuse_lines(make: Callable[[str], object], table: str) -> None:
    """Assert that ``make`` refuses what stands before ``=>`` in each line of ``table`` by the pattern behind it."""
    assert_refused(make, [(pattern, given) for given, pattern in lines(table)])


def settings_of(text: str) -> dict[str, Any]:
    """Return the settings in ``text``, an inline table of TOML without its braces."""
    settings: dict[str, Any] = tomllib.loads(f"given = {{{text}}}")["given"]
    return settings


def _error(check: Callable[..., Any], case: Sequence[Any]) -> BaseException | None:
    try:
        check(*case)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all are shown
        return error
    return None
