"""Rollouts that prime-rl saves, as JSON lines: flat rows, traces of verifiers, or episodes with traces.

prime-rl wrote ``rollouts/step_N/train_rollouts.jsonl`` with one rollout a line until July 2026, and writes
``rollouts/step_N/train/all/traces.jsonl`` since then, with one trace a line, and later one episode a line. The step is
that of the folder. prime-rl's own evaluations, and traces of agents that are not trained, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from apportion.records.importing.formats import resolved
from apportion.records.rollout_log import RecordError
from apportion.untrusted import shown


def is_prime_rl(row: Mapping[str, Any]) -> bool:
    """Return whether a row is an episode, a trace or a flat rollout of prime-rl or verifiers, by all that it has."""
    traces = row.get("traces")
    if isinstance(traces, list) and all(isinstance(trace, dict) for trace in traces):
        return True
    if isinstance(row.get("rewards", 0), (dict, NoneType)) and isinstance(row.get("task"), dict):
        return "traces" not in row
    flat = {"example_id", "reward"} <= row.keys() and not {"env_name", "task"}.isdisjoint(row)
    return flat and resolved("step", row, {}) is None


def prime_rollouts(row: Mapping[str, Any], at: str) -> Iterator[dict[str, Any]]:
    """Yield the rollouts of a row. Raise RecordError, which names the line."""
    if "traces" in row:
        yield from _of_episode(row, at)
    else:
        yield _of_trace(row, row, at) if "rewards" in row else _of_row(row)


def _of_episode(row: Mapping[str, Any], at: str) -> Iterator[dict[str, Any]]:
    """Yield the trained traces of an episode; a rollout without a reward for an episode that has no trace."""
    trained = [trace for trace in row["traces"] if inside(trace, "agent", "trainable") is not False]
    names = [str(inside(trace, "agent", "name")) for trace in trained]
    for trace, name in zip(trained, names, strict=True):
        made = _of_trace(trace, row, at)
        if len(set(names)) > 1:
            made |= {"id": f"{made['id']}/{name}", "group": f"{made['group']}/{name}"}
        yield made
    if not row["traces"]:
        yield _of_trace(row, row, at)


def _of_trace(trace: Mapping[str, Any], outer: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return the row of one trace. The reward is the weighted sum of its rewards, as verifiers defines it."""
    rewards = trace.get("rewards")
    parts = rewards.items() if isinstance(rewards, dict) else ()
    values = [_reward(name, cell, at) for name, cell in parts if cell is not None]
    calls = trace.get("calls")
    used = [inside(call, "usage", "completion_tokens") for call in (calls if isinstance(calls, list) else [])]
    task = trace.get("task") or outer.get("task")
    data = inside(task, "data") or task
    key = inside(task, "key") or inside(task, "hash") or inside(data, "idx") or inside(data, "example_id")
    key = inside(data, "idx") if key is None else key
    prompt = inside(data, "prompt") or inside(data, "question")
    environment = outer.get("env_name") or inside(outer, "env", "name")
    return {
        "id": prompt if key is None else f"{environment}/{key}" if environment else key,
        "prompt": prompt,
        "group": outer.get("group_id") or inside(outer, "group", "id"),
        "reward": sum(values) if values else None,
        "truncated": trace.get("is_truncated", trace.get("stop_condition")),
        "tokens": sum(used) if used and all(type(count) is int for count in used) else None,
    }


def _of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one rollout of the flat format. One that ended with an error has no reward there."""
    environment = row.get("env_name") or row.get("task")
    key = row.get("example_id")
    tokens = inside(row, "token_usage", "output_tokens")
    return {
        "id": f"{environment}/{key}" if environment and key is not None else key,
        "prompt": row.get("prompt"),
        "group": row.get("group_id"),
        "reward": row.get("reward") if row.get("error") is None else None,
        "truncated": row.get("is_truncated"),
        "tokens": tokens if type(tokens) in (int, float) else None,
    }


def _reward(name: str, cell: Any, at: str) -> float:
    """Return a score times its weight; a score alone has the weight 1."""
    parts: tuple[Any, Any] = (cell.get("score"), cell.get("weight", 1.0)) if isinstance(cell, dict) else (cell, 1.0)
    if not all(type(part) in (int, float) and abs(part) <= 1e12 for part in parts):
        raise RecordError(f"rewards must be finite numbers, got {shown(cell)} for {name} in {at}; correct it")
    return float(parts[0] * parts[1])


def inside(value: Any, *names: str) -> Any:
    """Return the value at the end of ``names`` in objects within each other, None if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value
