from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import HORA, Batch, Belief, Plan, Prompt, Rollout, Uniform
from apportion.types import SHOWN_ROWS, TIE, Group, prompt_id
from tests.builders import finished, make_batch, make_prompts


def test_prompt_ids_are_content_hashes_never_positions():
    one, other = Prompt("1 + 1 ="), Prompt("2 + 2 =")
    assert [p.id for p in (one, other)] == [p.id for p in (Prompt("1 + 1 ="), Prompt("2 + 2 ="))]
    assert one.id != other.id
    assert prompt_id("1 + 1 =", "a") != prompt_id("1 + 1 =", "b")
    assert Prompt("1 + 1 =", id="row 7").id == "row 7"


def test_budgets_are_charged_to_asked_and_statistics_to_trials():
    batch = finished(make_prompts(2), [[Rollout(True), Rollout(None, answer="7")], []], asked=[3, 1])
    assert batch.asked.tolist() == [3, 1]
    assert batch.trials.tolist() == [1, 0]
    assert batch.successes.tolist() == [1, 0]
    assert batch.votes[0] == {"7": 1}
    assert batch.posterior.alpha.tolist() == [2, 1]


def test_batches_are_values():
    batch = make_batch([[1, 0], [1]])
    batch.add(Plan([1, 0]), [[Rollout(True)], []])
    assert batch.trials.tolist() == [2, 1]
    with pytest.raises(ValueError, match="read-only"):
        batch.asked[0] = 5


def test_values_compare_by_their_contents():
    assert make_batch([[1, 0], [1]]) == make_batch([[1, 0], [1]])
    assert make_batch([[1, 0], [1]]) != make_batch([[1, 0], [0]])
    assert Plan([1, 2]) == Plan([1, 2]) != Plan([1, 2], fresh=1)
    assert Belief.uniform(2) != Belief.uniform(3)


def test_join_keeps_order_and_counts():
    joined = make_batch([[1, 0]]).join(make_batch([[0], [1, 1, 1]]))
    assert joined.trials.tolist() == [2, 1, 3]
    assert joined.asked.tolist() == [2, 1, 3]
    assert len(joined.belief) == 3


@pytest.mark.parametrize("chosen", [[1], [2, 0], [0, 1, 2]])
def test_a_part_is_the_batch_of_its_prompts_alone(chosen):
    prompts = make_prompts(3)
    belief = Belief(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]))
    rollouts = [[Rollout(True)], [Rollout(False)] * 2, [Rollout(True)] * 3]
    whole = Batch.start(prompts, belief).add(Plan([1, 2, 4]), rollouts)
    alone = Batch.start([prompts[q] for q in chosen], Belief(belief.alpha[chosen], belief.beta[chosen]))
    assert whole.part(chosen) == alone.add(Plan(whole.asked[chosen]), [rollouts[q] for q in chosen])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.1, 100))
def test_from_mean_has_that_mean_and_strength(means, strength):
    belief = Belief.from_mean(means, strength)
    np.testing.assert_allclose(belief.mean, means, atol=1e-12)
    np.testing.assert_allclose(belief.alpha + belief.beta, strength)


@given(st.lists(st.none() | st.floats(-1e100, 1e100).map(lambda reward: round(reward, 9)), max_size=8))
def test_the_spread_is_the_standard_deviation_and_zero_for_equal_outcomes_alone(rewards):
    batch = finished(make_prompts(1), [[Rollout(reward=reward) for reward in rewards]])
    known = [reward for reward in rewards if reward is not None]
    (spread,) = batch.spread
    largest = max(map(abs, known), default=0.0)
    tie = not known or max(known) - min(known) <= TIE * largest
    assert (spread > 0) == (not tie)
    rounding = 1e-13 * largest  # differences of large numbers lose their last digits
    assert spread == pytest.approx(0.0 if tie else np.std(known), rel=1e-9, abs=max(rounding, 1e-150))


def test_the_spread_of_verdicts_is_theirs_and_not_that_of_shaped_rewards():
    shaped = [Rollout(False, reward=0.0), Rollout(False, reward=0.3), Rollout(True, reward=0.1)]
    batch = finished(make_prompts(3), [shaped[:2], shaped, []])
    assert batch.spread.tolist() == pytest.approx([0, np.std([0, 0, 1]), 0])


def spread_and_informative(*rollouts):
    batch = finished(make_prompts(1), [rollouts])
    return batch.spread[0] > 0, Group(Prompt("a"), rollouts).informative


def test_what_the_estimator_compares_decides_and_not_its_sum():
    equal_sums = [Rollout(reward=1.0, components=parts) for parts in ((1.0, 0.0), (0.0, 1.0))]
    assert spread_and_informative(*equal_sums) == (True, True)
    assert spread_and_informative(*(replace(each, components=()) for each in equal_sums)) == (False, False)
    clipped = [Rollout(reward=reward, components=(10.0,)) for reward in (11.0, 12.0)]
    assert spread_and_informative(*clipped) == (False, False)
    missing = [Rollout(reward=1.0, components=(1.0, np.nan)), Rollout(reward=1.0, components=(1.0, 0.0))]
    assert spread_and_informative(*missing) == (False, False)  # one score of a function has nothing beside it
    judged = [replace(each, correct=False) for each in equal_sums]
    assert spread_and_informative(*judged) == (False, False)  # rules and metrics go by verdicts


@pytest.mark.parametrize("reward", [0.3, 1e-12, 1e30])
def test_rewards_that_differ_by_roundings_are_equal(reward):
    near = float(np.nextafter(np.float32(reward), np.float32(np.inf)))
    assert spread_and_informative(Rollout(reward=reward), Rollout(reward=near)) == (False, False)
    assert spread_and_informative(Rollout(reward=reward), Rollout(reward=reward * (1 + 1e-6))) == (True, True)


