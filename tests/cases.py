"""Tables of cases that one test walks: every case is tried, and all that fail are named at once."""

import re
import tomllib

import pytest


def lines(text):
    """Return the parts of each line of ``text``, which stand between ``=>``."""
    return [tuple(re.split(r" *=> ?", line.strip())) for line in text.strip().splitlines()]


def check_all(check, cases):
    """Call ``check`` with each of ``cases``. Fail with the cases for which it raises, and what it says."""
    cases = list(cases)
    wrong = [f"{str(case)[:500]}: {error}" for case in cases if (error := _error(check, case)) is not None]
    assert cases and not wrong, "\n".join(wrong)


def check_refused(error, act, cases):
    """Check that ``act(*values)`` raises ``error`` with the pattern ``message`` for each ``(*values, message)``."""

    def check(*case):
        with pytest.raises(error, match=case[-1]):
            act(*case[:-1])

    check_all(check, cases)


def assert_refused(make, cases):
    """Assert that ``make`` refuses each case by a ValueError of one line. The cases are (pattern, argument)."""

    def check(pattern, given):
        with pytest.raises(ValueError, match=pattern) as refused:
            make(given)
        assert "\n" not in str(refused.value)

    check_all(check, cases)


def refuse_lines(make, table):
    """Assert that ``make`` refuses what stands before ``=>`` in each line of ``table`` by the pattern behind it."""
    assert_refused(make, [(pattern, given) for given, pattern in lines(table)])


def settings_of(text):
    """Return the settings in ``text``, an inline table of TOML without its braces."""
    return tomllib.loads(f"given = {{{text}}}")["given"]


def _error(check, case):
    try:
        check(*case)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all are shown
        return error
    return None
