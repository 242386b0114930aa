"""Sick and unlearnable runs are named, with their kind; healthy ones have no sign. Each run's truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from apportion.diagnosis import health_of
from apportion.records import ScalarsOnlyError, open_run, write_record
from tests.commands import printed
from tests.diagnosis.builders import record_of
from tests.diagnosis.known_runs import (
    GROUPS,
    HALF,
    STEPS,
    at,
    constant,
    epoch,
    lengths,
    line,
    means,
    noisy,
    rollouts,
    spread,
)
from tests.records.importing.tables import jsonl

NAN = float("nan")
LEARNS = spread(line(0.3, 0.75))
HEALTHY = {
    "learns": lambda: rollouts(LEARNS),
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
    "a quarter is cut": lambda: rollouts(
        LEARNS, finish_reason=lambda s, r, rng: "length" if rng.random() < 0.25 else "stop"
    ),
    "one step": lambda: rollouts(spread(HALF), steps=1, groups=32),
    "the reward dips and comes back": lambda: rollouts(lambda s, p: 0.05 if 20 <= s < 26 else 0.6),
    "the entropy falls": lambda: means(reward=noisy(line(0.3, 0.8)), entropy=lambda s: 2.0 * math.exp(-s / 3) + 0.05),
    "data sets in blocks of ten steps": lambda: means(
        reward=noisy(lambda s: 0.2 if s // 10 % 2 else 0.8), entropy=noisy(HALF)
    ),
    "the KL divergence has one outlier": lambda: means(
        100, reward=noisy(line(0.4, 0.8)), kl=lambda s: 5.0 if s == 30 else 0.01
    ),
    "the KL divergence grows to a half": lambda: means(reward=noisy(line(0.4, 0.8)), kl=line(0.0, 0.5)),
    "one gradient overflows": lambda: means(
        reward=noisy(line(0.4, 0.8)), entropy=noisy(HALF), grad_norm=lambda s: float("inf") if s == 9 else 0.5
    ),
    "a penalty grows while answers get better": lambda: means(
        reward=noisy(line(0.3, 0.7)),
        rewards__accuracy__mean=noisy(line(0.3, 0.8)),
        rewards__length_penalty__mean=noisy(line(0.9, 0.4)),
    ),
}
SICK = {
    "nothing is rewarded": ("all wrong", lambda: rollouts(constant(0.0))),
    "nothing is rewarded in one step": ("all wrong", lambda: rollouts(constant(0.0), steps=1, groups=16)),
    "means of steps of which none is rewarded": (
        "all wrong",
        lambda: means(reward=constant(0.0), frac_reward_zero_std=constant(1.0), entropy=noisy(HALF)),
    ),
    "99% are right": ("all right", lambda: rollouts(constant(0.993))),
    "all are right in the end": ("all right", lambda: rollouts(lambda s, p: min(1, 0.4 + s / 30))),
    "means of steps of which all are right": (
        "all right",
        lambda: means(**{"critic__score__mean": constant(0.995), "actor__entropy": noisy(HALF)}),
    ),
    "half of the prompts are never, the others always solved": (
        "zero variance",
        lambda: rollouts(lambda s, p: float(p % 2)),
    ),
    "all completions have one length": ("truncation", lambda: rollouts(LEARNS, tokens=constant(256))),
    "most stop at the limit, by their reason": (
        "truncation",
        lambda: rollouts(LEARNS, finish_reason=lambda s, r, rng: "length" if rng.random() < 0.8 else "stop"),
    ),
    "most are truncated, by a flag": ("truncation", lambda: rollouts(LEARNS, is_truncated=lambda s, r, rng: s > 20)),
    "most are cut, by means": (
        "truncation",
        lambda: means(reward=noisy(HALF), completions__clipped_ratio=at(30, 0.02, 0.9)),
    ),
    "NaN in the loss alone": (
        "not finite",
        lambda: means(reward=noisy(HALF), entropy=noisy(HALF), loss=at(50, 0.1, NAN)),
    ),
    "the gradient stays infinite": (
        "not finite",
        lambda: means(reward=noisy(HALF), entropy=noisy(HALF), grad_norm=at(50, 0.1, float("inf"))),
    ),
    "rewards are missing from a step on": (
        "not finite",
        lambda: [row | {"reward": None if row["step"] > 40 else row["reward"]} for row in rollouts(LEARNS)],
    ),
    "the reward collapses": ("collapse", lambda: rollouts(at(30, 0.6, 0.02))),
    "the reward collapses on prompts that come once": ("collapse", lambda: rollouts(at(30, 0.6, 0.02), prompt=epoch)),
    "the reward declines all the time": ("decline", lambda: rollouts(spread(line(0.7, 0.2)))),
    "the reward rises, then declines": (
        "decline",
        lambda: rollouts(lambda s, p: 0.3 + 0.5 * s / 20 if s < 20 else 0.8 - 0.5 * (s - 20) / 40),
    ),
    "the mean reward declines": ("decline", lambda: means(reward=noisy(line(0.7, 0.3)), entropy=noisy(HALF))),
    "the reward rises and the accuracy of a part falls": (
        "farming",
        lambda: rollouts(
            line(0.3, 0.95),
            accuracy_reward=lambda s, r, rng: float(rng.random() < 0.7 - 0.6 * s / STEPS),
            format_reward=constant(1.0),
        ),
    ),
    "the standard deviation of an older TRL's reward is 0": (
        "zero variance",
        lambda: means(reward=constant(0.1), reward_std=constant(0.0)),
    ),
    "the reward rises and the verdict falls in a table": (
        "farming",
        lambda: rollouts(line(0.3, 0.95), correct=lambda s, r, rng: bool(rng.random() < 0.6 - 0.55 * s / STEPS)),
    ),
    "one reward function rises and another falls": (
        "farming",
        lambda: means(
            reward=noisy(line(0.8, 1.1)),
            rewards__helpful__mean=noisy(line(0.2, 0.95)),
            rewards__exact__mean=noisy(line(0.6, 0.2)),
        ),
    ),
    "the held-out accuracy falls": (
        "farming",
        lambda: means(
            **{"critic__score__mean": noisy(line(0.4, 0.95)), "val-core__math__acc__mean@1": noisy(line(0.5, 0.2))}
        ),
    ),
    "the mean reward collapses": ("collapse", lambda: means(100, reward=noisy(at(60, 0.8, 0.05)), loss=noisy(HALF))),
    "the KL divergence drifts": ("kl", lambda: means(reward=noisy(HALF), kl=line(0.0, 3.0))),
    "the entropy grows": ("entropy", lambda: means(reward=noisy(HALF), entropy=line(0.4, 3.0))),
    "length is paid for": (
        "length",
        lambda: [
            row | {"reward": row["tokens"] / 2000 + 0.1 * row["reward"]}
            for row in rollouts(constant(0.3), tokens=lengths(line(100, 600)))
        ],
    ),
}


def read(tmp_path, rows):
    """Return a run and its series of steps as they are read from a file."""
    try:
        return open_run(jsonl(tmp_path / "run.jsonl", rows)), None
    except ScalarsOnlyError as error:
        return None, error.scalars


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_sign(name, tmp_path):
    found = health_of(*read(tmp_path, HEALTHY[name]()))
    assert found.signs == ()


@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_has_its_sign(name, tmp_path):
    kind, rows = SICK[name]
    found = health_of(*read(tmp_path, rows()))
    assert [sign.kind for sign in found.signs] == [kind], found


def told(tmp_path, rows):
    """Return the first screen as one line."""
    return " ".join(printed("diagnose", jsonl(tmp_path / "run.jsonl", rows)).split())


GOOD = "env__all__by_group__frac_all_good"
BAD = "env__all__by_group__frac_all_bad"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            lambda: rollouts(constant(0.0)),
            [
                "NOTHING TO LEARN from step 1 (all wrong): nothing is rewarded: 480 of 480 groups all wrong",
                "100% [100%, 100%] of the groups were dead (zero variance: 100% all wrong)",
                "No advice: nothing is left to learn here (all wrong)",
            ],
        ),
        (
            lambda: rollouts(lambda s, p: min(1, 0.3 + s / 40)),
            ["% at first and 100% at last, ", "all right", "No advice"],
        ),
        (
            lambda: means(**{GOOD: line(0.2, 0.95, 80), BAD: constant(0.01), "env__all__reward__total": HALF}),
            ["25% at first and 87% at last of the groups were dead: zero variance (at the end 86% all right, 1% all"],
        ),
        (
            lambda: means(reward=constant(0.4), frac_reward_zero_std=constant(0.7)),
            [
                "70.00% of the groups were dead: zero variance (if rewards are 0 or 1, 10% to 40% all right, "
                "30% to 60% all wrong)"
            ],
        ),
        (
            lambda: rollouts(line(0.3, 0.95), correct=lambda s, r, rng: bool(rng.random() < 0.6 - 0.55 * s / STEPS)),
            ["? the reward is reward", "Wasted, as read (see ?): ", "farming): reward hacking: reward rose from"],
        ),
        (
            lambda: rollouts(spread(line(0.7, 0.2))),
            ["SICK from step 1 (decline): the mean reward fell from", "on the same prompts. Start again;"],
        ),
    ],
)
def test_the_first_screen_says_what_a_run_is(rows, words, tmp_path):
    text = told(tmp_path, rows())
    for each in words:
        assert each in text


def test_a_verdict_beside_the_reward_that_was_named_is_looked_at(tmp_path):
    rows = rollouts(line(0.3, 0.95), correct=lambda s, r, rng: bool(rng.random() < 0.6 - 0.55 * s / STEPS))
    for named in ({"rewards": ["reward"]}, {"columns": {"reward": "reward"}}):
        record = open_run(jsonl(tmp_path / "run.jsonl", rows), **named)
        assert [sign.kind for sign in health_of(record).signs] == ["farming"]
        assert not any("the reward is" in doubt for doubt in record.doubts)


def test_an_imported_log_keeps_the_verdict_beside_the_reward(tmp_path):
    rows = rollouts(line(0.3, 0.95), correct=lambda s, r, rng: bool(rng.random() < 0.6 - 0.55 * s / STEPS))
    write_record(open_run(jsonl(tmp_path / "run.jsonl", rows)), tmp_path / "log")
    assert [sign.kind for sign in health_of(open_run(tmp_path / "log")).signs] == ["farming"]


def test_groups_that_a_doubt_may_join_are_not_called_duplicates():
    record = record_of(np.ones((40, 4)), np.arange(40) // 2, np.arange(40) // 10)
    assert [sign.kind for sign in health_of(record).signs if sign.kind == "repeats"] == ["repeats"]
    doubted = replace(record, doubts=("2 runs in one? --column group= joins them",))
    assert all(sign.kind != "repeats" for sign in health_of(doubted).signs)
