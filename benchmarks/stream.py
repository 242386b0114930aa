"""A stream without batches: its price against batches, slots in use, ages, selection, and the time of a decision.

The price and the selection are replayed on a recorded GRPO run; the slots are simulated (``apportion.simulation``).

    python -m benchmarks.stream
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable, Sequence

import numpy as np

from apportion import HORA, VIP, Allocator, Prompt, Rollout, Uniform
from apportion.allocators.spending.price import Price
from apportion.allocators.vip import gradient_variance, minimise_noise
from apportion.predictors import EmpiricalBayes, MeanLengths
from apportion.replay.expected import HIGH, LOW, near_truth
from apportion.replay.foresight import batches_of
from apportion.selection import Mixed, Selector
from apportion.selection.ranked import RankedPrompts
from apportion.simulation import InOrder, KnownLengths, NewFirst, SlotMeasures, Slots, simulate_slots
from apportion.stream import Stream, Ticket
from apportion.types import Counts, Floats, Plan
from benchmarks.common import spread, table, write
from benchmarks.real_run_data import Recorded, grpo_run

SEEDS = (0, 1, 2)
BATCH, SIZE, EPOCHS, SHOWN = 128, 8, 8, (0, 1, 2, 4, 7)
SLOTS, ROWS, HELD, UPDATES = 128, 512, 256, 16
BOUNDS, UPDATE_TIMES = (1, 2, 4), (0.0, 0.5, 0.9)
WAVES = tuple((slots, sigma) for slots in (128, 512) for sigma in (0.5, 1.0))
DATA_SETS, DECISIONS, IN_FLIGHT = (1_000, 1_000_000), 12_000, 256


def priced(data: Recorded, seed: int) -> dict[str, list[tuple[float, float]]]:
    """Return RLOO's variance and the rollouts granted over uniform's, by way of splitting, of each epoch.

    The recorded groups of 8 teach the belief, whatever was granted.
    """
    predictor, record = EmpiricalBayes(), data.record(EPOCHS)
    prompts = data.prompts
    price = Price(VIP(rollouts_per_prompt=SIZE, low=LOW, high=HIGH, predictor=predictor), prompts)
    sums: dict[str, Floats] = {way: np.zeros((EPOCHS, 3)) for way in ("batches of 128", "batches of 16", "price")}
    for places in batches_of(record, seed, BATCH):
        epoch, some = int(record.step[places[0]]), record.prompt[places]
        batch = price.rule.start([prompts[q] for q in some])
        truth, variance = near_truth(data.shares, epoch)[some], batch.belief.variance
        counts = {
            "batches of 128": minimise_noise(variance, SIZE * len(some), "rloo", LOW, HIGH),
            "batches of 16": np.concatenate([_split(part) for part in _parts(variance, 16)]),
            "price": np.array([price.take(batch.part([q])) for q in range(len(some))]),
        }
        uniform = float(gradient_variance(truth, np.full(len(some), SIZE)).sum())
        for way, found in counts.items():
            sums[way][epoch] += float(gradient_variance(truth, found).sum()), uniform, float(found.sum())
        right = [[Rollout(bool(reward)) for reward in data.rewards[q, epoch]] for q in some]
        price.rule.observe(batch.add(Plan(np.full(len(some), SIZE)), right))
        price.forget()
    granted = SIZE * len(prompts)
    return {way: [(one / other, spent / granted) for one, other, spent in found] for way, found in sums.items()}


def _parts(variance: Floats, size: int) -> list[Floats]:
    return [variance[first : first + size] for first in range(0, len(variance), size)]


def _split(variance: Floats) -> Counts:
    return minimise_noise(variance, SIZE * len(variance), "rloo", LOW, HIGH)


def chosen(
    data: Recorded, make: Callable[[], Selector | None], seed: int, bound: int, known: bool = False
) -> list[float]:
    """Return the share of mixed groups in each third of 8 epochs' groups, of a stream that samples 128 at a time.

    The verdicts of a prompt are those of the recorded visit that the run had reached by then. If the rates are
    ``known``, they are ranked by in place of the belief.
    """
    prompts, rng = data.prompts, np.random.default_rng(seed)
    size = len(prompts)
    stream = Stream(Uniform(SIZE), prompts, rows_an_update=BATCH * SIZE, age_bound=bound, selection=make(), seed=seed)
    running: list[Ticket] = []
    visit: dict[int, int] = {}
    mixed: list[bool] = []
    now = 0.0
    if known:
        rank = stream._selection
        assert isinstance(rank, RankedPrompts)
        rank._scored = lambda places: mixed_rate(data, min(EPOCHS - 1, len(mixed) // size))[places]  # type: ignore
        rank._scores = rank._scored(np.arange(size))
    while len(mixed) < EPOCHS * size:
        decision = stream.decide(BATCH * SIZE - len(running), now)
        running += decision.requests
        if decision.update is not None:
            mixed += [group.informative for group in decision.update.groups]
            stream.trained(decision.update.version)
        now += 1
        for _ in range(min(64, len(running))):
            place = int(rng.integers(len(running)))
            running[place], ticket = running[-1], running[place]
            running.pop()
            epoch = visit.setdefault(ticket.unit, len(mixed) // size)
            stream.arrived(ticket, Rollout(bool(data.rewards[int(ticket.prompt.id), epoch, ticket.rollout])))
    return _thirds(mixed, size)


def mixed_rate(data: Recorded, epoch: int) -> Floats:
    """Return the chance [Q] of a group with both verdicts at an epoch of the recorded run."""
    rate = near_truth(data.shares, epoch)
    return 1 - rate**SIZE - (1 - rate) ** SIZE


def chosen_in_batches(data: Recorded, seed: int) -> list[float]:
    """Return the share of mixed groups in each third of 8 epochs' groups, by P(mixed) in batches of 128, one by one."""
    selection, rule, mixed = Mixed(), Uniform(SIZE), list[bool]()
    selection.prepare(data.prompts, seed)
    while len(mixed) < EPOCHS * len(data.prompts):
        epoch = min(EPOCHS - 1, len(mixed) // len(data.prompts))
        places = selection.choose(BATCH)
        right = [[Rollout(bool(reward)) for reward in data.rewards[q, epoch]] for q in places]
        batch = rule.start([data.prompts[q] for q in places]).add(Plan(np.full(BATCH, SIZE)), right)
        mixed += [group.informative for group in rule.groups(batch)]
        selection.observe(batch)
    return _thirds(mixed, len(data.prompts))


def _thirds(mixed: Sequence[bool], size: int) -> list[float]:
    return [float(third.mean()) for third in np.array_split(np.array(mixed[: EPOCHS * size], float), 3)]


def in_use(bound: int, update: float, way: str, seed: int) -> SlotMeasures:
    """Return the measures of groups of 8, by how the trainer takes them or how prompts are opened."""
    size = 1 if way == "singles" else SIZE
    engine = Slots(slots=SLOTS, prompts=HELD * SIZE // size, update=update, seed=seed)
    lengths = {"predicted": MeanLengths(initial=1500), "known": KnownLengths(engine=engine)}.get(way)
    kind = InOrder if way == "in order" else Stream

    def make(prompts: Sequence[Prompt]) -> Stream:
        return kind(Uniform(size), prompts, rows_an_update=ROWS, age_bound=bound, lengths=lengths, seed=seed)

    return simulate_slots(engine, make, UPDATES)


def two_stages(bound: int, kind: type[Stream], seed: int) -> SlotMeasures:
    """Return the measures of HORA with 4 pilots and 4 more on average, at most 16 a prompt."""
    engine = Slots(slots=SLOTS, prompts=HELD, seed=seed)

    def make(prompts: Sequence[Prompt]) -> Stream:
        return kind(_hora(), prompts, rows_an_update=ROWS, age_bound=bound, seed=seed)

    return simulate_slots(engine, make, UPDATES)


def waves(slots: int, sigma: float, seed: int) -> dict[str, float]:
    """Return the time of 1,024 rollouts over that of one wave of 128 groups of 8 behind a barrier, by way."""
    engine = Slots(slots=slots, prompts=640, sigma=sigma, seed=seed)
    ways: dict[str, tuple[Callable[[], Allocator], int | None, int]] = {
        "one": (lambda: Uniform(SIZE), BATCH, 0),
        "two waves": (_hora, BATCH, 0),
        "no wave, bound 0": (_hora, None, 0),
        "no wave, bound 1": (_hora, None, 1),
        "no wave, bound 2": (_hora, None, 2),
    }
    found = {}
    for way, (rule, batch, bound) in ways.items():

        def make(
            prompts: Sequence[Prompt],
            rule: Callable[[], Allocator] = rule,
            batch: int | None = batch,
            bound: int = bound,
        ) -> Stream:
            return Stream(rule(), prompts, rows_an_update=BATCH * SIZE, age_bound=bound, batch=batch)

        measures = simulate_slots(engine, make, 6)
        found[way] = measures.seconds
        if way == "no wave, bound 0":
            found["least, bound 0"] = measures.least
    return {way: seconds / found["one"] for way, seconds in found.items()}


def _hora() -> HORA:
    return HORA(rollouts_per_prompt=SIZE, pre_rollouts=SIZE // 2, high=2 * SIZE)


def decisions(size: int, selection: Selector | None) -> tuple[Floats, Floats]:
    """Return the CPU seconds of each result and decision at a free slot, and of each update learnt from."""
    prompts = [Prompt(f"{q}", id=f"p{q}") for q in range(size)]
    stream = Stream(
        VIP(rollouts_per_prompt=SIZE), prompts, rows_an_update=BATCH * SIZE, age_bound=2, selection=selection
    )
    rng = np.random.default_rng(0)
    rates, running = rng.beta(0.4, 0.4, size), list(stream.decide(IN_FLIGHT, 0.0).requests)
    single, learnt = [], []
    for now in range(1, DECISIONS):
        place = int(rng.integers(len(running)))
        running[place], ticket = running[-1], running[place]
        running.pop()
        rollout = Rollout(bool(rng.random() < rates[int(ticket.prompt.id[1:])]))
        begun = time.thread_time()
        stream.arrived(ticket, rollout)
        decision = stream.decide(1, float(now))
        single.append(time.thread_time() - begun)
        running += decision.requests
        if decision.update is not None:
            begun = time.thread_time()
            stream.trained(decision.update.version)
            running += stream.decide(IN_FLIGHT - len(running), float(now)).requests
            learnt.append(time.thread_time() - begun)
    return np.array(single), np.array(learnt)


def main() -> None:
    """Write the tables."""
    data = grpo_run()
    runs = [priced(data, seed) for seed in SEEDS]
    prices = [[way, *(spread([run[way][e][0] for run in runs], ".3f") for e in SHOWN)] for way in runs[0]]
    prices.append(["price, rollouts", *(spread([run["price"][e][1] for run in runs], ".3f") for e in SHOWN)])
    selections = [
        [name, *(spread([found[third] for found in own], ".2f") for third in range(3))]
        for name, own in (
            ("shuffled, bound 2", [chosen(data, lambda: None, seed, 2) for seed in SEEDS]),
            *(
                (f"P(mixed), bound {bound}", [chosen(data, Mixed, seed, bound) for seed in SEEDS])
                for bound in (2, 1, 0)
            ),
            *(
                (f"rates known, bound {bound}", [chosen(data, Mixed, seed, bound, known=True) for seed in SEEDS])
                for bound in (2, 0)
            ),
            ("P(mixed), batches of 128", [chosen_in_batches(data, seed) for seed in SEEDS]),
        )
    ]
    used = []
    for bound in BOUNDS:
        for update in UPDATE_TIMES:
            cells = {
                way: [in_use(bound, update, way, seed) for seed in SEEDS]
                for way in ("in order", "bound", "predicted", "known", "singles")
            }
            means = [spread([m.utilisation for m in own], ".3f") for own in cells.values()]
            ages = max(m.largest_age for way in ("bound", "predicted") for m in cells[way])
            used.append([f"{bound}", f"{update}", *means, ages, spread([m.long_share for m in cells["bound"]], ".2f")])
    staged = [
        [f"{bound}", name, spread([m.utilisation for m in own], ".3f"), spread([m.age for m in own], ".2f"),
         max(m.largest_age for m in own), spread([m.budget for m in own], ".2f"), f"{max(m.carry for m in own):.0f}"]
        for bound in (1, 2)
        for name, kind in (("in order", InOrder), ("new prompts first", NewFirst), ("old prompts first", Stream))
        for own in [[two_stages(bound, kind, seed) for seed in SEEDS]]
    ]  # fmt: skip
    served = []
    for slots, sigma in WAVES:
        found = [waves(slots, sigma, seed) for seed in SEEDS]
        ways = [way for way in found[0] if way != "one"]
        served.append([f"{slots}, {sigma}", *(spread([each[way] for each in found], ".2f") for way in ways)])
    times = []
    for size in DATA_SETS:
        for name, selection in (("shuffled", None), ("P(mixed)", Mixed())):
            single, learnt = decisions(size, selection)
            p50, p99 = 1e6 * np.quantile(single, [0.5, 0.99])
            times.append([f"{size:,}, {name}", f"{p50:.0f}", f"{p99:.0f}", f"{1e3 * np.median(learnt):.0f}"])
    write(
        "stream",
        "A stream without batches",
        ["VIP's variance over uniform's", *(f"epoch {epoch}" for epoch in SHOWN)],
        prices,
        [
            "RLOO's gradient variance on a recorded GRPO run (1,209 problems, 8 rollouts a prompt, 3 to 32). "
            "The default belief learns after each 128 prompts. A batch spends its budget exactly; the last row is what "
            "the price spends.",
            table(["mixed groups", "first third", "second", "last"], selections),
            "Share of groups with both verdicts on the same run, 8 epochs of groups of 8, 1,024 slots. Up to 128 "
            "groups run or wait at bound 0, and 128 more for each update of the bound: they are held, which leaves "
            "fewer good prompts. No belief can beat known rates: the rest is chance, and the tenth that explores.",
            table(
                [
                    "age bound",
                    "update over sampling",
                    "in order",
                    "bound",
                    "longest first, predicted",
                    "longest first, known",
                    "single rollouts",
                    "largest age",
                    "share of the longest tenth",
                ],
                used,
            ),
            f"Share of the time that {SLOTS} slots sample; groups of 8, {ROWS} rollouts an update, {HELD} prompts, "
            f"lognormal lengths (sigma 1, half of the variance the prompt's, cut at the 99th percentile), {UPDATES} "
            "updates without the first quarter. The largest age is that of bound and of longest first, predicted. "
            f"Single rollouts have {HELD * SIZE:,} prompts of one rollout each.",
            table(
                [
                    "age bound",
                    "4 + 4 rollouts",
                    "slots in use",
                    "mean age",
                    "largest age",
                    "rollouts a prompt",
                    "largest carry",
                ],
                staged,
            ),
            "HORA by a price, 4 pilots and 4 more on average, at most 16. The trainer takes no time.",
            table(
                [
                    "slots, sigma",
                    "two waves",
                    "no wave, bound 0",
                    "least, bound 0",
                    "no wave, bound 1",
                    "no wave, bound 2",
                ],
                served,
            ),
            "Time of 1,024 rollouts of the same HORA over that of one wave of 128 groups of 8 behind a barrier. The "
            "least is that of any order of the same requests: the work over the slots, or the longest prompt.",
            table(["prompts, selection", "decision, us (50%)", "us (99%)", "update, ms"], times),
            "CPU time of a result with the decision that follows, VIP by a price, 256 slots; and of an update of 128 "
            "groups, with what is learnt, the new price and the new order.",
        ],
        seeds=SEEDS,
    )


if __name__ == "__main__":
    main()
