"""Rules on simulated populations: what planning costs from a thousand prompts to a million, and when which rule gains.

Nothing is trained, so this says nothing about learning. The populations were fixed before any result was looked at. The
costs are measured in a process of their own for each rule and size.

    python -m benchmarks.population_scale
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import resource
import subprocess
import sys

import numpy as np

from apportion.simulation import BetaMixture, Population, course, estimate, make_rule, simulate
from benchmarks.common import table, write

SIZES = (1_000_000,)
COST_RULES = ("vip", "vip+mixed", "vip:embeddings+mixed")
COST_STEPS, COST_BATCH, COST_EMBEDDING = 8, 512, 16

SEEDS = (0, 1, 2, 3, 4)
PROMPTS, BATCH, STEPS, LATE = 1_000, 64, 96, 48
"""Six epochs; the last three are the late ones."""
EPOCH = 15

RULES = ("vip", "hora", "uniform+mixed", "vip+mixed")
SPREADS = {"0.5": 0.5, "2 (uniform)": 2.0, "8": 8.0}
DRIFTS = (0.0, 0.3)
NOISES = ((0.0, 0.0), (0.05, 0.0), (0.0, 0.05), (0.1, 0.1))


def cost(rule, prompts):
    """Return the median milliseconds in which a step after the first chooses its prompts, and the peak GiB."""
    size = COST_EMBEDDING if "embeddings" in rule else 0
    population = Population(prompts=prompts, drift=0.05, embedding_size=size)
    made = make_rule(rule, population)
    seconds = [step.seconds.choose for step in course(population, made, COST_STEPS, COST_BATCH)]
    return 1000 * float(np.median(seconds[1:])), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def costs():
    rows = []
    for rule in COST_RULES:
        for prompts in SIZES:
            command = [sys.executable, "-m", "benchmarks.population_scale", rule, str(prompts)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
            choose, peak = json.loads(done.stdout)
            rows.append([rule, f"{prompts:,}", f"{choose:,.1f}", f"{peak:.2f}"])
            print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def variance(found, rule, steps):
    """Return the RLOO variance over that of an even split, in some of the steps."""
    course = found.courses[rule]
    return str(estimate(course.of("variance")[:, steps].sum(axis=1) / course.of("uniform")[:, steps].sum(axis=1)))


def run(population, rules):
    return simulate(population, rules, STEPS, BATCH, SEEDS, 8)


def by_rule():
    found, rows = run(Population(prompts=PROMPTS), RULES), []
    for rule in ("uniform", *RULES):
        groups = [str(found.share(rule, name)) for name in ("mixed", "hits")]
        rows.append(["like-the-run", rule, str(found.variance(rule)), *groups])
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def gains():
    """Return what VIP gains, by population: in the first epoch, late, and at exact p."""
    drifts = {f"like-the-run, drift {drift:g}": Population(prompts=PROMPTS, drift=drift) for drift in DRIFTS}
    spread = {
        f"Beta, mean .5, strength {name}": Population(prompts=PROMPTS, shape=BetaMixture.single(0.5, each))
        for name, each in SPREADS.items()
    }
    late, rows = slice(STEPS - LATE, None), []
    for name, population in (spread | drifts).items():
        found = run(population, ["vip"])
        phases = [variance(found, "vip", slice(EPOCH)), variance(found, "vip", late)]
        rows.append([name, *phases, variance(found, "vip:oracle", late)])
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def by_noise():
    rows = []
    for false_positive, false_negative in NOISES:
        population = Population(prompts=PROMPTS, false_positive=false_positive, false_negative=false_negative)
        found = run(population, ["vip"])
        known = [str(found.variance("vip")), str(found.share("vip", "spurious"))]
        rows.append([f"{false_positive:g} / {false_negative:g}", *known])
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def main():
    write(
        "population_scale",
        "Rules on simulated populations of prompts",
        ["rule", "prompts", "choose", "GiB"],
        costs(),
        [
            f"Cost of the decisions: median CPU milliseconds of a step after the first, {COST_BATCH} prompts a step, 8 "
            'rollouts each; peak memory. After "+" is the selection, which predicts all prompts in `choose`. The '
            f"embeddings have {COST_EMBEDDING} dimensions.",
            f"Gains, on {PROMPTS:,} prompts, {BATCH} a step, {STEPS} steps (6 epochs of shuffled prompts), 8 rollouts. "
            "Mean over seeds ± half of the 95% interval (Student's t). variance: RLOO's at the true p over that of an "
            "even split; late: in the last 3 epochs. mixed, hits: shares of groups with both rewards, with a right "
            "rollout.",
            "## By rule",
            table(["population", "rule", "variance", "mixed", "hits"], by_rule()),
            "## VIP by the spread of p and by its drift in log-odds a step",
            table(["population", "first epoch", "late", "exact p, late"], gains()),
            "## VIP by the errors of the verifier, on like-the-run",
            table(["false positives / negatives", "variance", "spurious"], by_noise()),
            "p is the probability of a reward here. spurious: mixed groups whose rollouts are all right or all wrong "
            "in truth.",
        ],
        seeds=SEEDS,
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(cost(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
