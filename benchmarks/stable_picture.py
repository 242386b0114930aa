"""Draw the learning curves of the stable protocol as docs/pictures/learning.svg, by the functions of the report.

python -m benchmarks.stable_picture
"""

import json

import numpy as np

from apportion.report.charts import Chart, ChartSeries
from apportion.report.curves import mean_curve, plain_curve
from apportion.report.style import stylesheet
from apportion.report.svg import draw
from benchmarks.pictures import PICTURES
from benchmarks.stable_table import DATA

SERIES = {
    "uniform_8": "8 each, stock",
    "four_optimal": "4 each, baseline",
    "single_optimal": "single, baseline",
}
TITLE = "Success on problems that were never trained on, in the lab"
TEXT = (
    "Stock groups of 8 rollouts with RLOO, groups of 4 with the learned baseline Optimal, and single rollouts with it. "
    "Every update has 64 rollouts. Means over {} base policies, {} runs each, with 95% intervals."
)


def of_bases(rows):
    """Return the mean curve of each base of an arm, whose ``rows`` are by base and seed."""
    runs = {}
    for unit, row in rows.items():
        runs.setdefault(unit.split()[0], []).append(row)
    return [
        plain_curve({"rollouts": np.array(own[0]["rollouts"], float)}, np.mean([row["success"] for row in own], axis=0))
        for own in runs.values()
    ]


def learning():
    """Return the picture as SVG."""
    found = json.loads(DATA.read_text(encoding="utf-8"))["quick"]
    curves = {arm: of_bases(found[arm]) for arm in SERIES}
    series = [ChartSeries(name, at, mean_curve(curves[arm])) for at, (arm, name) in enumerate(SERIES.items())]
    bases = len(curves["uniform_8"])
    text = TEXT.format(bases, len(found["uniform_8"]) // bases)
    drawn = draw(
        Chart("learning", TITLE, text, tuple(series), "held-out success", from_zero=True), "rollouts", "learning"
    )
    style = f"<style>{stylesheet(())}.chart{{background:var(--ground)}}</style>"
    head, rest = drawn.split(">", 1)
    namespace = 'xmlns="http://www.w3.org/2000/svg"'
    return f"{head} {namespace}>{style}{rest}\n"


if __name__ == "__main__":
    (PICTURES / "learning.svg").write_text(learning(), encoding="utf-8")
