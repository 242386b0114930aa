"""Measure AR3PO's claims: rollouts a prompt, groups without a correct response, the options of reuse, and the store.

python -m benchmarks.ar3po
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
from pathlib import Path
from typing import Any

import numpy as np

from apportion.lab.command import run
from apportion.lab.report.measures import Arm, summarise
from apportion.lab.report.results import Run, SeedInterval
from apportion.lab.report.with_labels import MEASURES
from apportion.lab.study.design import read_study
from apportion.lab.study.worker import run_directory
from benchmarks.common import write

COLUMNS = (
    "arm, area, area - GRPO 8, success, rollouts/prompt, per trained group, no correct, after reuse, informative, "
    "ratio variance, store"
)
CONFIG = Path(__file__).with_suffix(".toml")


def main() -> None:
    code = run(CONFIG, [], name="ar3po", resume=False, dry_run=False)
    if code:
        raise SystemExit(code)
    study = read_study(CONFIG, [], "ar3po", resume=False)
    folders = {arm: [run_directory(study.directory, arm, seed) for seed in study.seeds] for arm in study.allocators}
    summary = summarise(
        MEASURES, {arm: [Run.read(folder) for folder in mine] for arm, mine in folders.items()}, study.baseline
    )
    write(
        "ar3po",
        "AR3PO's claims, one by one",
        COLUMNS.split(", "),
        [_row(arm, [_steps(folder) for folder in folders[arm.name]]) for arm in summary],
        [
            f"Medium base, {study.training.problems} problems, {study.training.prompts_per_step} a step, "
            f"{study.training.rollouts:,} rollouts a run, GRPO, learning rate {study.training.learning_rate:g}; mean "
            "and 95% interval (Student's t) over seeds. grpo_5 is the control with as many rollouts a prompt as the "
            "stages take.",
        ],
        more=[
            "`per trained group` is the number of rollouts for each group in the loss with differing rewards. "
            "`no correct` is the share of prompts without a correct rollout, and `after reuse` the share of groups "
            "without one. `ratio variance` is the variance of the importance ratios of reused tokens in the loss: "
            "Option I starts them at 1, and Option II leaves them out.",
        ],
        seeds=list(study.seeds),
        cells={"rollouts_by_band": {arm.name: arm.rollouts_by_band for arm in summary}},
    )


def _steps(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if "counts" in record]


def _row(arm: Arm, runs: list[list[dict[str, Any]]]) -> list[str]:
    said = [[record.get("allocator", {}) for record in steps] for steps in runs]
    reuse = [[each["without_correct_after_reuse"] for each in own if "reused" in each] for own in said]
    ratios = [[record["reused_ratio_variance"] for record in steps if "reused_ratio" in record] for steps in runs]
    store = [own[-1].get("store_entries", np.nan) for own in said]
    return [
        arm.name,
        str(arm.area),
        arm.area_difference.signed,
        str(arm.success),
        f"{arm.rollouts_per_prompt:.2f}",
        str(SeedInterval.of([_per_trained_group(steps) for steps in runs])),
        f"{arm.without_correct:.3f}",
        _or_dash([np.mean(own) if own else np.nan for own in reuse], ".3f"),
        f"{arm.informative.mean:.3f}",
        _or_dash([np.mean(own) if own else np.nan for own in ratios], ".3f"),
        _or_dash(store, ".0f"),
    ]


def _per_trained_group(steps: list[dict[str, Any]]) -> float:
    """Return the number of rollouts for each group with differing rewards."""
    trained = sum(record["informative"] * np.count_nonzero(record["counts"]) for record in steps)
    return sum(sum(record["counts"]) for record in steps) / trained


def _or_dash(values: list[float], form: str) -> str:
    return "-" if np.isnan(values).any() else format(float(np.mean(values)), form)


if __name__ == "__main__":
    main()
