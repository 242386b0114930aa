"""Measure what a step of 10,000 or 100,000 prompts and 1,000 workers costs the coordinator of the verl integration.

    python -m benchmarks.verl_load alone   # the coordinator in one process
    python -m benchmarks.verl_load ray     # its actor on one core, and clients that stand for the workers

Without a word both are measured. ``--sizes 10000`` measures fewer prompts alone.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.common import RESULTS, spread, write
from benchmarks.verl_load_alone import Load, load_apart
from benchmarks.verl_load_answers import ALLOCATORS, ROLLOUTS
from benchmarks.verl_load_ray import NOTHING, Served, running

SIZES, WORKERS, CLIENTS, SEEDS = (10_000, 100_000), 1000, 8, (0, 1, 2)
FAST, FAST_PROMPTS = (NOTHING, "uniform", "voting", "hora"), 20_000
PACED, RATES, PACED_SECONDS = {NOTHING: 2, "ar3po": 2}, (250, 500, 1000), 8
"""The fewest reports a prompt by allocator, the rates in reports a second, and how long prompts are dispatched."""

EACH_SECONDS, REPORTS_A_SECOND = 1e-3, 5000
"""The targets: the longest time of a report, and the fewest reports a second on one core."""

ALONE = (
    "allocator, prompts, reports, CPU s, µs a report, µs of the slowest 1%, s to open, longest pause s, s of metrics, "
    "journal MiB, journal s, begun anew s, peak MiB"
)
SERVED = (
    "allocator, prompts, wanted a second, taken a second, reports a call, CPU µs a report, cores in use, "
    "ms to the next task, median ms, p99 ms"
)

Alone = Mapping[tuple[str, int], Sequence[Load]]
Rated = Mapping[tuple[str, int, int | None], Sequence[Served]]
"""Runs by allocator, prompts and wanted rate; the rate is None if there is no limit."""


def study_alone(
    results: Path = RESULTS, sizes: Sequence[int] = SIZES, workers: int = WORKERS, seeds: Sequence[int] = SEEDS
) -> None:
    """Measure the coordinator alone and write the table ``verl_load``."""
    busy, started = os.getloadavg()[0], time.perf_counter()
    found = measured_alone(sizes, workers, seeds)
    write(
        "verl_load",
        "The load of the verl integration's coordinator",
        ALONE.split(", "),
        alone_rows(found),
        [
            f"One request over {workers:,} workers, {ROLLOUTS} rollouts a prompt, on one core, with verl "
            f"{version('verl')}. Mean and 95% interval (Student's t) over seeds, which draw the outcomes of the "
            "rollouts. Processor time of the coordinator only; the time to answer its tasks is not counted. Reports "
            "come one a call, in the order in which the tasks were sent. A report is unpickled, journaled and acted "
            "on. `µs a report` includes the call that opens the request. The longest pause is on the clock, after the "
            "opening: how long an always ready task waits while the coordinator serves nobody. The journal's seconds "
            "are part of the CPU seconds, and those to begin it anew are part of the journal's. Metrics are asked for "
            "at the end and are not in the CPU seconds. Peak memory is the growth of the process. Under the first "
            "three allocators no prompt waits for another. VIP, which has seen four rollouts of each prompt, and HORA "
            "plan all prompts together.",
            "## Targets",
            "\n".join(targets_alone(found)),
            _took(started, busy),
        ],
        seeds=seeds,
        cells={
            "alone": [
                {"allocator": name, "prompts": prompts, "seed": seed, **vars(one)}
                for (name, prompts), loads in found.items()
                for seed, one in zip(seeds, loads, strict=True)
            ]
        },
        results=results,
    )


def study_ray(
    results: Path = RESULTS,
    workers: int = WORKERS,
    clients: int = CLIENTS,
    fast: int = FAST_PROMPTS,
    rates: Sequence[int] = RATES,
    paced_seconds: int = PACED_SECONDS,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Measure the coordinator's actor through Ray and write the table ``verl_load_ray``."""
    busy, started = os.getloadavg()[0], time.perf_counter()
    found = measured_served(workers, clients, fast, {rate: rate * paced_seconds for rate in rates}, seeds)
    write(
        "verl_load_ray",
        "The load of the verl integration's coordinator through Ray",
        SERVED.split(", "),
        served_rows(found),
        [
            f"The coordinator's actor with all its threads on one core, and {clients} processes on the other cores "
            f"that stand for {workers:,} workers, each with its own sender, with verl {version('verl')} and ray "
            f"{version('ray')}. verl's trainer, the TransferQueue and the watch over workers are left out. Without a "
            "wanted rate, tasks are answered as soon as they come; otherwise as a Poisson process. CPU time is that of "
            "the actor's process with Ray's threads. `ms to the next task` is from a report to the next task of its "
            "prompt: both ways through Ray, the reports before it, and the decision. Ray's own processes use the same "
            f"cores. `{NOTHING}` is an actor that orders and publishes without a decision or a journal. It shows what "
            "Ray alone costs. Mean and 95% interval (Student's t) over seeds.",
            "## Targets",
            "\n".join(targets_served(found)),
            _took(started, busy),
        ],
        seeds=seeds,
        cells={
            "served": [
                {"allocator": name, "prompts": prompts, "wanted": wanted, "seed": seed, **_record(one)}
                for (name, prompts, wanted), served in found.items()
                for seed, one in zip(seeds, served, strict=True)
            ]
        },
        results=results,
    )


