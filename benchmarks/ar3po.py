"""Measure AR3PO's claims: rollouts a prompt, and the options of reuse.

python -m benchmarks.ar3po
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

from apportion.lab.report.measures import summarise
from apportion.lab.report.with_labels import MEASURES
from benchmarks.common import write
from benchmarks.studies import trained


def main():
    study, runs = trained(Path(__file__).with_suffix(".toml"), name="ar3po")
    write(
        "ar3po",
        "AR3PO's claims, one by one",
        ["arm", "area", "rollouts/prompt"],
        [
            [arm.name, str(arm.area), f"{arm.rollouts_per_prompt:.2f}"]
            for arm in summarise(MEASURES, runs, study.baseline)
        ],
        [
            f"Medium base, {study.training.problems} problems, {study.training.prompts_per_step} a step, "
            f"{study.training.rollouts:,} rollouts a run, GRPO, learning rate {study.training.learning_rate:g}; mean "
            "and 95% interval (Student's t) over seeds. grpo_5 is the control with as many rollouts a prompt as the "
            "stages take."
        ],
        seeds=list(study.seeds),
    )


if __name__ == "__main__":
    main()
