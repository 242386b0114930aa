"""Measure what the results of many rollouts cost the coordinator of the verl integration, behind calls of Ray.

Actors stand for the workers (``benchmarks.verl_load_reports``).

    python -m benchmarks.verl_load
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

from benchmarks.common import RESULTS, spread, write
from benchmarks.verl_load_reports import Served, served_apart

ACTORS, SEEDS = 4, (0, 1, 2)
SERVED = (("uniform", 5_000, None), ("voting", 5_000, None), ("uniform", 500, 100), ("voting", 500, 100))
"""The allocators, prompts and wanted reports a second; None for as many as possible."""

EACH_SECONDS, REPORTS_A_SECOND, LATENCY_SECONDS = 50e-6, 500, 0.1
"""The targets: processor time of a report, five times the reports a second of 512 GPUs, and the 99th percentile."""

SHOWN: dict[str, tuple[Callable[[Served], float], str]] = {
    "taken a second": (lambda one: one.rate, ",.0f"),
    "reports a call": (lambda one: one.reports / one.calls, ".1f"),
    "µs of the thread": (lambda one: 1e6 * one.loop_seconds / one.reports, ".0f"),
    "µs of the process": (lambda one: 1e6 * one.cpu_seconds / one.reports, ".0f"),
    "median ms": (lambda one: 1e3 * one.delay(0.5), ",.1f"),
    "p99 ms": (lambda one: 1e3 * one.delay(0.99), ",.1f"),
}
"""What is shown of a run, by column."""

Case = tuple[str, int, int | None]
"""An allocator, prompts and a wanted rate."""


def study(
    results: Path = RESULTS, runs: Sequence[Case] = SERVED, workers: int = ACTORS, seeds: Sequence[int] = SEEDS
) -> None:
    """Measure the coordinator behind Ray's calls and write the table ``verl_load_reports``."""
    busy, started = os.getloadavg()[0], time.perf_counter()
    found: Mapping[Case, list[Served]] = {run: [] for run in runs}
    for seed in seeds:  # seed by seed, so that a busy moment of the machine does not hit one alone
        for (name, prompts, rate), served in found.items():
            served.append(served_apart(name, prompts, workers, seed, rate))
            print(name, prompts, rate, seed, _record(served[-1]), flush=True)
    minutes = (time.perf_counter() - started) / 60
    write(
        "verl_load_reports",
        "The load of the verl integration's coordinator behind Ray's calls",
        ["allocator", "prompts", "wanted a second", *SHOWN],
        [
            [name, f"{prompts:,}", "-" if wanted is None else f"{wanted:,}"]
            + [spread([read(one) for one in served], form) for read, form in SHOWN.values()]
            for (name, prompts, wanted), served in found.items()
        ],
        [
            f"The coordinator in one process, and {workers} actors of Ray {version('ray')} that answer its tasks, with "
            f"verl {version('verl')}. verl's trainer, the TransferQueue and generation are left out. Without a wanted "
            "rate, tasks are answered as soon as they come. The columns in µs are processor time a report: of the "
            "thread that the coordinator lives in, and of its process, with Ray's threads. `median ms` and `p99 ms` "
            "are from a report to when the coordinator has it. Mean and 95% interval (Student's t) over seeds. The "
            "machine had other work on its two cores, so clock times say little, and processor times are longer than "
            "on an idle one. The workers share the two cores with the coordinator.",
            "## Targets",
            "\n".join(_target(*case, served) for case, served in found.items()),
            f"The run took {minutes:.0f} minutes. 1-minute load of the machine when it began: {busy:.1f}.",
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


def _target(name: str, prompts: int, wanted: int | None, served: Sequence[Served]) -> str:
    each, rate, late = (
        mean(values)
        for values in zip(*((one.loop_seconds / one.reports, one.rate, one.delay(0.99)) for one in served), strict=True)
    )
    line = f"- {name}, P = {prompts:,}, {'no limit' if wanted is None else f'{wanted:,} a second'}: at most "
    line += f"{1e6 * EACH_SECONDS:.0f} µs a report {_verdict(each <= EACH_SECONDS)} ({1e6 * each:.0f} µs) of the "
    line += "coordinator's thread"
    if wanted is None:
        verdict = _verdict(rate >= REPORTS_A_SECOND)
        return f"{line}; {REPORTS_A_SECOND:,} a second {verdict} ({rate:,.0f}, with the workers on the same cores)"
    verdict = _verdict(late < LATENCY_SECONDS)
    return f"{line}; p99 under {1e3 * LATENCY_SECONDS:g} ms {verdict} ({1e3 * late:.0f} ms)"


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def _record(one: Served) -> dict[str, Any]:
    own = {name: value for name, value in vars(one).items() if name != "delays"}
    return own | {"median_delay": one.delay(0.5), "p99_delay": one.delay(0.99)}


if __name__ == "__main__":
    study()
