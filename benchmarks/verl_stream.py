"""verl's ``separate_async`` with and without a stream, if a rollout takes as long as recorded answers are.

    python -m benchmarks.verl_stream               # real runs of verl on a CPU
    python -m benchmarks.verl_stream --seeds 1

The policy is tiny. Each rollout holds one of ``SLOTS`` slots, first come, first served, for a time in proportion to the
tokens of a recorded answer to a recorded question. So the seconds are those of sampling, and of verl's own work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from apportion.verl.streaming import BUFFER
from benchmarks.common import spread, write
from benchmarks.recorded import VOTES
from tests.verl import harness
from tests.verl.cpu import assets as made
from tests.verl.runs import allocated, trained
from tests.verl.test_separate import SEPARATE

SEEDS, STEPS, SKIPPED = 3, 12, 2
SLOTS, SECONDS = 12, 0.6
"""Slots, and the mean time of a rollout. So a step of 16 rollouts takes .8 s of all slots at least."""
RULES = {
    "uniform": "{name: uniform, rollouts_per_prompt: 4}",
    "vip": "{name: vip, rollouts_per_prompt: 4, high: 8, predictor: counts}",
    "hora": "{name: hora, rollouts_per_prompt: 4, pre_rollouts: 2, high: 8}",
}
WAYS = {"rounds": {}, "stream": {"stream": True}, f"stream, {SLOTS} slots": {"stream": True, "slots": SLOTS}}
COLUMNS = (
    "rule", "decided in", "seconds a step", "slots in use", "padding", "mini-batches a step", "oldest rollout, steps",
)  # fmt: skip
NOTES = (
    f"Real runs of verl on a CPU with a tiny policy: {STEPS} steps of two updates of two prompts, {SKIPPED} of them "
    f"left out, and {SLOTS} slots. A rollout holds a slot for {SECONDS:g} s on average, in proportion to the tokens of "
    "a recorded answer of o3-mini to a question of AIME 2024, capped at the 99th percentile. Slots in use are from the "
    "first to the last fifth of the rollouts. Padding is the share of masked rows that verl trains on. `rounds` run "
    "under `max_off_policy_strategy=wait`, and all under a threshold of 2 steps.",
)
_slots: list[asyncio.Semaphore] = []


class SleepingAgentLoop(SingleTurnAgentLoop):  # type: ignore[misc]
    """Holds a slot for as long as the recorded answer of the question, then does as verl's."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Sleep, and write down when the slot was held."""
        records = Path(os.environ["VERL_TEST_RECORDS"])
        lengths = json.loads((records / "lengths.json").read_text(encoding="utf-8"))
        own = lengths[int(kwargs["index"]) % len(lengths)]
        _slots.extend([] if _slots else [asyncio.Semaphore(SLOTS)])
        async with _slots[0]:
            began = time.time()
            number = _counted(int(kwargs["index"]))
            await asyncio.sleep(SECONDS * own[number % len(own)])
            with (records / "slots.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([began, time.time()]) + "\n")
        return await super().run(sampling_params, **kwargs)


_asked: dict[int, int] = {}


def _counted(index: int) -> int:
    _asked[index] = _asked.get(index, -1) + 1
    return _asked[index]


def lengths(seed: int) -> list[list[float]]:
    """Return the lengths of answers to 16 questions of AIME, over their mean, at most their 99th percentile."""
    rng, table = np.random.default_rng(seed), pd.read_parquet(VOTES)
    recorded = table[table.dataset == "aime24"].tokens.tolist()
    some = [rng.permutation(recorded[i]) for i in rng.choice(len(recorded), 16, replace=False)]
    most = np.percentile(np.concatenate(some), 99)
    capped = [np.minimum(own, most) for own in some]
    return [(own / np.concatenate(capped).mean()).tolist() for own in capped]


def measured(rule: str, way: str, seed: int, assets: Path, python: str) -> list[float]:
    """Return seconds a step, share of slots in use, share of padding, updates of the optimiser a step, oldest age."""
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        records = Path(folder, "records")
        records.mkdir()
        (records / "lengths.json").write_text(json.dumps(lengths(seed)), encoding="utf-8")
        loops = Path(folder, "loops.yaml")
        loops.write_text("- name: sleeps\n  _target_: benchmarks.verl_stream.SleepingAgentLoop\n", encoding="utf-8")
        buffer = [f"trainer.v1.sampler.custom_sampler.{name}={value}" for name, value in BUFFER.items()]
        overrides = allocated(
            RULES[rule], *SEPARATE, *(buffer if way != "rounds" else ()), f"trainer.total_training_steps={STEPS}",
            "trainer.v1.sampler.max_off_policy_threshold=2", "trainer.v1.sampler.max_off_policy_strategy=wait",
            "actor_rollout_ref.rollout.agent.default_agent_loop=sleeps",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}", **WAYS[way],
        )  # fmt: skip
        done = harness.run(folder, assets, overrides, python=python, seconds=500)
        if done.status:
            raise RuntimeError(done.output[-3000:])
        seconds = [metrics["timing_s/step"] for metrics in done.metrics][SKIPPED:]
        held = [json.loads(line) for line in (records / "slots.jsonl").read_text(encoding="utf-8").splitlines()]
        steps = range(1 + SKIPPED, 1 + STEPS)
        rows = [done.rows(step) for step in steps]
        padding = [len(own) - len(trained(own)) for own in rows]
        stale = [
            step - 1 - row["extra_fields"]["min_global_steps"]
            for step, own in zip(steps, rows, strict=True)
            for row in trained(own)
        ]
        ends = sorted(end for _, end in held)
        first, last = ends[len(ends) // 5], ends[-len(ends) // 5]
        used = sum(max(0.0, min(end, last) - max(began, first)) for began, end in held) / (SLOTS * (last - first))
        share = sum(padding) / sum(map(len, rows))
        return [float(np.mean(seconds)), used, share, sum(map(len, rows)) / 8 / len(rows), float(max(stale))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds = parser.parse_args(arguments).seeds
    rows = []
    with tempfile.TemporaryDirectory() as assets, harness.warmed() as python:
        made.write(Path(assets))
        for rule in RULES:
            for way in WAYS:
                found = np.array([measured(rule, way, seed, Path(assets), python) for seed in range(seeds)]).T
                print(rule, way, found.round(3).tolist(), flush=True)
                forms = (".2f", ".2f", ".2f", ".2f")
                cells = [spread(column, form) for column, form in zip(found[:4], forms, strict=True)]
                rows.append([rule, way, *cells, f"{found[4].max():.0f}"])
    if seeds == SEEDS:
        write(
            "verl_stream", "verl's separate_async in rounds and by a stream", COLUMNS, rows, NOTES, seeds=range(seeds)
        )


if __name__ == "__main__":
    main()
