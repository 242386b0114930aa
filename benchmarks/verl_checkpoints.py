"""Measure what AR3PO's stored responses add to a checkpoint of verl: seconds and MiB, in one file and in shared ones.

    python -m benchmarks.verl_checkpoints [--answers 10000] [--tokens 4096] [--new 200] [--checkpoints 5]

A run stores responses, saves a checkpoint, and then saves one more after each ``--new`` further responses, which push
out as many old ones. "In one file" is what ``save_state`` writes: everything, each time. "Shared" is what the callback
of verl's trainer writes: the responses are in files that the checkpoints share by hard links.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from verl.experimental.agent_loop import AgentLoopOutput

from apportion import AR3PO, Rollout
from apportion.engines.saved_parts import SharedParts, load_with_parts
from apportion.engines.saved_state import save_state
from apportion.types import Batch, Belief, Plan, Prompt
from apportion.verl.checkpoints import FILE, KIND, RECORDS, is_reusable
from apportion.verl.coordinator.messages import WrittenRollout
from apportion.verl.packed_outputs import pack_output
from benchmarks.common import RESULTS, options, spread, write

PROMPT_TOKENS = 200
VOCABULARY = 150_000
MIB = 2**20
STORED = {
    "stop_gradient": ("stop_gradient", True),
    "recompute, without log-probabilities": ("recompute", False),
    "recompute or replay, with log-probabilities": ("replay", True),
}
"""The value of ``reuse``, and whether verl returns log-probabilities."""

COLUMNS = ["reuse", "checkpoint", "first s", "further s", "first MiB", "further MiB", "resume s", "first s after it"]


@dataclass(frozen=True)
class Sizes:
    """How many ``answers`` of so many ``tokens`` are stored, how many are ``new`` in each further checkpoint."""

    answers: int
    tokens: int
    new: int
    checkpoints: int


def responses(stored: str, tokens: int, rng: np.random.Generator) -> Iterator[Rollout]:
    """Yield correct rollouts as a worker sends them to the coordinator."""
    reuse, logprobs = STORED[stored]
    number = 0
    while True:
        output = AgentLoopOutput(
            prompt_ids=rng.integers(0, VOCABULARY, PROMPT_TOKENS).tolist(),
            response_ids=rng.integers(0, VOCABULARY, tokens).tolist(),
            response_mask=[1] * tokens,
            response_logprobs=(-rng.exponential(size=tokens)).tolist() if logprobs else None,
            reward_score=1.0,
            num_turns=2,
            metrics={},
            extra_fields={"reward_extra_info": {"acc": 1.0}, "turn_scores": [], "tool_rewards": []},
        )
        outputs = None if reuse == "stop_gradient" else (pack_output(output),)
        yield Rollout(True, None, 1.0, WrittenRollout(rng.bytes(16), f"uid {number}", 0, (tokens,), outputs), tokens)
        number += 1


def batch_of(rollouts: Sequence[Rollout], first: int) -> Batch:
    """Return a finished batch in which each prompt has one of ``rollouts``."""
    prompts = [Prompt(f"prompt {first + i}") for i in range(len(rollouts))]
    started = Batch.start(prompts, Belief.uniform(len(prompts)))
    return started.add(Plan([1] * len(prompts)), [[rollout] for rollout in rollouts])


def savers() -> dict[str, Callable[[], Callable[[Path, str, Any], None]]]:
    """Return what makes the function that saves the checkpoints of one process, by what they are."""
    return {"in one file": lambda: save_state, "shared": lambda: SharedParts(is_reusable).save}


def resumed_saver(path: Path, kind: str) -> Callable[[Path, str, Any], None]:
    """Return the function that saves for a process that resumed from ``path``."""
    if kind == "in one file":
        return save_state
    shared = SharedParts(is_reusable)
    shared.adopt(path, KIND)
    return shared.save


def measure(stored: str, kind: str, sizes: Sizes, seed: int = 0) -> list[object]:
    """Return a row of the table."""
    rollouts = responses(stored, sizes.tokens, np.random.default_rng(seed))
    allocator = AR3PO(reuse=STORED[stored][0], entries=sizes.answers)  # type: ignore[arg-type]
    allocator.observe(batch_of([next(rollouts) for _ in range(sizes.answers)], 0))
    seconds, written = [], []
    with tempfile.TemporaryDirectory() as folder:
        save = savers()[kind]()
        for step in range(sizes.checkpoints + 1):
            if step:
                new = [next(rollouts) for _ in range(sizes.new)]
                allocator.observe(batch_of(new, sizes.answers + step * sizes.new))
            path = Path(folder) / f"global_step_{step}" / FILE
            seconds.append(saving(save, path, allocator))
            written.append(bytes_under(Path(folder)) / MIB - sum(written))
        resumed = AR3PO(reuse=allocator.reuse, entries=sizes.answers)
        began = time.perf_counter()
        resumed.load_state_dict(load_with_parts(path, KIND, remedy="measure again", records=RECORDS)["allocator"])
        resuming = time.perf_counter() - began
        began = time.perf_counter()
        save = resumed_saver(path, kind)
        again = time.perf_counter() - began + saving(save, Path(folder) / "global_step_last" / FILE, resumed)
    first, *further = seconds
    return [
        stored,
        kind,
        f"{first:.2f}",
        spread(further, ".2f"),
        f"{written[0]:.1f}",
        spread(written[1:], ".1f"),
        f"{resuming:.2f}",
        f"{again:.2f}",
    ]


def saving(save: Callable[[Path, str, Any], None], path: Path, allocator: AR3PO) -> float:
    """Return the seconds on the clock that a checkpoint of ``allocator`` takes, until it is on the disk."""
    path.parent.mkdir()
    began = time.perf_counter()
    save(path, KIND, {"allocator": allocator.state_dict()})
    return time.perf_counter() - began


def bytes_under(folder: Path) -> int:
    """Return the bytes of all files, each counted once however many links it has."""
    return sum({file.stat().st_ino: file.stat().st_size for file in folder.rglob("*") if file.is_file()}.values())


def study(sizes: Sizes, results: Path = RESULTS) -> None:
    """Write the table of all kinds of stored responses."""
    load = os.getloadavg()[0]
    rows = []
    for stored in STORED:
        for kind in savers():
            rows.append(measure(stored, kind, sizes))
            print(rows[-1], flush=True)
    write(
        "verl_checkpoints",
        "What stored responses add to a checkpoint of verl",
        COLUMNS,
        rows,
        [
            f"AR3PO with {sizes.answers:,} responses of {sizes.tokens:,} tokens and prompts of {PROMPT_TOKENS}. First "
            f"checkpoint, then {sizes.checkpoints} further ones, each after {sizes.new:,} new responses: mean and 95% "
            "t interval. Seconds on the clock, with fsync, on a busy machine; MiB are those added to the disk.",
        ],
        more=[
            "`resume s` reads the last checkpoint into an allocator. `first s after it` is the first checkpoint of "
            "that process, which checks the files that it uses again. The first rows of each kind write everything "
            f"each time. 1-minute load of the machine when the run began: {load:.1f}.",
        ],
        seeds=[0],
        results=results,
    )


def main() -> None:
    given = options(__doc__, answers=10_000, tokens=4096, new=200, checkpoints=5, results=RESULTS)
    study(Sizes(given.answers, given.tokens, given.new, given.checkpoints), given.results)


if __name__ == "__main__":
    main()
