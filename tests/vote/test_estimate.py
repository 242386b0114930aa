import pytest

from apportion.stopping import decide
from apportion.vote import Question
from apportion.vote.estimate import Estimate, estimate, estimate_text
from apportion.vote.setup import make_setup
from apportion.vote.summary import Prices

QUESTIONS = [Question("a", "x" * 40), Question("b", "x" * 81), Question("c", "x" * 400)]


def make(**settings):
    return make_setup("http://localhost:1/v1", "tiny", template="{question}", **settings)


def test_the_estimate_agrees_with_a_count_by_hand():
    """Question c is finished; a and b have 10 and 21 prompt tokens; OptPO needs at least 16 samples."""
    setup = make(rule="optpo", curtail=False, max_tokens=100)
    assert estimate(QUESTIONS, setup, finished=["c", "other"], prices=Prices(2.0, 10.0)) == Estimate(
        questions=3,
        finished=1,
        least_samples=2 * 16,
        most_samples=2 * 64,
        least_prompt_tokens=31 * 16,
        most_prompt_tokens=31 * 64,
        most_completion_tokens=2 * 64 * 100,
        most_cost=pytest.approx((31 * 64 * 2 + 2 * 64 * 100 * 10) / 1e6),
    )


@pytest.mark.parametrize("rule", ["posterior_predictive", "adaptive_consistency_beta", "esc", "curtailment", "fixed"])
@pytest.mark.parametrize("wave", ["free", 16])
def test_the_lower_bound_is_what_a_unanimous_question_takes(rule, wave):
    unanimous = decide(["0"] * 64, rule, 64, curtail=True).samples
    assert estimate(QUESTIONS, make(rule=rule, wave=wave)).least_samples == 3 * unanimous


def test_without_a_limit_on_completions_their_tokens_are_unknown():
    result = estimate(QUESTIONS, make(max_tokens=None), prices=Prices(1.0, 1.0))
    assert result.most_completion_tokens is None and result.most_cost is None
    assert "completion tokens" not in estimate_text(result)


def test_a_system_prompt_is_a_part_of_each_prompt_and_a_judge_costs_more():
    setup = make(rule="fixed", max_tokens=100, system="y" * 40, equivalence="judge", max_samples=4, curtail=False)
    result = estimate(QUESTIONS[:1], setup, prices=Prices(1.0, 1.0))
    assert result.most_prompt_tokens == 4 * 20 and "0.00, and that of the judge" in estimate_text(result)


TEXT = """\
questions          3, 1 of them finished
samples            32 to 128
prompt tokens      496 to 1,984, at 4 characters each
completion tokens  at most 12,800, if every completion is as long as it may be
cost               at most 0.13"""


def test_text_for_people():
    result = estimate(QUESTIONS, make(rule="optpo", curtail=False, max_tokens=100), ["c"], Prices(2.0, 10.0))
    assert estimate_text(result) == TEXT


def test_samples_that_are_kept_are_not_paid_for_again():
    """Of 16 to 64 samples for each of a and b, 10 of a are kept."""
    setup = make(rule="optpo", curtail=False, max_tokens=100)
    result = estimate(QUESTIONS, setup, finished=["c"], kept={"a": 10, "c": 64})
    assert (result.least_samples, result.most_samples) == (6 + 16, 54 + 64)
    assert result.most_completion_tokens == (54 + 64) * 100 and result.most_prompt_tokens == 54 * 10 + 64 * 21
    assert estimate(QUESTIONS, setup, finished=["c", "b"], kept={"a": 70}).most_samples == 0
