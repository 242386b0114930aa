"""The values of a cell, and the committed figures of other benchmarks that a claim may read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.common import RESULTS

Values = Mapping[str, Any]
"""What a cell measured: JSON values by name."""


def headline(table: str, row: str, column: str) -> str:
    """Return a cell of a table under ``benchmarks/results``, which ``headlines.toml`` must name."""
    return json.loads((RESULTS / f"{table}.json").read_text(encoding="utf-8"))[row][column]
