"""TRL's metrics and table of completions for a generation batch of several rounds.

TRL logs each round separately. Its means are averaged over the rounds, weighted by the number of rows, terminated rows
or tool calls that each is a mean of. Metrics of groups and of rewards from votes are computed for the finished batch.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from trl.trainer.utils import nanstd

from apportion.trl.advantages import weighted_rewards, without_failures

Logged = Mapping[str, Sequence[float]]


def combined(rounds: Sequence[tuple[Logged, int]]) -> dict[str, float]:
    """Return TRL's metrics over all ``rounds``, each with its number of rows. Those of a single one stay unchanged."""
    names = dict.fromkeys(name for logged, _ in rounds for name in logged)
    return {name: _combined(name, [each for each in rounds if each[0].get(name)]) for name in names}


def _combined(name: str, present: Sequence[tuple[Logged, int]]) -> float:
    values = [_mean(logged[name]) for logged, _ in present]
    if len(values) == 1:
        return values[0]
    if name == "num_tokens":
        return values[-1]
    last = name.rsplit("/", 1)[-1]
    weights = [_weight(name, logged, rows) for logged, rows in present]
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight and value == value]
    if not known:
        return values[-1]
    if last.startswith(("min", "max")) and name.startswith(("completions/", "sampling/")):
        return (min if last.startswith("min") else max)(value for value, _ in known)
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)


def open_table(logs: dict[str, Any]) -> None:
    """Empty TRL's table of completions, ``_logs``, and remove its limit on rows.

    TRL limits it to the rows of a generation batch, but under an allocator a batch may have more.
    """
    for column in logs.values():
        column.clear()
    _limit_rows(logs, None)


@contextmanager
def whole_columns(logs: dict[str, Any]) -> Iterator[None]:
    """Give each extra column of TRL's table a value in each row of a round: None in rows that a function did not log.

    A reward function may log a column in some calls only. TRL calls it once a batch, an allocator once a round.
    """
    columns, before = logs["extra"], len(logs["prompt"])
    known = set(columns)
    yield
    for name, values in columns.items():
        if name not in known:
            values.extendleft([None] * before)
        values.extend([None] * (len(logs["prompt"]) - len(values)))


def close_table(logs: dict[str, Any], rows: int, columns: Mapping[str, Sequence[float]]) -> None:
    """Limit TRL's table to the ``rows`` of this batch again, and replace its columns by ``columns`` {name: [N]}."""
    for name, values in columns.items():
        column = logs["advantages"] if name == "advantages" else logs["rewards"][name]
        column.clear()
        column.extend(values)
    _limit_rows(logs, rows)


def reward_metrics(scores: torch.Tensor, names: Sequence[str], weights: torch.Tensor) -> dict[str, float]:
    """Return TRL's metrics of ``scores`` [N, F]: of each reward function, and of the weighted sums."""
    scores = without_failures(scores)
    rewards, found = weighted_rewards(scores, weights), {}
    for i, name in enumerate(names):
        found[f"rewards/{name}/mean"] = torch.nanmean(scores[:, i]).item()
        found[f"rewards/{name}/std"] = nanstd(scores[:, i]).item()
    return found | {"reward": torch.nanmean(rewards).item(), "reward_std": nanstd(rewards).item()}


def _limit_rows(logs: dict[str, Any], rows: int | None) -> None:
    for name, column in logs.items():
        if isinstance(column, dict):
            limited = {key: deque(values, maxlen=rows) for key, values in column.items()}
            logs[name] = defaultdict(lambda: deque(maxlen=rows), limited)
        else:
            logs[name] = deque(column, maxlen=rows)


def _weight(name: str, logged: Logged, rows: int) -> float:
    """Return the number of rows, tokens or tool calls that a round's metric was averaged over."""
    if name == "kl":
        return rows * _mean(logged["completions/mean_length"])
    if name.startswith("completions/") and "terminated" in name:
        return round(rows * (1 - _mean(logged["completions/clipped_ratio"])))
    if name == "tools/failure_frequency":
        return rows * _mean(logged["tools/call_frequency"])
    return rows


def _mean(values: Sequence[Any]) -> float:
    known = [float(value) for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
