"""The values of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]
"""What a cell measured: JSON values by name."""
