"""How good a forecast of dead groups is: error, width and coverage of its intervals by probe, and how fast it ages.

A probe draws prompts of a set with replacement, and rollouts of each by its rate there. The truth of a set is the mean
of p^n + (1 - p)^n. The constants of ``apportion.forecast.rates`` were chosen on the random mixtures, on no other set.

    python -m benchmarks.forecast
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gzip
import json
import sys
import time

import numpy as np
from scipy.stats import hypergeom

from apportion.forecast import RateSample, fit_rates, forecast
from apportion.forecast.forecast import dead_groups
from apportion.records import open_run
from benchmarks.common import ROOT, options, table, write

SHARED = ROOT.parent / "shared" / "data" / "rates"
RUN = ROOT / "examples" / "data" / "grpo_run.jsonl.gz"
PROBES = ((50, 1), (50, 4), (200, 4), (400, 4), (1600, 4), (100, 8))
SIZES = (2, 4, 8, 16, 32)
POOLED = 4
"""Visits whose rollouts are one pool, 32 a prompt."""
LATER = (0, 1, 4, 9, 19, 29, 43)
AGEING = (400, 4)


def sets(seed=0):
    """Return the success rates of each set by its name. Those of files that are not there are left out."""
    rng = np.random.default_rng(seed)
    found = {}
    if (SHARED / "deepscaler_solve_rates_7b.parquet").exists():
        import pyarrow.parquet  # noqa: PLC0415 - an extra

        read = pyarrow.parquet.read_table(SHARED / "deepscaler_solve_rates_7b.parquet")
        found["DeepScaleR, 7B"] = read["successes"].to_numpy() / read["trials"].to_numpy()
    visits = _visits()
    found["recorded run, first visits"] = visits[:, :POOLED].mean(axis=1) / 8
    found["recorded run, last visits"] = visits[:, -POOLED:].mean(axis=1) / 8
    if (SHARED / "reasoning_gym_scores.jsonl.gz").exists():
        with gzip.open(SHARED / "reasoning_gym_scores.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line)["scores"].values() for line in file]
        found["reasoning_gym, all models"] = np.array(
            [np.mean([score == 1 for own in row for score in own if score is not None]) for row in rows]
        )
    found["atoms .25 at 0, .15 at 1"] = np.r_[np.zeros(2500), np.ones(1500), rng.beta(0.6, 0.9, 6000)]
    return found


def _visits():
    """Return the right rollouts of 8 at each visit of each prompt of the recorded run, [Q, V]."""
    record = open_run(RUN)
    most = int(np.bincount(record.prompt).min())
    kept = record.visit < most
    found = np.zeros((len(record.ids), most), np.int64)
    found[record.prompt[kept], record.visit[kept]] = record.totals[kept]
    return found


def mixture(rng, size=4000):
    """Return the rates of a random mixture of one to three Betas, each second time with atoms at 0 and at 1."""
    zero, one = (most * rng.random() * (rng.random() < 0.5) for most in (0.5, 0.4))
    weights = rng.dirichlet(np.ones(rng.integers(1, 4)))
    alpha, beta = np.exp(rng.uniform(np.log(0.2), np.log(5), (2, len(weights))))
    of, place = rng.choice(len(weights), size, p=weights), rng.random(size)
    return np.where(place < zero, 0.0, np.where(place > 1 - one, 1.0, rng.beta(alpha[of], beta[of])))


def truth(rates, n):
    return float((rates**n + (1 - rates) ** n).mean())


def measured(draw, probe, repeats, sizes):
    """Return the errors, half widths and hits of the interval, [repeats, sizes] each, and DAPO's bill over the true."""
    prompts, rollouts = probe
    errors, halves, hits, bills = [], [], [], []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        rates = draw(rng)
        p = rng.choice(rates, prompts)
        sample = RateSample.of(rng.binomial(rollouts, p), np.full(prompts, rollouts))
        real = np.array([truth(rates, n) for n in sizes])
        found = dead_groups(sample, fit_rates(sample), sizes)
        value, low, high = np.array([(each.value, each.low, each.high) for each in found]).T
        errors.append(value - real)
        halves.append((high - low) / 2)
        hits.append((low <= real) & (real <= high))
        bills.append((1 - real) / (1 - value))
    return np.array(errors), np.array(halves), np.array(hits), np.array(bills)


def cells(draw, probe, repeats):
    sizes = [n for n in SIZES if n <= 8 * probe[1]]
    errors, halves, hits, bills = measured(draw, probe, repeats, sizes)
    rms = np.sqrt((errors**2).mean(axis=0))
    shown = [f"{100 * rms[i]:.1f}; {100 * halves[:, i].mean():.1f}; {hits[:, i].mean():.2f}" for i in range(len(sizes))]
    bill = bills[:, sizes.index(8)] - 1
    return [*shown, *["-"] * (len(SIZES) - len(sizes)), f"{100 * np.sqrt((bill**2).mean()):.0f}%"]


def ageing(repeats):
    """Return rows of the recorded dead share of groups of 8 by visit, and how often a first probe's interval has it."""
    visits, rows = _visits(), []
    prompts, rollouts = AGEING
    spans = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        right = hypergeom.rvs(8, visits[rng.integers(len(visits), size=prompts), 0], rollouts, random_state=rng)
        sample = RateSample.of(right, np.full(prompts, rollouts))
        found = dead_groups(sample, fit_rates(sample), (rollouts, 8))[1]
        spans.append((found.value, found.low, found.high))
    value, low, high = np.array(spans).T
    for visit in LATER:
        real = float(np.isin(visits[:, visit], (0, 8)).mean())
        hit = ((low <= real) & (real <= high)).mean()
        rows.append([f"{visit + 1}", f"{real:.3f}", f"{100 * (value.mean() - real):+.1f}", f"{hit:.2f}"])
    return rows


def seconds():
    """Return the seconds in which a million prompts with eight rollouts each are a forecast."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.4, 0.6, 1_000_000)
    right, begun = rng.binomial(8, p), time.perf_counter()
    forecast(RateSample.of(right, np.full(len(p), 8)))
    return time.perf_counter() - begun


def main():
    given = options(__doc__, repeats=200)
    known = {name: (lambda rng, rates=rates: rates) for name, rates in sets().items()}
    rows = []
    for name, draw in (known | {"random mixtures": mixture}).items():
        for probe in PROBES:
            rows.append([name, f"{probe[0]:,} x {probe[1]}", *cells(draw, probe, given.repeats)])
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    write(
        "forecast",
        "Forecasts of the share of dead groups",
        ["set", "probe", *(f"n = {n}" for n in SIZES), "DAPO's bill at 8"],
        rows,
        [
            "In points: root mean square error; half width of the 90% interval; share of the intervals that hold the "
            f"truth, whose own error is about .02: {given.repeats} probes a row, of the seeds from the first to the "
            "last. n is at most eight times the probe's. DAPO's bill: root mean square error of the rollouts for a "
            "mixed group. One rollout a prompt tells the mean alone. The constants were chosen on random mixtures.",
            f"A million prompts with 8 rollouts each take {seconds():.1f} s.",
            "## How fast a forecast ages",
            table(["visit", "dead of 8", "forecast less that, points", "within its interval"], ageing(given.repeats)),
            f"The recorded run: probes of {AGEING[0]} prompts x {AGEING[1]} at its first visit, and the groups of 8 of "
            "all prompts at later visits, each about 9.4 steps.",
        ],
        seeds=(0, given.repeats - 1),
    )


if __name__ == "__main__":
    main()