def measured_alone(sizes: Sequence[int], workers: int, seeds: Sequence[int]) -> Alone:
    """Run every allocator at every size, seed by seed, so that a busy moment of the machine does not hit one alone."""
    alone: dict[tuple[str, int], list[Load]] = {(name, prompts): [] for name in ALLOCATORS for prompts in sizes}
    for seed in seeds:
        for (name, prompts), found in alone.items():
            found.append(load_apart(name, prompts, workers, seed))
            print(name, prompts, seed, found[-1], flush=True)
    return alone


def measured_served(workers: int, clients: int, fast: int, rates: Mapping[int, int], seeds: Sequence[int]) -> Rated:
    """Run the ``FAST`` allocators without a limit, and the ``PACED`` ones at ``rates``: reports by reports a second."""
    paced = [(name, reports // each, rate) for rate, reports in rates.items() for name, each in PACED.items()]
    served: dict[tuple[str, int, int | None], list[Served]] = {
        key: [] for key in [*((name, fast, None) for name in FAST), *paced]
    }
    with running(workers, clients) as workplace:
        for seed in seeds:
            for (name, prompts, rate), found in served.items():
                found.append(workplace.served(name, prompts, seed, rate))
                print(name, prompts, rate, seed, _record(found[-1]), flush=True)
    return served


def alone_rows(alone: Alone) -> list[list[str]]:
    """Return one row for each allocator and size."""
    shown: tuple[tuple[Callable[[Load], float], str], ...] = (
        (lambda one: one.reports, ",.0f"),
        (lambda one: one.seconds, ".2f"),
        (lambda one: 1e6 * one.each_seconds, ".0f"),
        (lambda one: 1e6 * one.slow_seconds, ".0f"),
        (lambda one: one.open_seconds, ".2f"),
        (lambda one: one.pause_seconds, ".2f"),
        (lambda one: one.metrics_seconds, ".2f"),
        (lambda one: one.journal_bytes / 2**20, ".1f"),
        (lambda one: one.journal_seconds, ".2f"),
        (lambda one: one.anew_seconds, ".2f"),
        (lambda one: one.peak_bytes / 2**20, ",.0f"),
    )
    return [
        [name, f"{prompts:,}", *(spread([read(one) for one in found], form) for read, form in shown)]
        for (name, prompts), found in alone.items()
    ]


def served_rows(served: Rated) -> list[list[str]]:
    """Return one row for each allocator and rate."""
    shown: tuple[tuple[Callable[[Served], float], str], ...] = (
        (lambda one: one.rate, ",.0f"),
        (lambda one: one.reports / one.calls, ".1f"),
        (lambda one: 1e6 * one.each_seconds, ".0f"),
        (lambda one: one.cpu_seconds / one.seconds, ".2f"),
        (lambda one: 1e3 * one.mean_latency, ",.1f"),
        (lambda one: 1e3 * one.latency(0.5), ",.1f"),
        (lambda one: 1e3 * one.latency(0.99), ",.1f"),
    )
    return [
        [
            name,
            f"{prompts:,}",
            "-" if wanted is None else f"{wanted:,}",
            *(spread([read(one) for one in found], form) for read, form in shown),
        ]
        for (name, prompts, wanted), found in served.items()
    ]


def targets_alone(alone: Alone) -> list[str]:
    """Return one line for each run that says whether it met the targets."""
    lines = []
    for (name, prompts), loads in alone.items():
        each, slow = mean(one.each_seconds for one in loads), mean(one.slow_seconds for one in loads)
        lines.append(
            f"- {name}, P = {prompts:,}: under {1e3 * EACH_SECONDS:g} ms a report {_verdict(each < EACH_SECONDS)} in "
            f"the mean ({1e3 * each:.2f} ms) and {_verdict(slow < EACH_SECONDS)} by 99% of them ({1e3 * slow:.2f} ms); "
            f"more than {REPORTS_A_SECOND:,} a second {_verdict(1 / each > REPORTS_A_SECOND)} ({1 / each:,.0f})"
        )
    return lines


def targets_served(served: Rated) -> list[str]:
    """Return one line for each run that says whether it met the targets."""
    lines = []
    for (name, prompts, wanted), found in served.items():
        each, rate = mean(one.each_seconds for one in found), mean(one.rate for one in found)
        line = (
            f"- {name}, P = {prompts:,}, {'no limit' if wanted is None else f'{wanted:,} a second'}: under "
            f"{1e3 * EACH_SECONDS:g} ms of CPU time a report {_verdict(each < EACH_SECONDS)} ({1e3 * each:.2f} ms)"
        )
        if wanted is None:
            line += f"; more than {REPORTS_A_SECOND:,} a second {_verdict(rate > REPORTS_A_SECOND)} ({rate:,.0f})"
        lines.append(line)
    return lines


def _took(started: float, busy: float) -> str:
    minutes = (time.perf_counter() - started) / 60
    return f"The run took {minutes:.0f} minutes. 1-minute load of the machine when it began: {busy:.1f}."


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def _record(one: Served) -> dict[str, Any]:
    own = {name: value for name, value in vars(one).items() if name != "latencies"}
    return own | {
        "mean_latency": one.mean_latency,
        "median_latency": one.latency(0.5),
        "p99_latency": one.latency(0.99),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="alone|ray", help="what to measure; both if left out")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="prompts a step, alone")
    arguments = parser.parse_args()
    if "alone" in (arguments.parts or ["alone"]):
        study_alone(sizes=arguments.sizes)
    if "ray" in (arguments.parts or ["ray"]):
        study_ray()
