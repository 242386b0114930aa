"""Learning curves of every allocator at three learning rates: area under the exact success curve, paired by seed.

Each study lies under ``runs/learning-curves-RATE`` and resumes; this only collects them into one table.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
from pathlib import Path

from apportion.lab.design import read_study
from apportion.lab.results import Interval
from apportion.lab.study import run
from benchmarks.common import write

CONFIG = Path(__file__).with_suffix(".toml")
LEARNING_RATES = ("2.5e-4", "5e-4", "1e-3")


def main() -> None:
    rows, summaries = [], {}
    for rate in LEARNING_RATES:
        name, overrides = f"learning-curves-{rate}", [f"training.learning_rate={rate}"]
        code = run(CONFIG, overrides, name=name, resume=False, dry_run=False)
        if code:
            raise SystemExit(code)
        study = read_study(CONFIG, overrides, name, resume=False)
        summaries[rate] = json.loads((study.directory / "summary.json").read_text())
        rows += [_row(rate, arm) for arm in summaries[rate]]
    write(
        "learning_curves",
        "Learning curves: allocators against uniform, at three learning rates",
        ["rate", "allocator", "success", "area", "area - uniform", "pass@32", "rollouts/prompt", "updates"],
        rows,
        [
            "Medium base, 512 training prompts, RLOO, 30,720 rollouts a run, 32 prompts a step; success is exact on "
            "1,000 held-out prompts. Mean and 95% interval (Student's t) over seeds; differences are paired by seed "
            "and share prompts, order and base. vip_shuffled deals VIP's predictions to the wrong prompts; uniform_4 "
            "spends the same rollouts on twice the updates. uniform is the matched-n control of all that spend 8.",
        ],
        seeds=list(study.seeds),
        extra={"summaries": summaries},
    )


def _row(rate: str, arm: dict) -> list[str]:
    intervals = [str(Interval(**arm[key])) for key in ("success", "area", "area_difference", "pass_32")]
    return [rate, arm["name"], *intervals, f"{arm['rollouts_per_prompt']:.1f}", f"{arm['updates']:.0f}"]


if __name__ == "__main__":
    main()