def test_groups_need_rewards_and_one_keep_entry_a_rollout():
    rollouts = (Rollout(True), Rollout(False))
    assert Group(Prompt("a"), rollouts, np.array([True, False])).informative
    assert not Group(Prompt("a"), rollouts[:1], np.array([True])).informative
    with pytest.raises(ValueError, match=r"keep must be \[2\]"):
        Group(Prompt("a"), rollouts, np.array([True]))
    with pytest.raises(ValueError, match="has no reward"):
        Group(Prompt("a"), (Rollout(None),), np.array([True])).rewards  # noqa: B018


@pytest.mark.parametrize("count", [10, 10_000])
def test_a_batch_is_shown_in_a_line_a_prompt_and_no_more_than_a_few(count):
    prompts = [Prompt(f"{q} " + "long question " * 100, data={"row": list(range(1000))}) for q in range(count)]
    batch = finished(prompts, [[Rollout(True, completion="text " * 1000)] for _ in prompts])
    lines = repr(batch).splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= 160
    assert lines[0] == f"Batch of {count} prompts, {count} rollouts asked in 1 rounds"
    assert lines[-1] == f"  and {count - 5} more"


def test_notebooks_show_tables_of_the_first_rows_with_every_text_escaped():
    plan = Plan(np.arange(SHOWN_ROWS + 5), fresh=2)
    assert f"Plan of {plan.counts.sum()} rollouts" in plan._repr_html_()
    assert plan._repr_html_().count("<tr>") == 1 + SHOWN_ROWS and f"the first {SHOWN_ROWS} rows" in plan._repr_html_()
    assert Plan([1, 2])._repr_html_().endswith("<tr><td>0</td><td>1</td></tr><tr><td>1</td><td>2</td></tr></table>")
    shown = finished([Prompt("<script>&\n" + "x" * 500)], [[Rollout(True)]], asked=[2])._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;&amp;" in shown and len(shown) < 500
    assert shown.endswith("<td>2</td><td>1</td><td>1 of 1</td><td>0.50</td></tr></table>")
    assert "rows" not in Batch.start([], Belief.uniform(0))._repr_html_()


def test_values_with_much_in_them_are_shown_in_one_short_line():
    long = Rollout(True, answer="x" * 5000, completion=np.zeros(10_000), tokens=3)
    prompt = Prompt("line\n" * 1000, data=[0] * 1000)
    values = [prompt, long, Plan(np.arange(10_000)), Belief.uniform(10_000), Group(prompt, (long,) * 1000)]
    for value in values:
        assert "\n" not in repr(value) and len(repr(value)) < 1200, type(value)
    assert repr(Rollout(True, answer="7")) == "Rollout(correct=True, answer='7', reward=1.0)"


@pytest.mark.filterwarnings("error")
def test_a_reward_of_numpy_counts():
    assert Rollout(reward=np.float32(0.5)).reward == 0.5
    with pytest.raises(ValueError, match="a reward must be finite, got nan"):
        Rollout(reward=np.float32("nan"))


def test_a_verdict_of_numpy_counts():
    """np.True_ is not True: it used to be a trial without a success."""
    batch = finished(make_prompts(1), [[Rollout(np.True_), Rollout(np.False_)]])
    assert batch.successes.tolist() == [1] and batch.trials.tolist() == [2]


def test_a_known_rate_is_no_part_of_a_prompt_s_identity():
    assert Prompt("2 + 2 =", rate=0.25) == Prompt("2 + 2 =") and Prompt("2 + 2 =").rate is None
    assert repr(Prompt("2 + 2 =", id="a", rate=0.25)) == "Prompt('2 + 2 =', id='a', rate=0.25)"


def test_reward_follows_correct_unless_given():
    assert (Rollout(True).reward, Rollout(False).reward, Rollout(None).reward) == (1.0, 0.0, None)
    assert Rollout(correct=True, reward=-2.0).reward == -2.0
    assert Plan([0], fresh=np.int64(2)).fresh == 2


PROMPTS = "prompts must be a sequence of Prompt, got "
ONE = Batch.start(make_prompts(1), Belief.uniform(1))
NO_ROLLOUTS = "rollouts must be lists of Rollout, one list a prompt"


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (Belief, [np.ma.masked_equal([1.0, 2.0], 2.0), [1.0, 1.0]], "alpha must not be masked"),
        (Batch.start, [make_prompts(2), Belief.uniform(2), [1.0, np.nan]], "costs must be finite and above 0"),
        *((HORA().start, [prompts], PROMPTS) for prompts in ("a text", b"bytes", {"a": 1}, ["a", "b"], 5)),
        (Uniform().start, [[Prompt("a"), None]], PROMPTS),
        (Batch.start, [Prompt("a"), Belief.uniform(1)], PROMPTS),
        (ONE.add, [Plan([1]), [[Rollout(True)] * 2]], "got 2 rollouts, but 1 were asked"),
        (ONE.add, [Plan([1, 1]), [[], []]], "one list of rollouts per prompt"),
        *((ONE.add, [Plan([2]), [each]], NO_ROLLOUTS) for each in ([True, False], "ab", 5, [None])),
    ],
)
def test_what_makes_no_sense_is_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(*arguments)


def test_a_group_is_informative_by_its_verdicts_whatever_its_rewards():
    shaped = [Rollout(True, reward=reward) for reward in (1.0, 1.3)]
    assert not Group(Prompt("a"), tuple(shaped)).informative and Group(Prompt("a"), tuple(shaped)).spread > 0
    assert Group(Prompt("a"), (Rollout(True, reward=0.5), Rollout(False, reward=0.5))).informative
    assert Group(Prompt("a"), (Rollout(reward=0.5), Rollout(reward=0.7))).informative
