"""Measure what the calibrated rule saves and risks, also on sets that it was not learned on.

python -m benchmarks.calibrated [--votes PATH] [--quick]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from apportion.stopping import TARGETS, Calibrated, Rule, decide, make_rule
from apportion.stopping.calibrated import FEW, SCALE
from benchmarks.calibrated_curves import Prefixes, beta_doubt, curve, priced
from benchmarks.common import RESULTS, options, table, write
from benchmarks.recorded import VOTES, Streams, read_datasets
from benchmarks.stopping_measured import Estimate, estimate

SEED = 0
ORDERS = {"gsm8k": 4, "aime24": 60}
OTHER_ORDERS = 30
MAXIMA = (16, 32, 64)
LEVELS = (0.97, 0.99, 0.997)
"""Levels of agreement with the full vote."""
FEWS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
SCALES = tuple(np.arange(0.5, 20.5, 0.5).tolist())
EPS = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05)
"""The eps at which SCALE must keep the disagreement."""
RESAMPLES = 400
BASE, OURS = "adaptive_consistency_beta", "calibrated"
CANDIDATES: Mapping[str, Rule] = {
    "fixed, n = 5": make_rule("fixed", samples=5),
    **{f"calibrated, eps = {eps}": Calibrated(eps) for eps in (0.01, 0.03, 0.05)},
}
QUICK = Path("runs") / "calibrated-quick"


def main(votes=VOTES, quick=False):
    """Measure, and write the table ``calibrated``, under ``runs/`` if ``quick``."""
    drawn = {
        name: Streams.draw(questions, 2 if quick else ORDERS.get(name, OTHER_ORDERS), SEED)
        for name, questions in read_datasets(votes).items()
    }
    sets = {name: {most: Prefixes(streams, most) for most in MAXIMA} for name, streams in drawn.items()}
    curves = {name: {most: _curves(found) for most, found in mine.items()} for name, mine in sets.items()}
    learned = learn(sets, curves)
    write(
        "calibrated",
        "What a stopping rule saves and risks, at most 64 samples",
        *risks(sets),
        [
            "With curtailment; agreement with the full vote; points of accuracy less the full vote's. Targets: "
            + ", ".join(f"`{name}` is `{rule}`" for name, rule in TARGETS.items())
            + ". Data: "
            + ", ".join(
                f"{name} ({len(each.questions):,} questions, {each.orders} orders)" for name, each in drawn.items()
            )
            + ". gsm8k has 61 samples.",
            f"## `{OURS}` over `{BASE}`",
            "Ratio of samples at equal agreement, with 95% bootstrap intervals over questions. The prior of "
            "`calibrated` is learned on the other sets.",
            ratios(curves, learned),
            "## An eps learned on other sets",
            f"The rule's constants are learned on the other sets, for M of 16, 32 and 64 and eps from {EPS[0]} to "
            f"{EPS[-1]}: then the worst disagreement over eps on the set itself. On all sets, as in the package: "
            f"FEW = {FEW}, SCALE = {SCALE}.",
            leave_one_out(sets, learned),
        ],
        seeds=[SEED],
        results=QUICK if quick else RESULTS,
    )


def _few(few):
    return f"few = {few}"


def _curves(prefixes):
    """Return the curve of every rule by name, of ours by its prior."""
    return {BASE: curve(prefixes, beta_doubt), **{_few(few): curve(prefixes, priced(few)) for few in FEWS}}


def learn(sets, curves):
    """Return FEW and SCALE for each data set, learned on the others; and for "all", learned on all."""
    worst = {
        name: [
            max(mine[most][_few(few)].needed(at) / mine[most][BASE].needed(at) for most in MAXIMA for at in LEVELS)
            for few in FEWS
        ]
        for name, mine in curves.items()
    }
    found = {}
    for held_out in [*sets, "all"]:
        others = [name for name in sets if name != held_out]
        few = FEWS[int(np.argmin(np.max([worst[name] for name in others], axis=0)))]
        losses = np.max([disagreement(prefixes, few) for name in others for prefixes in sets[name].values()], axis=0)
        kept = [scale for scale, row in zip(SCALES, losses, strict=True) if (row <= np.array(EPS)).all()]
        found[held_out] = (few, max(kept, default=SCALES[0]))
    return found


@cache
def disagreement(prefixes, few):
    """Return the share of streams that disagree for each of ``SCALES`` and ``EPS``."""
    scores = prefixes.score(priced(few))
    lose = [[prefixes.at(prefixes.ends(scores, scale * eps), prefixes.wrong).mean() for eps in EPS] for scale in SCALES]
    return np.array(lose)


def ratios(curves, learned):
    """Return a table of samples over those of ``BASE`` at 99% agreement."""
    rows = [
        [name, _ratio(mine[64][_few(learned[name][0])], mine[64][BASE], 0.99).show(".2f")]
        for name, mine in curves.items()
    ]
    return table(["data set", "99%"], rows)


def _ratio(ours, base, level):
    questions = ours.samples.shape[1]
    weights = np.random.default_rng(SEED).multinomial(questions, np.full(questions, 1 / questions), size=RESAMPLES)
    found = [ours.needed(level, each / questions) / base.needed(level, each / questions) for each in weights]
    low, high = np.quantile(found, [0.025, 0.975])
    return Estimate(ours.needed(level) / base.needed(level), float(low), float(high))


def leave_one_out(sets, learned):
    """Return a table of the disagreement on each set with what was learned on the others."""
    rows = []
    for name, mine in sets.items():
        for source in (name, "all"):
            few, scale = learned[source]
            worst = max(
                float(np.max(disagreement(found, few)[SCALES.index(scale)] / np.array(EPS))) for found in mine.values()
            )
            rows.append([name, "all" if source == "all" else "others", f"{worst:.2f}"])
    return table(["data set", "learned on", "worst / eps"], rows)


def risks(sets):
    """Return the columns and rows of samples, agreement and change of accuracy for settings to choose from."""
    rows = []
    for name, mine in sets.items():
        prefixes = mine[64]
        streams, right = prefixes.streams, prefixes.right
        full = right[:, -1]
        for label, rule in CANDIDATES.items():
            ends = decide(streams.answers, rule, 64, curtail=True).samples - 1
            place = (np.arange(len(ends)), ends)
            samples, agreed = streams.by_question(ends + 1), prefixes.at(ends, ~prefixes.wrong)
            change = streams.by_question(right[place] - full)
            points = change[~np.isnan(change)]
            rows.append(
                [
                    name,
                    label,
                    estimate(samples).show(".1f"),
                    estimate(agreed).show(".2f", 100),
                    estimate(points).show("+.2f", 100) if len(points) else "-",
                ]
            )
    return ["data set", "rule", "samples", "agreement %", "accuracy, points"], rows


if __name__ == "__main__":
    arguments = options(__doc__, votes=VOTES, quick=False)
    main(arguments.votes, arguments.quick)
