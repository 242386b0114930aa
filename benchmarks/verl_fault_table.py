"""Have every kind of fault happen in a run of verl in one process, at five moments each, and write what came of it.

    python -m benchmarks.verl_fault_table             # the table of kinds, and a run of 200 steps with random faults
    python -m benchmarks.verl_fault_table --steps 0   # the table alone

The kinds and the fakes behind verl's interfaces are those of ``tests/verl/fault_table.py``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import RESULTS, write
from tests.verl.cpu import assets as made
from tests.verl.fault_random import RandomRun, random_run
from tests.verl.fault_table import KINDS, MOMENTS, Found, tried

COLUMNS = ("fault", "tried", "survived", "ended with its cause", "ended otherwise", "hung", "rows wrong", "longest s",
           "last line")  # fmt: skip
OUTCOMES = ("survived", "ended", "ended otherwise", "hung")
STEPS, SEEDS = 200, (0, 1)


def study(
    results: Path = RESULTS,
    steps: int = STEPS,
    seeds: Sequence[int] = SEEDS,
    jobs: int = 2,
    moments: int = len(MOMENTS),
) -> list[Found]:
    """Try all kinds at all moments, and runs of ``steps`` steps with random faults. Write the table."""
    cases = [(kind, (kind + i) % len(MOMENTS)) for kind in range(len(KINDS)) for i in range(moments)]
    with tempfile.TemporaryDirectory() as name:
        assets = made.write(Path(name))
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            running = [pool.submit(random_run, assets, steps, seed) for seed in seeds if steps]
            found = []
            for each in pool.map(_tried, *zip(*cases, strict=True), [assets] * len(cases)):
                found.append(each)
                if not each.right or not each.struck:
                    print(each, flush=True)
            runs = [each.result() for each in running]
        print(*runs, sep="\n", flush=True)
    by_kind = [[each for each in found if each.kind == kind.name] for kind in KINDS]
    survived = [own for own in by_kind if all(each.outcome == "survived" for each in own)]
    write(
        "verl_fault_table",
        "Kinds of faults in runs of verl in one process",
        COLUMNS,
        [*(row(own[0].kind, own) for own in by_kind if own not in survived), row("all", found)],
        [
            f"Every run of the other {len(survived)} kinds survived, in at most {_longest(found):.0f} s.",
            f"{len(KINDS)} kinds, each at {moments} of {len(MOMENTS)} moments. The coordinator, its workers with "
            "verl's own code, checkpoints and tracking are the real ones. Ray's actors and calls, TransferQueue, "
            "rollout servers, the load balancer, reward workers and the trainer's loop are made up, and time passes at "
            "once while nothing runs.",
            "A run survives if all its steps are trained on. A run that must end has to say the cause that its kind "
            "names, and is then resumed and must end whole. Rows are wrong if one is left of an earlier step, is of no "
            "group, has another reward than its tokens, or is there twice, or if there are more than the budget.",
            *([random_lines(runs)] if runs else []),
        ],
        more=["Survived: " + "; ".join(own[0].kind for own in survived)],
        seeds=seeds,
        cells={"faults": [asdict(each) for each in found], "random": [asdict(each) for each in runs]},
        results=results,
    )
    return found


def _tried(kind: int, moment: int, assets: Path) -> Found:
    return tried(KINDS[kind], MOMENTS[moment], assets)


def row(name: str, found: Sequence[Found]) -> list[str]:
    """Return the row of a kind."""
    counts = [str(sum(each.outcome == outcome for each in found)) for outcome in OUTCOMES]
    last = next((each.last for each in found if each.last), "") if name != "all" else ""
    shown = last.replace("|", "/")
    shown = shown if len(shown) <= 160 else f"{shown[:160]}..."
    return [
        name,
        str(len(found)),
        *counts,
        str(sum(bool(each.wrong) for each in found)),
        f"{_longest(found):.0f}",
        shown,
    ]


def _longest(found: Sequence[Found]) -> float:
    return max((each.slowest for each in found if each.outcome == "survived"), default=0.0)


def random_lines(runs: Sequence[RandomRun]) -> str:
    """Return what came of the runs with random faults."""
    lines = ["## Faults at random moments", ""]
    for run in runs:
        lines.append(
            f"- Seed {run.seed}: {run.steps} of {run.wanted} steps, {sum(run.faults.values())} faults, rows "
            f"wrong {len(run.wrong)}, rollouts asked for {run.rollouts:,} of a budget of {run.budget:,}, longest step "
            f"{run.slowest:.0f} s{', ended with ' + run.last if run.last else ''}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run with random faults; 0 leaves them out")
    parser.add_argument("--moments", type=int, default=len(MOMENTS), help="of each kind, in turn")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    study(given.results, given.steps, jobs=given.jobs, moments=given.moments)
