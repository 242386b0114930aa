"""A scheduler: its price against batches, slots in use, and how long a decision takes.

The price is replayed on a recorded GRPO run; the slots are simulated (``benchmarks.slots``).

    python -m benchmarks.stream
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time

import numpy as np

from apportion import HORA, VIP, Prompt, Rollout, Uniform
from apportion.allocators.spending.price import Price
from apportion.allocators.vip import gradient_noise, gradient_variance, minimise_noise
from apportion.predictors import EmpiricalBayes, MeanLengths
from apportion.replay.foresight import batches_of
from apportion.scheduler import Rows, Scheduler, Selected
from apportion.types import Batch, Floats, Plan
from benchmarks.common import spread, table, write
from benchmarks.expected import HIGH, LOW, near_truth
from benchmarks.real_run_data import grpo_run
from benchmarks.slots import InOrder, Slots, simulate_slots

SEEDS = (0, 1, 2)
BATCH, SIZE, EPOCHS, SHOWN = 128, 8, 8, (0, 1, 7)
SLOTS, ROWS, HELD, UPDATES = 128, 512, 256, 16
BOUND = 1
LEARNT, BLOCKS = 4, 8
DECIDING = {"uniform": Uniform, "vip": VIP, "hora": HORA}
DATA_SETS = (1_000, 100_000)


def priced(data, seed):
    """Return RLOO's variance and the rollouts granted over uniform's, by way of splitting, of each epoch.

    The recorded groups of 8 teach the belief, whatever was granted.
    """
    predictor, record = EmpiricalBayes(), data.record(EPOCHS)
    prompts = data.prompts
    price = Price(VIP(rollouts_per_prompt=SIZE, low=LOW, high=HIGH, predictor=predictor), prompts)
    sums: dict[str, Floats] = {way: np.zeros((EPOCHS, 3)) for way in ("batches of 128", "price")}
    for places in batches_of(record, seed, BATCH):
        epoch, some = int(record.step[places[0]]), record.prompt[places]
        batch = price.rule.start([prompts[q] for q in some])
        truth, variance = near_truth(data.shares, epoch)[some], batch.belief.variance
        counts = {
            "batches of 128": minimise_noise(variance, SIZE * len(some), "rloo", LOW, HIGH),
            "price": np.array([price.take(batch.part([q])) for q in range(len(some))]),
        }
        uniform = float(gradient_variance(truth, np.full(len(some), SIZE)).sum())
        for way, found in counts.items():
            sums[way][epoch] += float(gradient_variance(truth, found).sum()), uniform, float(found.sum())
        price.rule.observe(_batch(data, record, places, predictor))
        price.forget()
    granted = SIZE * len(prompts)
    return {way: [(one / other, spent / granted) for one, other, spent in found] for way, found in sums.items()}


def by_order(data, seed):
    """Return the price's variance over that of an exact split of as many rollouts, by the order of the data set.

    The belief has learned from four epochs, which give the difficulties.
    """
    predictor, record = EmpiricalBayes(), data.record(LEARNT)
    for places in batches_of(record, seed, BATCH):
        predictor.update(_batch(data, record, places, predictor))
    believed = predictor.predict(data.prompts)
    rng = np.random.default_rng(seed)
    sorted_, blocks = np.argsort(believed.mean, kind="stable"), rng.permutation(BLOCKS)
    orders = {
        "mixed": rng.permutation(len(sorted_)), "sorted": sorted_, "reverse": sorted_[::-1],
        "blocks": np.concatenate([np.array_split(sorted_, BLOCKS)[block] for block in blocks]),
    }  # fmt: skip
    found = {}
    for order, places in orders.items():
        prompts, variance = [data.prompts[q] for q in places], believed.variance[places]
        price = Price(VIP(rollouts_per_prompt=SIZE, low=LOW, high=HIGH, predictor=predictor), prompts)
        counts = np.array([price.take(price.rule.start([prompt])) for prompt in prompts])
        exact = minimise_noise(variance, int(counts.sum()), "rloo", LOW, HIGH)
        found[order] = float(gradient_noise(variance, counts).sum() / gradient_noise(variance, exact).sum())
    return found


def _batch(data, record, places, predictor):
    """Return the recorded groups at these ``places`` as a batch."""
    some, epoch = record.prompt[places], int(record.step[places[0]])
    prompts = [data.prompts[q] for q in some]
    right = [[Rollout(bool(reward)) for reward in data.rewards[q, epoch]] for q in some]
    return Batch.start(prompts, predictor.predict(prompts)).add(Plan(np.full(len(some), SIZE)), right)


def in_use(way, seed):
    """Return the share of use by groups of 8, taken "in order", or opened by "predicted" lengths, the longest first."""
    engine = Slots(slots=SLOTS, prompts=HELD, update=0.0, seed=seed)
    lengths = MeanLengths(initial=1500) if way == "predicted" else None
    kind = InOrder if way == "in order" else Rows

    def make(prompts):
        return Scheduler(Uniform(SIZE), prompts, kind(ROWS, BOUND), Selected(lengths=lengths, seed=seed))

    return simulate_slots(engine, make, UPDATES).utilisation


def decision_times(rule, prompts, updates=8):
    """Return the median and the 99th percentile of the µs of ``decide`` and ``arrived`` on a data set so large."""
    pool = [Prompt(f"prompt {q}") for q in range(prompts)]
    rng, running, seconds = np.random.default_rng(0), [], []
    scheduler = Scheduler(rule, pool, Rows(ROWS, BOUND))
    while scheduler.version < updates:
        began = time.perf_counter()
        decision = scheduler.decide(SLOTS - len(running), 0.0)
        seconds.append(time.perf_counter() - began)
        running += decision.requests
        if decision.update is not None:
            scheduler.trained(decision.update.version)
        ticket, rollout = running.pop(int(rng.integers(len(running)))), Rollout(bool(rng.random() < 0.5), tokens=1)
        began = time.perf_counter()
        scheduler.arrived(ticket, rollout)
        seconds.append(time.perf_counter() - began)
    return 1e6 * np.quantile(seconds, [0.5, 0.99])


def main():
    """Write the tables."""
    data = grpo_run()
    runs = [priced(data, seed) for seed in SEEDS]
    prices = [[way, *(spread([run[way][e][0] for run in runs], ".3f") for e in SHOWN)] for way in runs[0]]
    prices.append(["price, rollouts", *(spread([run["price"][e][1] for run in runs], ".3f") for e in SHOWN)])
    times = [
        [name, f"{few:.0f} / {few_late:.0f}", f"{many:.0f} / {many_late:.0f}"]
        for name, rule in DECIDING.items()
        for (few, few_late), (many, many_late) in [[decision_times(rule(), size) for size in DATA_SETS]]
    ]
    orders = [by_order(data, seed) for seed in SEEDS]
    ordered = [[order, spread([run[order] for run in orders], ".3f")] for order in orders[0]]
    used = [spread([in_use(way, seed) for seed in SEEDS], ".3f") for way in ("in order", "predicted")]
    write(
        "stream",
        "A stream without batches",
        ["VIP's variance over uniform's", *(f"epoch {epoch}" for epoch in SHOWN)],
        prices,
        [
            "RLOO's gradient variance on a recorded GRPO run (1,209 problems, 8 rollouts a prompt, 3 to 32). "
            "The default belief learns after each 128 prompts. A batch spends its budget exactly; the last row is what "
            "the price spends.",
            table(["order of the data set", "variance over an exact split's"], ordered),
            "What the bounded carry costs where difficulties come in order, at the default slack, by the variances "
            f"that are believed after {LEARNT} epochs; {BLOCKS} blocks of the sorted data in random order.",
            table(["age bound", "in order", "longest first, predicted"], [[BOUND, *used]]),
            f"Share of the time that {SLOTS} slots sample if updates take no time; groups of 8, {ROWS} rollouts an "
            f"update, {HELD} prompts, lognormal lengths, {UPDATES} updates without the first quarter.",
            table(["rule", *(f"{size:,} prompts" for size in DATA_SETS)], times),
            "µs of a call of `decide` or `arrived`: median / 99th percentile.",
        ],
        seeds=SEEDS,
    )


if __name__ == "__main__":
    main()
