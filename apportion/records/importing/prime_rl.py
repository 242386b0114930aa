"""Rollouts that prime-rl saves, as JSON lines: flat rows, traces of verifiers, or episodes with traces.

prime-rl wrote ``rollouts/step_N/train_rollouts.jsonl`` with one rollout a line until July 2026, and writes
``rollouts/step_N/train/all/traces.jsonl`` since then, with one trace a line, and later one episode a line. The step is
that of the folder. prime-rl's own evaluations, and traces of agents that are not trained, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from apportion.records.importing.names import resolved
from apportion.records.rollout_log import RecordError
from apportion.untrusted import shown

PLACES = {
    "id": "example_id task/key task/hash task/data/idx task/data/example_id task/idx task/example_id",
    "prompt": "prompt task/data/prompt task/data/question task/prompt task/question",
    "group": "group_id group/id",
    "truncated": "is_truncated stop_condition",
    "tokens": "token_usage/output_tokens",
}
"""Where a rollout, its trace or its episode holds each value, the likeliest path first."""


def is_prime_rl(row: Mapping[str, Any]) -> bool:
    """Return whether a row has all fields of an episode, a trace or a flat rollout of prime-rl or verifiers."""
    traces = row.get("traces")
    if isinstance(traces, list) and all(isinstance(trace, dict) for trace in traces):
        return True
    if isinstance(row.get("rewards", 0), (dict, NoneType)) and isinstance(row.get("task"), dict):
        return "traces" not in row
    flat = {"example_id", "reward"} <= row.keys() and not {"env_name", "task"}.isdisjoint(row)
    return flat and resolved("step", row, {}) is None


def prime_rollouts(row: Mapping[str, Any], at: str) -> Iterator[dict[str, Any]]:
    """Yield the rollouts of a row: an episode's trained traces, or one rollout without a reward if there is no trace.

    Raises RecordError, which names the line.
    """
    traces = row.get("traces", [row])
    trained = [trace for trace in traces if inside(trace, "agent/trainable") is not False]
    names = [str(inside(trace, "agent/name")) for trace in trained]
    for trace, name in zip(trained, names, strict=True):
        made = _rollout({**row, **trace}, at)
        if len(set(names)) > 1:
            made |= {"id": f"{made['id']}/{name}", "group": f"{made['group']}/{name}"}
        yield made
    if not traces:
        yield _rollout(row, at)


def _rollout(row: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return the row of one rollout. Its reward is the weighted sum of its rewards, as verifiers defines it.

    In the flat format one that ended with an error has no reward.
    """
    made = placed(row, PLACES)
    environment = inside(row, "env_name env/name task")
    if made["id"] is None:
        made["id"] = made["prompt"]
    elif isinstance(environment, str):
        made["id"] = f"{environment}/{made['id']}"
    calls, rewards = row.get("calls"), row.get("rewards")
    if isinstance(calls, list) and calls:
        used = [inside(call, "usage/completion_tokens") for call in calls]
        made["tokens"] = sum(used) if all(type(count) is int for count in used) else None
    if "rewards" in row or "traces" in row:
        parts = rewards.items() if isinstance(rewards, dict) else ()
        values = [_reward(name, cell, at) for name, cell in parts if cell is not None]
        return made | {"reward": sum(values) if values else None}
    return made | {"reward": row.get("reward") if row.get("error") is None else None}


def _reward(name: str, cell: Any, at: str) -> float:
    """Return a score times its weight; a score alone has the weight 1."""
    parts: tuple[Any, Any] = (cell.get("score"), cell.get("weight", 1.0)) if isinstance(cell, dict) else (cell, 1.0)
    if not all(type(part) in (int, float) and abs(part) <= 1e12 for part in parts):
        raise RecordError(f"rewards must be finite numbers, got {shown(cell)} for {name} in {at}; correct it")
    return float(parts[0] * parts[1])


def placed(row: Any, places: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of each role. ``places`` maps a role to its possible paths in ``row``."""
    return {role: inside(row, paths) for role, paths in places.items()}


def inside(row: Any, paths: str) -> Any:
    """Return the value at the first of ``paths`` that has one, such as "env_name env/name"; None if none has.

    A path leads through objects within each other, and of a list through its first entry.
    """
    for path in paths.split():
        value = row
        for name in path.split("/"):
            value = value[0] if isinstance(value, list) and value else value
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None
