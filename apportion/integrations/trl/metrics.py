"""What is logged: TRL's metrics as one batch would have them, and how the rollouts were spent.

TRL logs each round by itself. Of several rounds means are weighted by what they are means of: rows, rows that ended,
tool calls. What depends on the groups, or on rewards that votes gave, is computed anew over the finished batch.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.utils import nanstd

from apportion.integrations.trl.ragged import weighted

Logged = Mapping[str, Sequence[float]]


@dataclass
class Metrics:
    """What TRL logged in each round, and how many rows that had."""

    rounds: list[tuple[Logged, int]] = field(default_factory=list)

    def add(self, logged: Logged, rows: int) -> None:
        """One round more."""
        self.rounds.append((logged, rows))

    def whole(self) -> dict[str, float]:
        """TRL's metrics of all rounds together; those of a single round as they are."""
        names = list(dict.fromkeys(name for logged, _ in self.rounds for name in logged))
        return {name: self._joined(name) for name in names}

    def _joined(self, name: str) -> float:
        present = [(logged, rows) for logged, rows in self.rounds if logged.get(name)]
        values = [_mean(logged[name]) for logged, _ in present]
        if len(values) == 1:
            return values[0]
        if name == "num_tokens":
            return values[-1]
        last = name.rsplit("/", 1)[-1]
        weights = [_behind(name, logged, rows) for logged, rows in present]
        known = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight and value == value]
        if not known:
            return values[-1]
        if last.startswith(("min", "max")) and name.startswith(("completions/", "sampling/")):
            return (min if last.startswith("min") else max)(value for value, _ in known)
        return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)


def open_table(logs: dict[str, Any]) -> None:
    """Empties the columns of TRL's table of completions, its ``_logs``, and lets them grow with the batch.

    TRL bounds them by the rows of a batch, which are not always as many here.
    """
    for name, column in logs.items():
        logs[name] = defaultdict(deque) if isinstance(column, dict) else deque()


def close_table(logs: dict[str, Any], rows: int, columns: Mapping[str, Sequence[float]]) -> None:
    """Bounds the columns again, by the ``rows`` of this batch; ``columns`` [N], by name, take the place of TRL's."""
    for name, values in columns.items():
        column = logs["advantages"] if name == "advantages" else logs["rewards"][name]
        column.clear()
        column.extend(values)
    for name, column in logs.items():
        if isinstance(column, dict):
            bounded = {key: deque(values, maxlen=rows) for key, values in column.items()}
            logs[name] = defaultdict(lambda: deque(maxlen=rows), bounded)
        else:
            logs[name] = deque(column, maxlen=rows)


def reward_metrics(scores: torch.Tensor, names: Sequence[str], weights: torch.Tensor) -> dict[str, float]:
    """TRL's reward metrics of rows with ``scores`` [N, F]: of each reward function, and of their weighted sum."""
    rewards, found = weighted(scores, weights), {}
    for i, name in enumerate(names):
        found[f"rewards/{name}/mean"] = torch.nanmean(scores[:, i]).item()
        found[f"rewards/{name}/std"] = nanstd(scores[:, i]).item()
    return found | {"reward": torch.nanmean(rewards).item(), "reward_std": nanstd(rewards).item()}


def _behind(name: str, logged: Logged, rows: int) -> float:
    """How much stands behind a round's value of a metric."""
    if name.startswith("completions/") and "terminated" in name:
        return round(rows * (1 - _mean(logged["completions/clipped_ratio"])))
    if name == "tools/failure_frequency":
        return rows * _mean(logged["tools/call_frequency"])
    return rows


def _mean(values: Sequence[Any]) -> float:
    known = [float(value) for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
