"""The measures of the tool-augmented study."""

import pytest

from benchmarks.evidence.vip_tools_measured import em, retrieval


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
