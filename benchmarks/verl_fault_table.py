"""Have every kind of fault happen in a run of verl in one process, at five moments each, and write what came of it.

    python -m benchmarks.verl_fault_table             # the table of kinds, and a run of 200 steps with random faults
    python -m benchmarks.verl_fault_table --steps 0   # the table alone

The kinds and the fakes behind verl's interfaces are those of ``tests/verl/fault_table.py``.
"""

import multiprocessing
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import RESULTS, options, write
from tests.verl.cpu import assets as made
from tests.verl.fault_random import random_run
from tests.verl.fault_table import KINDS, MOMENTS, tried

OUTCOMES = {
    "survived": "survived",
    "ended": "ended with its cause",
    "ended otherwise": "ended otherwise",
    "hung": "hung",
}
"""The outcomes, and their columns."""
STEPS, SEEDS = 200, (0, 1)


def study(results=RESULTS, steps=STEPS, seeds=SEEDS, jobs=2, moments=len(MOMENTS)):
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
    counts, slowest = Counter(each.outcome for each in found), [e.slowest for e in found if e.outcome == "survived"]
    write(
        "verl_fault_table",
        "Kinds of faults in runs of verl in one process",
        ["fault", "tried", *OUTCOMES.values(), "rows wrong"],
        [["all", len(found), *(counts[outcome] for outcome in OUTCOMES), sum(bool(each.wrong) for each in found)]],
        [
            f"Every run of {len(survived)} kinds survived, in at most {max(slowest, default=0):.0f} s.",
            f"{len(KINDS)} kinds, each at {moments} of {len(MOMENTS)} moments. The coordinator, its workers with "
            "verl's own code, checkpoints and tracking are the real ones. Ray's actors and calls, TransferQueue, "
            "rollout servers, the load balancer, reward workers and the trainer's loop are made up, and time passes at "
            "once while nothing runs.",
            "A run survives if all its steps are trained on. A run that must end has to say the cause that its kind "
            "names, and is then resumed and must end whole. Rows are wrong if one is left of an earlier step, is of no "
            "group, has another reward than its tokens, or is there twice, or if there are more than the budget.",
            *([random_lines(runs)] if runs else []),
        ],
        seeds=seeds,
        cells={"faults": [asdict(each) for each in found], "random": [asdict(each) for each in runs]},
        results=results,
    )
    return found


def _tried(kind, moment, assets):
    return tried(KINDS[kind], MOMENTS[moment], assets)


def random_lines(runs):
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
    given = options(__doc__, steps=STEPS, moments=len(MOMENTS), jobs=2, results=RESULTS)
    study(given.results, given.steps, jobs=given.jobs, moments=given.moments)
