"""What a step of 100,000 prompts and 1,000 workers asks of the coordinator of the verl integration.

    python -m benchmarks.verl_load

Alone: the coordinator in one process, with answers that are there at once and are not counted. Through Ray: its actor
on one core, and clients that stand for the workers, as fast as it goes and at given rates.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

from apportion.lab.results import Interval
from benchmarks.common import RESULTS, table, write
from benchmarks.verl_load_alone import Load, load_apart
from benchmarks.verl_load_answers import ALLOCATORS, ROLLOUTS
from benchmarks.verl_load_ray import NOTHING, Served, running

SIZES, WORKERS, CLIENTS = (10_000, 100_000), 1000, 8
FAST, FAST_PROMPTS = (NOTHING, "uniform", "voting", "hora"), 20_000
PACED, RATES, PACED_SECONDS = {NOTHING: 2, "ar3po": 2}, (250, 500, 1000), 8
"""Reports of a prompt, at the least, and reports a second: prompts are dispatched for so many seconds."""

EACH_SECONDS, REPORTS_A_SECOND = 1e-3, 5000
"""What is wanted: at most so long a report, and more than so many on one core."""

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
"""By allocator, prompts and the rate that is wanted, None as fast as it goes."""


def main(
    results: Path = RESULTS,
    sizes: Sequence[int] = SIZES,
    workers: int = WORKERS,
    clients: int = CLIENTS,
    fast: int = FAST_PROMPTS,
    rates: Sequence[int] = RATES,
    paced_seconds: int = PACED_SECONDS,
    seeds: Sequence[int] = (0, 1, 2),
) -> None:
    """Measures, and writes ``verl_load.md`` and ``verl_load.json`` into ``results``."""
    busy, started = os.getloadavg()[0], time.perf_counter()
    alone = measured_alone(sizes, workers, seeds)
    served = measured_served(workers, clients, fast, {rate: rate * paced_seconds for rate in rates}, seeds)
    minutes = (time.perf_counter() - started) / 60
    write(
        "verl_load",
        "The load of the verl integration's coordinator",
        ALONE.split(", "),
        alone_rows(alone),
        [
            f"One dispatch over {workers:,} workers, {ROLLOUTS} rollouts a prompt, on one core, with verl "
            f"{version('verl')} and ray {version('ray')}. Mean and 95% interval (Student's t) over seeds, which draw "
            "what the rollouts are. Processor time of the coordinator alone, one report a call, in the order in which "
            "the tasks were sent: what the crew takes to answer is not counted. A report is unpickled, journaled and "
            "acted on; µs a report are of all calls, that which opens the dispatch among them. The longest pause is "
            "what a task that is always ready waits, on the clock, after the opening: nobody is served meanwhile. The "
            "journal's seconds are part of the CPU seconds, and to begin it anew is part of the journal's. Metrics are "
            "asked for when all is over, and come on top. Peak memory is what the process grew by. The first three "
            "allocators are separable, so that prompts wait for nobody; VIP, which has seen four rollouts of each "
            "prompt, and HORA plan all prompts together.",
            "## Through Ray",
            table(SERVED.split(", "), served_rows(served)),
            f"The coordinator's actor, all threads of it on one core, and {clients} processes on the other cores that "
            f"stand for {workers:,} workers, each with an outbox of its own. verl, the TransferQueue and the watch "
            "over workers are left out; what takes reports and sends tasks is the actor's. Without a wanted rate, "
            "tasks are answered as soon as they come; else as a Poisson process for as long as there are any. CPU "
            "time is of the actor's process, Ray's threads included. From a report to the next task of its prompt: "
            "the report's way, all before it, the decision, the task's way. Ray's own processes are on the same cores. "
            f"`{NOTHING}` is an actor that orders and publishes without any decision or journal: what Ray takes by "
            "itself.",
            "## What was to be reached",
            "\n".join(targets(alone, served)),
            f"The run took {minutes:.0f} minutes. 1-minute load of the machine when it began: {busy:.1f}.",
        ],
        seeds=seeds,
        extra={
            "alone": [
                {"allocator": name, "prompts": prompts, "seed": seed, **vars(one)}
                for (name, prompts), found in alone.items()
                for seed, one in zip(seeds, found, strict=True)
            ],
            "served": [
                {"allocator": name, "prompts": prompts, "wanted": wanted, "seed": seed, **_record(one)}
                for (name, prompts, wanted), found in served.items()
                for seed, one in zip(seeds, found, strict=True)
            ],
        },
        results=results,
    )


def measured_alone(sizes: Sequence[int], workers: int, seeds: Sequence[int]) -> Alone:
    """Every allocator at every size, seed by seed, so that a busy moment of the machine is nobody's alone."""
    alone: dict[tuple[str, int], list[Load]] = {(name, prompts): [] for name in ALLOCATORS for prompts in sizes}
    for seed in seeds:
        for (name, prompts), found in alone.items():
            found.append(load_apart(name, prompts, workers, seed))
            print(name, prompts, seed, found[-1], flush=True)
    return alone


def measured_served(workers: int, clients: int, fast: int, rates: Mapping[int, int], seeds: Sequence[int]) -> Rated:
    """``FAST`` as fast as it goes, and ``PACED`` at ``rates``, for so many reports."""
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
    """One row an allocator and size."""
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
    """One row an allocator and rate."""
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


def targets(alone: Alone, served: Rated) -> list[str]:
    """Whether what is wanted holds here, one line a measurement."""
    lines = []
    for (name, prompts), loads in alone.items():
        each, slow = mean(one.each_seconds for one in loads), mean(one.slow_seconds for one in loads)
        lines.append(
            f"- alone, {name}, P = {prompts:,}: under {1e3 * EACH_SECONDS:g} ms a report "
            f"{_verdict(each < EACH_SECONDS)} in the mean ({1e3 * each:.2f} ms) and {_verdict(slow < EACH_SECONDS)} by "
            f"99% of them ({1e3 * slow:.2f} ms); more than {REPORTS_A_SECOND:,} a second "
            f"{_verdict(1 / each > REPORTS_A_SECOND)} ({1 / each:,.0f})"
        )
    for (name, prompts, wanted), found in served.items():
        each, rate = mean(one.each_seconds for one in found), mean(one.rate for one in found)
        pace = "as fast as it goes" if wanted is None else f"at {wanted:,} a second"
        lines.append(
            f"- through Ray, {name}, P = {prompts:,}, {pace}: under {1e3 * EACH_SECONDS:g} ms of CPU time a report "
            f"{_verdict(each < EACH_SECONDS)} ({1e3 * each:.2f} ms)"
            + (
                f"; more than {REPORTS_A_SECOND:,} a second {_verdict(rate > REPORTS_A_SECOND)} ({rate:,.0f})"
                if wanted is None
                else ""
            )
        )
    return lines


def spread(values: Sequence[float], form: str) -> str:
    """The mean of ``values`` and the half width of its 95% interval, which is left out where all are equal."""
    found = Interval.of(values)
    return format(found.mean, form) + (f" ± {format(found.half_width, form)}" if found.half_width else "")


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
    main()
