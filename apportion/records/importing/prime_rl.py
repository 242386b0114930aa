"""Rollouts that prime-rl saves, as JSON lines: flat rows, traces of verifiers, or episodes with traces.

prime-rl wrote ``rollouts/step_N/train_rollouts.jsonl`` with one rollout a line until July 2026, and writes
``rollouts/step_N/train/all/traces.jsonl`` since then, with one trace a line, and later one episode a line. The step is
that of the folder, and 0 for an evaluation of verifiers, which has none. prime-rl's own evaluations, and traces of
agents that are not trained, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from apportion.records.importing.files import rows_of
from apportion.records.rollout_log import RecordError
from apportion.rows import Rows
from apportion.untrusted import shown

_STEP = re.compile(r"step_([0-9]{1,15})")


def step_of(path: Path) -> int | None:
    """Return the step in the name of a folder of ``path``; None for an evaluation, which has none."""
    folders = [match for part in path.absolute().parts if (match := _STEP.fullmatch(part))]
    return int(folders[-1][1]) if folders else None


def rollouts_of(path: Path, said: dict[str, None]) -> Rows:
    """Yield a row for each rollout of a file, with its line. Raise ValueError, which names the line.

    What is ``said`` of a last row that was not written whole is put there.
    """
    step = step_of(path)
    for line, row in rows_of(path, said):
        at = f"{path} line {line}"
        own = row.get("step", 0) if step is None else step
        if "traces" in row:
            yield from ((line, each) for each in _of_episode(row, own, at))
        else:
            yield line, _of_trace(row, own, row, at) if "rewards" in row else _of_row(row, own)


def _of_episode(row: Mapping[str, Any], step: int, at: str) -> Iterator[dict[str, Any]]:
    """Yield the trained traces of an episode; a rollout without a reward for an episode that has no trace."""
    traces = row["traces"]
    if not isinstance(traces, list) or not all(isinstance(trace, dict) for trace in traces):
        raise RecordError(f"traces must be a list of objects, got {shown(traces)} in {at}; correct it")
    trained = [trace for trace in traces if _inside(trace, "agent", "trainable") is not False]
    names = [str(_inside(trace, "agent", "name")) for trace in trained]
    for trace, name in zip(trained, names, strict=True):
        made = _of_trace(trace, step, row, at)
        if len(set(names)) > 1:
            made |= {"id": f"{made['id']}/{name}", "group": f"{made['group']}/{name}"}
        yield made
    if not traces:
        yield _of_trace(row, step, row, at)


def _of_trace(trace: Mapping[str, Any], step: int, outer: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return the row of one trace. The reward is the weighted sum of its rewards, as verifiers defines it."""
    rewards = trace.get("rewards") or {}
    if not isinstance(rewards, dict):
        raise RecordError(f"rewards must be an object, got {shown(rewards)} in {at}; correct it")
    values = [_reward(name, cell, at) for name, cell in rewards.items() if cell is not None]
    calls = trace.get("calls")
    used = [_inside(call, "usage", "completion_tokens") for call in (calls if isinstance(calls, list) else [])]
    task = trace.get("task") or outer.get("task")
    data = _inside(task, "data") or task
    key = _inside(task, "key") or _inside(task, "hash") or _inside(data, "idx") or _inside(data, "example_id")
    key = _inside(data, "idx") if key is None else key
    prompt = _inside(data, "prompt") or _inside(data, "question")
    environment = outer.get("env_name") or _inside(outer, "env", "name")
    if key is None and prompt is None:
        raise RecordError(f"a task must have a key, hash, idx or prompt, got {shown(task)} in {at}; correct it")
    return {
        "step": step,
        "id": prompt if key is None else f"{environment}/{key}" if environment else key,
        "prompt": prompt,
        "group": outer.get("group_id") or _inside(outer, "group", "id"),
        "reward": sum(values) if values else None,
        "tokens": sum(used) if used and all(type(count) is int for count in used) else None,
    }


def _of_row(row: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return the row of one rollout of the flat format. One that ended with an error has no reward there."""
    environment = row.get("env_name") or row.get("task")
    key = row.get("example_id")
    tokens = _inside(row, "token_usage", "output_tokens")
    return {
        "step": step,
        "id": f"{environment}/{key}" if environment and key is not None else key,
        "prompt": row.get("prompt"),
        "group": row.get("group_id"),
        "reward": row.get("reward") if row.get("error") is None else None,
        "tokens": tokens if type(tokens) in (int, float) else None,
    }


def _reward(name: str, cell: Any, at: str) -> float:
    """Return a score times its weight; a score alone has the weight 1."""
    parts: tuple[Any, Any] = (cell.get("score"), cell.get("weight", 1.0)) if isinstance(cell, dict) else (cell, 1.0)
    if not all(type(part) in (int, float) and abs(part) <= 1e12 for part in parts):
        raise RecordError(f"rewards must be finite numbers, got {shown(cell)} for {name} in {at}; correct it")
    return float(parts[0] * parts[1])


def _inside(value: Any, *names: str) -> Any:
    """Return the value at the end of ``names`` in objects within each other, None if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value
