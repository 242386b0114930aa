"""Learning under a stream against synchronous training, in the lab, at equal rollouts trained on.

python -m benchmarks.stream_lab
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

from benchmarks.common import spread, write
from benchmarks.studies import trained


def main():
    """Train all arms, and write the table."""
    study, runs = trained(Path(__file__).with_suffix(".toml"))
    means = {arm: [run.success[1:].mean() for run in mine] for arm, mine in runs.items()}
    rows = []
    for arm, own in means.items():
        rule, way = arm.split(", ")
        less = [one - other for one, other in zip(own, means[f"{rule}, synchronous"], strict=True)]
        rows.append([arm, "-" if way == "synchronous" else spread(less, "+.3f").replace("± +", "± ")])
    write(
        "stream_lab",
        "Learning under a stream, in the lab",
        ["rule, age bound", "mean less synchronous"],
        rows,
        [
            "Exact success on 200 held-out prompts, its mean over five points of 2,560 rollouts trained on. "
            "Updates have 64 rollouts, 32 slots sample, an update takes half of the time of sampling one, and longer "
            "problems take longer. Differences are paired by seed. VIP and HORA count by a price in a stream. Single "
            "rollouts wait for no group: each is compared with the rest of its update (batch_optimal)."
        ],
        seeds=study.seeds,
    )


if __name__ == "__main__":
    main()
