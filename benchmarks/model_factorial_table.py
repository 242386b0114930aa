"""Write the table of what ``model_factorial`` measured.

python -m benchmarks.model_factorial_table FILE
"""

import json
import sys
from pathlib import Path

import numpy as np

from apportion.lab.report.results import SeedInterval
from benchmarks.common import spread, write
from benchmarks.methods import FACTORS, contrasts
from benchmarks.model_factorial import ARMS, CONTROL, RATES, SEEDS, SHAPES, TUNING_SEED, UPDATES, area, best


def runs_of(measured, task):
    """Return the runs of each arm with fresh seeds, in the order of the seeds."""
    every = [run for name, own in measured.items() if name.startswith(f"seeds {task}") for run in own["runs"]]
    return {arm: sorted((run for run in every if run["arm"] == arm), key=lambda run: run["seed"]) for arm in ARMS}


def main(file):
    measured = json.loads(Path(file).read_text(encoding="utf-8"))
    rows, notes = list[list[object]](), list[str]()
    for task in ("sums", "between"):
        rates, runs = best(measured, task), runs_of(measured, task)
        areas = {arm: np.array([area(run) for run in mine]) for arm, mine in runs.items()}
        rows += [
            [
                f"{task}, {arm}",
                f"{rates[arm]:g}",
                spread([run["pass"][-1] for run in mine], ".3f"),
                SeedInterval.of(areas[arm] - areas[CONTROL]).signed,
                f"{np.mean([run['entropy'][-1] for run in mine]):.2f}",
            ]
            for arm, mine in runs.items()
        ]
        edge = [arm for arm, rate in rates.items() if rate in (RATES[0], RATES[-1])]
        notes += [
            f"{task.capitalize()}. Rates were chosen from {', '.join(f'{rate:g}' for rate in RATES)} by the area with "
            f"seed {TUNING_SEED}, which is not reported. At the edge of that range: {', '.join(edge) or 'none'}.",
            *contrasts(areas, list(SHAPES), [each for each in FACTORS[1] if each != "prompt"]),
        ]
    write(
        "model_factorial",
        "Shapes of an update and baselines, at equal updates: SmolLM2-135M",
        ["task, arm", "rate", "pass@32", "area - groups of 8, RLOO", "entropy"],
        rows,
        [
            f"{UPDATES} updates of 32 rollouts, AdamW with a constant rate. Success and pass@32 are those of 64 "
            "samples of each of 48 held-out questions. The area is the mean success after 20, 40, 60 and 80 updates. "
            "The entropy is a completion's, in nats. ± is the 95% interval (Student's t) over seeds; differences are "
            "paired by seed.",
            *notes,
        ],
        seeds=SEEDS,
        measured=list(measured.values())[-1]["machine"],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
