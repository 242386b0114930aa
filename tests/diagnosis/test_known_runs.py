"""Sick and unlearnable runs are named, with their kind; healthy ones have no sign. Each run's truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from apportion.diagnosis import health_of
from apportion.records import open_run, write_record
from tests.commands import printed
from tests.diagnosis.builders import record_of
from tests.diagnosis.known_runs import (
    GROUPS,
    HALF,
    LEARNS,
    STEADY,
    STEPS,
    at,
    constant,
    epoch,
    lengths,
    line,
    means,
    noisy,
    read,
    rollouts,
    spread,
)
from tests.records.importing.tables import jsonl

HEALTHY = {
    "learns, and answers get three times as long": lambda: rollouts(LEARNS, tokens=lengths(line(200, 600))),
    "learns, and its answers get shorter": lambda: rollouts(LEARNS, tokens=lengths(line(400, 150))),
    "learns with a sparse reward": lambda: rollouts(constant(0.02), groups=16),
    "a sparse reward that takes off": lambda: rollouts(line(0.005, 0.3), groups=16),
    "two data sets in turns": lambda: rollouts(
        lambda step, prompt: 0.8 if prompt < 20 else 0.1,
        prompt=lambda step, place: (step * GROUPS + place) % 20 + 20 * (step // 10 % 2),
    ),
    "prompts get harder": lambda: rollouts(
        lambda step, prompt: max(0.02, 0.9 - 0.8 * prompt / (STEPS * GROUPS)), prompt=epoch
    ),
    "easy prompts that come again give way to hard ones": lambda: rollouts(
        lambda step, prompt: 0.85 - 0.7 * (prompt >= 40) + 0.1 * step / STEPS,
        prompt=lambda step, place: (step * 5 + place * 3) % 40 + 40 * (place < step * GROUPS // STEPS),
    ),
    "answers of two or three tokens": lambda: rollouts(LEARNS, tokens=lambda s, r, rng: 2 + int(rng.random() < 0.6)),
    "answers of one short length": lambda: rollouts(LEARNS, tokens=constant(12)),
    "a quarter is cut": lambda: rollouts(LEARNS, finish_reason=stopped(0.25)),
    "one step": lambda: rollouts(spread(HALF), steps=1, groups=32),
    "the reward dips and comes back": lambda: rollouts(lambda s, p: 0.05 if 20 <= s < 26 else 0.6),
    "the entropy falls": lambda: means(reward=noisy(line(0.3, 0.8)), entropy=lambda s: 2.0 * math.exp(-s / 3) + 0.05),
    "data sets in blocks of ten steps": lambda: means(noisy(lambda s: 0.2 if s // 10 % 2 else 0.8), entropy=STEADY),
    "the KL divergence has one outlier": lambda: means(GAINS, steps=100, kl=lambda s: 5.0 if s == 30 else 0.01),
    "the KL divergence grows to a half": lambda: means(GAINS, kl=line(0.0, 0.5)),
    "one gradient overflows": lambda: means(GAINS, entropy=STEADY, grad_norm=lambda s: math.inf if s == 9 else 0.5),
    **{
        f"{term} falls while answers get better": lambda term=term: means(
            noisy(line(0.3, 0.7)),
            **{"rewards__accuracy__mean": noisy(line(0.3, 0.8)), f"rewards__{term}__mean": noisy(line(0.9, 0.4))},
        )
        for term in (
            "lengthPenalty",
            "soft_overlong_punishment",
            "xmlcount_reward_func",
            "language_consistency",
            "tags",
        )
    },
}
CUT = {
    "finish_reasons": ["length"],
    "done_reason": "length",
    "stop_reason": "MAX_TOKENS",
    "incomplete_details": {"reason": "max_output_tokens"},
    "status": "truncated",
    "hit_max_length": True,
    "response_truncated": 1,
}
"""What engines log of a completion that was cut, by the name of the column."""

SICK = {
    "all wrong: nothing is rewarded in one step": lambda: rollouts(constant(0.0), steps=1, groups=16),
    "all wrong: means of steps": lambda: means(constant(0.0), frac_reward_zero_std=constant(1.0), entropy=STEADY),
    "all right: 99% are": lambda: rollouts(constant(0.993)),
    "all right: means of steps": lambda: means(None, critic__score__mean=constant(0.995), actor__entropy=STEADY),
    "zero variance: half of the prompts are never, the others always solved": lambda: rollouts(
        lambda s, p: float(p % 2)
    ),
    "zero variance: the standard deviation of an older TRL's reward": lambda: means(
        constant(0.1), reward_std=constant(0.0)
    ),
    "truncation: all completions have one length": lambda: rollouts(LEARNS, tokens=constant(256)),
    "truncation: most stop at the limit, by their reason": lambda: rollouts(LEARNS, finish_reason=stopped(0.8)),
    "truncation: most, by a flag": lambda: rollouts(LEARNS, is_truncated=lambda s, r, rng: s > 20),
    **{
        f"truncation: all, by {name}": lambda name=name, cell=cell: rollouts(LEARNS, **{name: lambda s, r, rng: cell})
        for name, cell in CUT.items()
    },
    "truncation: most, by means": lambda: means(completions__clipped_ratio=at(30, 0.02, 0.9)),
    "not finite: NaN in the loss alone": lambda: means(entropy=STEADY, loss=at(50, 0.1, math.nan)),
    "not finite: the gradient stays infinite": lambda: means(entropy=STEADY, grad_norm=at(50, 0.1, math.inf)),
    "not finite: rewards are missing from a step on": lambda: [
        row | {"reward": None if row["step"] > 40 else row["reward"]} for row in rollouts(LEARNS)
    ],
    "collapse: the reward": lambda: rollouts(at(30, 0.6, 0.02)),
    "collapse: prompts that come once": lambda: rollouts(at(30, 0.6, 0.02), prompt=epoch),
    "collapse: the mean reward": lambda: means(noisy(at(60, 0.8, 0.05)), steps=100, loss=STEADY),
    "decline: the reward rises first": lambda: rollouts(
        lambda s, p: 0.3 + 0.5 * s / 20 if s < 20 else 0.8 - 0.5 * (s - 20) / 40
    ),
    "decline: the mean reward": lambda: means(noisy(line(0.7, 0.3)), entropy=STEADY),
    "farming: the reward rises and the accuracy of a part falls": lambda: rollouts(
        line(0.3, 0.95),
        accuracy_reward=lambda s, r, rng: float(rng.random() < 0.7 - 0.6 * s / STEPS),
        format_reward=constant(1.0),
    ),
    "farming: one reward function rises and another falls": lambda: means(
        noisy(line(0.8, 1.1)), rewards__helpful__mean=noisy(line(0.2, 0.95)), rewards__exact__mean=noisy(line(0.6, 0.2))
    ),
    "farming: the held-out accuracy falls": lambda: means(
        None, critic__score__mean=noisy(line(0.4, 0.95)), **{"val-core__math__acc__mean@1": noisy(line(0.5, 0.2))}
    ),
    "farming: the name of what falls has a word for shaping within another word": lambda: means(
        noisy(line(0.8, 1.1)),
        rewards__fluent__mean=noisy(line(0.2, 0.95)),
        rewards__silent_correct__mean=noisy(line(0.6, 0.2)),
    ),
    "kl: it drifts": lambda: means(kl=line(0.0, 3.0)),
    "entropy: it grows": lambda: means(entropy=line(0.4, 3.0)),
    "length: it is paid for": lambda: [
        row | {"reward": row["tokens"] / 2000 + 0.1 * row["reward"]}
        for row in rollouts(constant(0.3), tokens=lengths(line(100, 600)))
    ],
}
"""Runs by the kind of their sign, and what they are. The first screen below tells some more."""
GAINS = noisy(line(0.4, 0.8))


def stopped(share):
    """Return a column of reasons, of which this share says that a completion was cut."""
    return lambda step, reward, rng: "length" if rng.random() < share else "stop"


def farmed():
    """Return a run whose reward rises while the verdict beside it falls."""
    return rollouts(line(0.3, 0.95), correct=lambda s, r, rng: bool(rng.random() < 0.6 - 0.55 * s / STEPS))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_sign(name, tmp_path):
    assert health_of(*read(tmp_path, HEALTHY[name]())).signs == ()


@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_has_its_sign(name, tmp_path):
    found = health_of(*read(tmp_path, SICK[name]()))
    assert [sign.kind for sign in found.signs] == [name.partition(":")[0]], found


GOOD = "env__all__by_group__frac_all_good"
BAD = "env__all__by_group__frac_all_bad"
SCREENS = [
    (
        lambda: rollouts(constant(0.0)),
        """NOTHING TO LEARN from step 1 (all wrong): nothing is rewarded: 480 of 480 groups all wrong
        100% [100%, 100%] of the groups were dead (zero variance: 100% all wrong)
        No advice: nothing is left to learn here (all wrong)""",
    ),
    (
        lambda: rollouts(lambda s, p: min(1, 0.3 + s / 40)),
        """% at first and 100% at last,
        all right
        No advice""",
    ),
    (
        lambda: means(None, **{GOOD: line(0.2, 0.95, 80), BAD: constant(0.01), "env__all__reward__total": HALF}),
        "25% at first and 87% at last of the groups were dead: zero variance (at the end 86% all right, 1% all",
    ),
    (
        lambda: means(constant(0.4), frac_reward_zero_std=constant(0.7)),
        "70.00% of the groups were dead: zero variance (if rewards are 0 or 1, 10% to 40% all right, 30% to 60% all",
    ),
    (
        farmed,
        """? the reward is reward
        Wasted, as read (see ?):
        farming): reward hacking: reward rose from""",
    ),
    (
        lambda: rollouts(spread(line(0.7, 0.2))),
        """SICK from step 1 (decline): the mean reward fell from
        on the same prompts. Start again;""",
    ),
]


@pytest.mark.parametrize(("rows", "words"), SCREENS)
def test_the_first_screen_says_what_a_run_is(rows, words, tmp_path):
    shown = " ".join(printed("diagnose", jsonl(tmp_path / "run.jsonl", rows())).split())
    for each in words.splitlines():
        assert each.strip() in shown


def test_a_verdict_beside_the_reward_that_was_named_is_looked_at(tmp_path):
    path = jsonl(tmp_path / "run.jsonl", farmed())
    for named in ({"rewards": ["reward"]}, {"columns": {"reward": "reward"}}):
        record = open_run(path, **named)
        assert [sign.kind for sign in health_of(record).signs] == ["farming"]
        assert not any("the reward is" in doubt for doubt in record.doubts)


def test_a_verdict_in_an_object_beside_the_reward_is_looked_at(tmp_path):
    rows = [row | {"info": {"correct": row.pop("correct"), "note": "so"}} for row in farmed()]
    found = open_run(jsonl(tmp_path / "run.jsonl", rows))
    assert [sign.kind for sign in health_of(found).signs] == ["farming"]
    plain = [{"step": row["step"], "prompt": row["prompt"], "reward": row["reward"]} for row in rows]
    assert np.array_equal(found.reward, open_run(jsonl(tmp_path / "plain.jsonl", plain)).reward)


def test_an_imported_log_keeps_the_verdict_beside_the_reward(tmp_path):
    write_record(open_run(jsonl(tmp_path / "run.jsonl", farmed())), tmp_path / "log")
    assert [sign.kind for sign in health_of(open_run(tmp_path / "log")).signs] == ["farming"]


def test_groups_that_a_doubt_may_join_are_not_called_duplicates():
    record = record_of(np.ones((40, 4)), np.arange(40) // 2, np.arange(40) // 10)
    assert [sign.kind for sign in health_of(record).signs if sign.kind == "repeats"] == ["repeats"]
    doubted = replace(record, doubts=("2 runs in one? --column group= joins them",))
    assert all(sign.kind != "repeats" for sign in health_of(doubted).signs)
