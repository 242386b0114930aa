"""The measures and verdicts of the tool-augmented study."""

import pytest

from benchmarks.evidence.claim import Verdict
from benchmarks.evidence.vip_tools import CLAIMS, ESTIMATORS, verdict_of
from benchmarks.evidence.vip_tools_measured import MEASURES, RULES, em, retrieval


def asked(*replies, answer="chile"):
    messages = [{"role": "tool", "content": " | ".join(found)} for found in replies]
    return [*messages, {"role": "assistant", "content": f"{answer} "}]


def test_precision_is_a_mean_over_searches_and_recall_is_over_all_of_them():
    gold, other = ["a b", "c d", "e f", "g h"], ["v", "w", "x", "y", "z"]
    assert retrieval(asked(["a b", *other[:4]], ["a b", "c d", *other[:3]]), gold) == pytest.approx((0.3, 0.375))
    assert retrieval(asked(["a b c d", *other[:4]]), gold) == (0.0, 0.0)  # a passage counts as a whole
    assert retrieval(asked(), gold) == (0.0, 0.0)


def test_exact_match_is_of_the_last_words_alone():
    unfinished = [{"role": "assistant", "content": "chile"}, {"role": "tool", "content": "chile"}]
    completions = [asked(), asked(answer="in chile"), unfinished, [{"role": "assistant", "tool_calls": []}]]
    assert em(completions, ["chile"] * 4) == [1.0, 0.0, 0.0, 0.0]


def test_a_verdict_needs_every_setting():
    assert verdict_of([1, 1]) == Verdict.HOLDS
    assert verdict_of([1, -1]) == verdict_of([0, 1]) == Verdict.CONDITIONS
    assert verdict_of([0, -1]) == Verdict.FAILS
    assert verdict_of([0, 0]) == Verdict.OPEN


def measured(gain):
    """Return values in which VIP gains ``gain(measure, seed)`` and nothing else differs."""
    rule = {"area": [0.5] * 4, "most": [8.0] * 4, "before": {name: [0.1] * 4 for name in MEASURES}}
    rules = {
        each: rule
        | {"after": {name: [0.5 + gain(name, i) * each.startswith("vip") for i in range(4)] for name in MEASURES}}
        for each in RULES
    }
    return {f"vip_tools.{estimator}": {"rate": 0.001, "sweep": [], **rules} for estimator in ESTIMATORS}


@pytest.mark.parametrize(
    ("gain", "verdicts"),
    [
        (lambda name, i: 0.1 + i / 1000, [Verdict.HOLDS] * 3),
        (lambda name, i: (0.1 if name == "em" else 0) + (-1) ** i / 1000, [Verdict.HOLDS, Verdict.HOLDS, Verdict.OPEN]),
        (lambda name, i: (-1) ** i / 10, [Verdict.OPEN] * 3),
        (lambda name, i: -0.1 + i / 1000, [Verdict.FAILS] * 3),
    ],
)
def test_the_claims_are_judged_by_paired_gains(gain, verdicts):
    assert [claim.judge(measured(gain)).verdict for claim in CLAIMS] == verdicts
