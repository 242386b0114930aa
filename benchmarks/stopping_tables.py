"""The tables of the stopping benchmark, from the results of ``stopping_measured`` and ``stopping_cost``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from apportion.stopping import Rule
from apportion.types import Floats
from benchmarks.common import table
from benchmarks.stopping_cost import Cost
from benchmarks.stopping_measured import WAVES, Cells, Estimate, Key, estimate
from benchmarks.stopping_picture import Curve

BASE, OURS = "optpo, N = 16", "posterior_predictive"
SUMMARY = (
    "rule, samples, agreement %, worst agreement %, accuracy %, tokens %, curtailed: samples, curtailed: agreement %"
)


def groups(cells: Cells, key: Key, field: str) -> list[Floats]:
    """Return one measured quantity, [Q] for each data set."""
    return [getattr(mine, field) for mine in cells[key].values()]


def mean(cells: Cells, key: Key, field: str) -> float:
    """Return the mean over the data sets of their means; questions and sets of unknown value are left out."""
    known = [values[~np.isnan(values)] for values in groups(cells, key, field)]
    means = [values.mean() for values in known if values.size]
    return float(np.mean(means)) if means else np.nan


def percent(found: Estimate, form: str = ".2f") -> str:
    """Return an estimate as a percentage, without the sign %."""
    return found.show(form, 100)


def summary(cells: Cells, rules: Iterable[str], max_samples: int) -> list[list[str]]:
    """Return a row of ``SUMMARY`` for every setting: means over the data sets, the worst, and with curtailment."""
    rows = []
    for label in rules:
        plain, curtailed = Key(label, max_samples), Key(label, max_samples, curtail=True)
        agreement = groups(cells, plain, "agreement")
        rows.append(
            [
                label,
                estimate(*groups(cells, plain, "samples")).show(),
                percent(estimate(*agreement)),
                f"{100 * min(values.mean() for values in agreement):.2f}",
                _accuracy(cells, plain),
                _token_share(cells, plain),
                f"{mean(cells, curtailed, 'samples'):.1f}",
                f"{100 * mean(cells, curtailed, 'agreement'):.2f}",
            ]
        )
    return rows


def _accuracy(cells: Cells, key: Key) -> str:
    found = mean(cells, key, "accuracy")
    return "-" if np.isnan(found) else f"{100 * found:.1f}"


def _token_share(cells: Cells, key: Key) -> str:
    full = cells[Key("fixed, all", key.max_samples)]
    pairs = [(mine.tokens, full[name].tokens) for name, mine in cells[key].items()]
    shares = [mine.mean() / whole.mean() for mine, whole in pairs if mine is not None and whole is not None]
    return f"{100 * np.mean(shares):.0f}" if shares else "-"


def by_dataset(cells: Cells, rules: Iterable[str], max_samples: int) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table of the samples and agreement of settings on each data set."""
    found = {label: cells[Key(label, max_samples)] for label in rules}
    columns = [f"{name} {what}" for name in next(iter(found.values())) for what in ("samples", "agreement %")]
    rows = [
        [
            label,
            *(shown for m in mine.values() for shown in (estimate(m.samples).show(), percent(estimate(m.agreement)))),
        ]
        for label, mine in found.items()
    ]
    return ["rule", *columns], rows


def waves(cells: Cells, rules: Iterable[str], max_samples: int) -> str:
    """Return a table of samples, waves and agreement of settings with curtailment, by wave."""
    rows = []
    for label in rules:
        row = [label]
        for wave in WAVES:
            key = Key(label, max_samples, wave, True)
            samples, trips, agreement = (mean(cells, key, field) for field in ("samples", "waves", "agreement"))
            row.append(f"{samples:.1f} in {trips:.1f}, {100 * agreement:.2f}")
        rows.append(row)
    return table(["rule", *(wave if wave == "free" else f"waves of {wave}" for wave in WAVES)], rows)


def cost_table(costs: Mapping[str, Cost]) -> str:
    """Return a table of each rule's seconds and microseconds."""
    columns = "rule; replayed, s; a decision, µs; alone: stop, µs; alone: how many more, µs"
    rows = [
        [label, f"{found.replay:.2f}", *(f"{1e6 * seconds:.{digits}f}" for seconds, digits in times)]
        for label, found in costs.items()
        for times in [((found.replay / found.decisions, 1), (found.stops_now, 0), (found.earliest, 0))]
    ]
    return table(columns.split("; "), rows)


def curves(cells: Cells, rules: Mapping[str, Rule], max_samples: int) -> dict[str, dict[str, Curve]]:
    """Return samples and disagreement of each rule's settings by data set, for OptPO those that the paper varies."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for label, rule in rules.items():
        if any(word in label for word in ("literal", "m = 4", "from N")) or label == "fixed, all":
            continue
        for name, mine in cells[Key(label, max_samples)].items():
            point = (float(mine.samples.mean()), float(1 - mine.agreement.mean()))
            found.setdefault(name, {}).setdefault(rule.name, []).append(point)
    return found
