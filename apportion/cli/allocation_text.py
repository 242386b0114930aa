"""An allocation as text: tables of counts and of the gain over uniform counts, or JSON for programs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apportion.runs.json_text import json_text
from apportion.runs.text_table import text_table
from apportion.solve import Solution
from apportion.untrusted import one_line

MAX_ROWS, FIRST_ROWS, LONGEST_NAME = 20, 10, 40


def allocation_text(result: Solution, ids: Sequence[Any] | None) -> str:
    """Return counts beside uniform ones, and both objectives.

    Beyond 20 prompts only the first 10 are listed, followed by the range of the counts.

    >>> from apportion.solve import solve
    >>> print(allocation_text(solve([0.1, 0.5, 0.9], 24, high=12), None))
    prompt  rollouts  uniform
         0         7        8
         1        10        8
         2         7        8
    <BLANKLINE>
    gradient variance: 0.2311, uniform 0.2457 (ratio 0.9406)
    """
    number = len(result.counts)
    listed = number if number <= MAX_ROWS else FIRST_ROWS
    names = [one_line(str(name))[:LONGEST_NAME] for name in (range(listed) if ids is None else ids[:listed])]
    rows = [[names[q], str(result.counts[q]), str(result.uniform_counts[q])] for q in range(listed)]
    header = ["prompt" if ids is None else "id", "rollouts", "uniform"]
    table = text_table(rows, header, align="rrr")
    if listed < number:
        low, middle, high = np.quantile(result.counts, (0, 0.5, 1))
        table += f"\n... and {number - listed} more; --json gives all"
        table += f"\nrollouts of a prompt: {low:.0f} to {high:.0f}, {middle:g} at the median"
    return f"{table}\n\n{_objectives(result)}"


def allocation_json(settings: Mapping[str, Any], result: Solution, ids: Sequence[Any] | None) -> str:
    """Return one JSON object: ``settings``, counts [P], both objectives (null if undefined), and ``ids`` [P] if any.

    >>> from apportion.solve import solve
    >>> allocation_json({"budget": 6}, solve([0.5, 0.5], 6), ["a", "b"])[:58]
    '{"budget": 6, "prompts": 2, "counts": [3, 3], "measure": "'
    """
    uniform = {"counts": result.uniform_counts.tolist(), "objective": result.uniform_objective}
    counts = {"prompts": len(result.counts), "counts": result.counts.tolist()}
    score = {"measure": result.measure, "objective": result.objective, "uniform": uniform}
    named = {} if ids is None else {"ids": [id if id is None or isinstance(id, (str, int)) else str(id) for id in ids]}
    return json_text({**settings, **counts, **score, **named})


def _objectives(result: Solution) -> str:
    name, ours, uniform = result.measure.replace("_", " "), result.objective, result.uniform_objective
    if not (math.isfinite(ours) and math.isfinite(uniform)):  # such as the variance of a group of one
        return f"{name}: undefined, because some prompt has a group of one"
    ratio = f" (ratio {ours / uniform:.4g})" if uniform else ""
    return f"{name}: {ours:.4g}, uniform {uniform:.4g}{ratio}"
