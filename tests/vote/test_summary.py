import json
import math
from dataclasses import replace

import pytest

from apportion.vote import count
from apportion.vote.right import RightWinners
from apportion.vote.summary import Prices, make_prices, summarise, summary_json, summary_text
from tests.cases import check_refused
from tests.vote.builders import make_ballot, make_sample

LOW = pytest.approx(0.0125791, abs=1e-6)


THREE = """[
    {"id": "a", "samples": 4, "votes": {"7": 4}, "waves": 1, "prompt_tokens": 40, "completion_tokens": 400,
        "disagreement": 0.02},
    {"id": "b", "answer": "1", "gold": "2", "correct": false, "samples": 16, "failed": 6, "unparsed": 2, "cancelled": 3,
        "votes": {"1": 6, "2": 2}, "waves": 5, "prompt_tokens": 100, "completion_tokens": 3000, "disagreement": 0.0},
    {"id": "c", "answer": null, "gold": null, "correct": null, "samples": 10, "unparsed": 10, "votes": {}, "waves": 3,
        "prompt_tokens": 100, "completion_tokens": 500, "disagreement": 0.01}
]"""


def three():
    """One stopped early, one at the maximum with failed samples, one without gold."""
    return [make_ballot(**changes) for changes in json.loads(THREE)]


def test_json_is_the_summary_with_costs_if_prices_are_known():
    summary = summarise(three(), 5, 16, 2.5)
    plain = json.loads(summary_json(summary))
    assert (
        plain["accuracy"] == {"questions": 2, "mean": 0.5, "low": LOW, "high": pytest.approx(0.9874209, abs=1e-6)}
        and "cost" not in plain
    )
    priced = json.loads(summary_json(summary, Prices(1.0, 10.0)))
    assert priced["cost"] == pytest.approx((240 + 39000) / 1e6)
    assert priced["full_cost"] == pytest.approx((480 + 72000) / 1e6)


TEXT = """\
questions                 3 of 5; 2 not finished
samples                   30 of 48 for the full vote: 37.5% saved
prompt tokens             240 of about 480 for the full vote: 50.0% saved
completion tokens         3,900 of about 7,200 for the full vote: 45.8% saved
waves a question          3.00
votes for the winner      87.5%
other than the full vote  expected in at most 1.00% of the questions; 2.00% for the least certain
accuracy                  50.0% of 2 with a gold answer (95% interval 1.3% to 98.7%)
samples lost              6 failed, 13 without an answer, 3 cancelled
questions lost            1 without an answer
tokens not counted        1,200 of samples that are kept and in no vote
seconds                   2.5"""


def test_text_for_people():
    """By question: 400 / 4, 3000 / 10 and 500 / 10 tokens a sample that arrived, 16 times each; 16 x 30 of prompts."""
    summary = summarise(three(), 5, 16, 2.5, uncounted_tokens=1200)
    assert summary_text(summary) == TEXT
    assert "cost                      0.05 of about 0.07" in summary_text(summary, Prices(1.0, 10.0))


def test_a_full_vote_whose_samples_share_one_request_pays_for_one_prompt():
    """Three waves of several samples each sent the prompt three times; the full vote sends it once."""
    summary = summarise([make_ballot("a", samples=12, waves=3, prompt_length=10, prompt_tokens=30)], 1, 64, 1.0)
    assert summary.full_prompt_tokens == 10
    assert "30 of about 10 for the full vote: 200.0% more" in summary_text(summary)


def test_tokens_that_a_server_does_not_count_are_unknown():
    summary = summarise(
        [*three(), make_ballot("d", prompt_length=None, prompt_tokens=None, completion_tokens=None)], 5, 16, 1.0
    )
    assert summary.completion_tokens is summary.full_completion_tokens is summary.completion_tokens_saved is None
    assert "tokens" not in summary_text(summary)
    assert json.loads(summary_json(summary, Prices(1.0, 1.0)))["cost"] is None


def test_a_server_that_does_not_sample_gives_a_warning():
    """Three samples of one text for every question are no vote. Fewer samples prove nothing."""
    greedy, few = make_ballot("a", texts=1), make_ballot("b", samples=2, texts=1)
    assert summarise([greedy, few], 5, 16, 1.0).repeats is True
    assert "does the server sample" in summary_text(summarise([greedy, few], 5, 16, 1.0))
    assert summarise([greedy, make_ballot("c")], 5, 16, 1.0).repeats is False
    assert "does the server sample" not in summary_text(summarise([greedy, make_ballot("c")], 5, 16, 1.0))
    assert summarise([few], 5, 16, 1.0).repeats is None


def test_one_seed_for_all_samples_of_a_request_gives_a_warning_beside_questions_asked_one_by_one():
    one_seed, honest, one_by_one = (make_ballot(repeats=repeats) for repeats in (True, False, None))
    assert summarise([one_seed, *[one_by_one] * 9], 10, 16, 1.0).repeats is True
    assert summarise([one_seed, honest], 2, 16, 1.0).repeats is False
    assert summarise([*[one_seed] * 9, honest], 10, 16, 1.0).repeats is True


@pytest.mark.parametrize(
    ("seeds", "texts", "repeats"),
    [("aaabbb", "111222", True), ("aaabbb", "111223", False), ("abcddd", "123444", True), ("abcdef", "111111", None)],
)
def test_requests_that_each_gave_one_text_are_told_by_their_seeds(seeds, texts, repeats):
    drawn = [
        make_sample(number=place, seed=ord(seed), text_hash=text)
        for place, (seed, text) in enumerate(zip(seeds, texts, strict=True))
    ]
    assert count.repeats(drawn) is repeats


def test_without_finished_questions_all_means_are_unknown():
    summary = summarise([], 5, 16, 1.0)
    assert (summary.finished, summary.samples, summary.samples_saved, summary.accuracy) == (0, 0, None, None)
    assert summary_text(summary) == "questions  0 of 5; 5 not finished\nseconds    1.0"
    assert json.loads(summary_json(summary))["disagreement"] is None


def test_prices_come_in_pairs():
    assert make_prices(None, None) is None and make_prices(0.0, 2.0) == Prices(0.0, 2.0)
    wrong = [(1.0, None, r"for prompts and for completions, got 1\.0 and None")]
    wrong += [(price, 1.0, f"must be finite and at least 0, got {price}") for price in (-1.0, math.inf, math.nan)]
    check_refused(ValueError, make_prices, wrong)


def test_right_winners_are_bounded_by_labels_or_said_to_be_unknown():
    unlabelled = [replace(each, gold=None, correct=None) for each in three()]
    summary = summarise(unlabelled, 3, 16, 1.0)
    assert "unknown, because agreement is not correctness; --labels gives a bound" in summary_text(summary)
    known = replace(summary, right=RightWinners(25, 24, 100, 0.85))
    said = "at least 85.0% of 100 with 95% confidence: 24 of 25 labelled ones are right. It holds if they were drawn at"
    assert said in summary_text(known)
    assert json.loads(summary_json(known))["right"]["at_least"] == 0.85
