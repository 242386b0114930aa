"""TRL's metrics and table of completions for a generation batch of several rounds.

TRL logs each round separately. Its means are averaged over the rounds, weighted by the number of rows, terminated rows
or tool calls that each is a mean of. Metrics of groups and of rewards from votes are computed for the finished batch.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from trl.trainer.utils import nanstd

from apportion.trl.advantages import weighted_rewards, without_failures

Logged = Mapping[str, Sequence[float]]


class Logs(NamedTuple):
    """What TRL logged in one call: its metrics, its table of completions, and the number of ``rows`` of that."""

    metrics: Logged
    table: Mapping[str, Any]
    rows: int


def empty_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the columns of TRL's ``table`` of completions, ``_logs``, and without its limit on rows."""
    return {name: defaultdict(list) if isinstance(column, dict) else [] for name, column in table.items()}


def joined_table(calls: Sequence[Logs], columns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return TRL's table of completions with the rows of all ``calls``, and with ``columns`` {name: [N]} in it.

    TRL limits it to the rows of a generation batch, but under an allocator a batch may have more: it is limited to the
    rows of this one. A reward function may log an extra column in some calls only. Other rows have None there.
    """
    rows = [each.rows for each in calls]
    limited = partial(deque[Any], maxlen=sum(rows))

    def joined(parts: Sequence[Any]) -> Any:
        if not isinstance(parts[0], dict):
            filled = ([*own, *[None] * (count - len(own))] for own, count in zip(parts, rows, strict=True))
            return limited(chain.from_iterable(filled) if any(parts) else ())
        names = dict.fromkeys(chain.from_iterable(parts))
        return defaultdict(limited, {name: joined([own[name] for own in parts]) for name in names})

    table = joined([each.table for each in calls])
    for name, values in columns.items():
        (table if name == "advantages" else table["rewards"])[name] = limited(values)
    return dict(table)


def combined(calls: Sequence[Logs]) -> dict[str, float]:
    """Return TRL's metrics over all ``calls``. Those of a single one stay unchanged."""
    names = dict.fromkeys(chain.from_iterable(each.metrics for each in calls))
    return {name: _combined(name, [each for each in calls if each.metrics.get(name)]) for name in names}


def _combined(name: str, present: Sequence[Logs]) -> float:
    values = [_mean(each.metrics[name]) for each in present]
    if len(values) == 1:
        return values[0]
    if name == "num_tokens":
        return values[-1]
    last = name.rsplit("/", 1)[-1]
    weights = [_weight(name, each.metrics, each.rows) for each in present]
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight and value == value]
    if not known:
        return values[-1]
    if last.startswith(("min", "max")) and name.startswith(("completions/", "sampling/")):
        return (min if last.startswith("min") else max)(value for value, _ in known)
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)


def reward_metrics(scores: torch.Tensor, names: Sequence[str], weights: torch.Tensor) -> dict[str, float]:
    """Return TRL's metrics of ``scores`` [N, F]: of each reward function, and of the weighted sums."""
    scores = without_failures(scores)
    rewards, found = weighted_rewards(scores, weights), {}
    for i, name in enumerate(names):
        found[f"rewards/{name}/mean"] = torch.nanmean(scores[:, i]).item()
        found[f"rewards/{name}/std"] = nanstd(scores[:, i]).item()
    return found | {"reward": torch.nanmean(rewards).item(), "reward_std": nanstd(rewards).item()}


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
