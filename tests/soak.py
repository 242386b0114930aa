"""Which cases of a sweep stand in the suite, and which only in ``make soak``."""

from __future__ import annotations

from typing import Any

import pytest


def case(*values: Any, suite: bool | int, id: str | None = None) -> Any:
    """Return a case of a parametrised test. Unless it is in the ``suite``, only ``make soak`` runs it."""
    return pytest.param(*values, marks=() if suite else pytest.mark.soak, id=id)
