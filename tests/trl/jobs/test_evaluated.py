"""An evaluation of a job logs Mean@k, Pass@k and Maj@k of each question's k completions."""

from collections import Counter
from math import comb

import numpy as np
import pytest

from apportion.trl.jobs.command import make_trainer
from apportion.trl.jobs.evaluated import scores_at_k
from apportion.trl.jobs.prepared import prepare
from apportion.verifiers import Exact
from tests.trl.jobs.small import job_of, make_job

EVALUATION = {"path": "questions.jsonl", "limit": 6}
TRAINING = {"num_generations_eval": 4, "per_device_eval_batch_size": 8}
LETTERS = "0123456789abcdefghij:=+ "


class FirstLetter(Exact):
    """Reads the first letter, if there is one among the first twenty of the alphabet."""

    def answer(self, text):
        return text[:1] if text[:1] and text[0] in LETTERS[:20] else None


def evaluated(folder, policy, reward, judge=None, training=TRAINING, **settings):
    """Return what an evaluation logs under the reward ``reward`` (completion, gold), and its groups of completions."""
    job = job_of(make_job(folder, policy, training, evaluation=EVALUATION, **settings))
    trainer, seen = make_trainer(prepare(job), policy), []

    def recorded(prompts, completions, gold, **columns):
        rewards = [reward(each, answer) for each, answer in zip(completions, gold, strict=True)]
        seen.extend(zip(prompts, completions, rewards, strict=True))
        return rewards

    trainer.reward_funcs, trainer.judge = [recorded], judge or trainer.judge
    logged = trainer.evaluate()
    k = training["num_generations_eval"]
    groups = [seen[place : place + k] for place in range(0, len(seen), k)]
    assert len(groups) == 6 and all(len({prompt for prompt, *_ in group}) == 1 for group in groups)
    return logged, [[(text, value) for _, text, value in group] for group in groups]


def ended(logged):
    """Return the scores of an evaluation without TRL's prefix."""
    return {name[5:]: value for name, value in logged.items() if "_at_" in name}


def right(completion, gold):
    return float(completion[:1] != "" and completion[0] in LETTERS[: int(gold)])


def test_a_single_completion_has_a_mean_alone_and_others_pass_at_every_power_of_two():
    for k, names in ((1, []), (3, ["pass_at_2", "pass_at_3", "maj_at_3"])):
        assert list(scores_at_k(np.ones((2, k), bool), [["1"] * k] * 2)) == [f"mean_at_{k}", *names]


def test_an_evaluation_logs_what_its_completions_give_by_hand(folder, policy):
    logged, groups = evaluated(folder, policy, right, FirstLetter(), algorithm="rloo")
    counts = [int(sum(value for _, value in group)) for group in groups]
    assert 0 < sum(counts) < 24
    won = []
    for group in groups:
        votes = Counter(text[0] for text, _ in group if text[:1] and text[0] in LETTERS[:20])
        leader = votes.most_common(1)[0][0] if votes else None
        won.append(any(text[:1] == leader and value for text, value in group))
    assert ended(logged) == {
        "mean_at_4": pytest.approx(sum(counts) / 24),
        "pass_at_2": pytest.approx(np.mean([1 - comb(4 - c, 2) / comb(4, 2) for c in counts])),
        "pass_at_4": pytest.approx(np.mean([c > 0 for c in counts])),
        "maj_at_4": pytest.approx(np.mean(won)),
    }
    assert logged["eval_reward"] == pytest.approx(logged["eval_mean_at_4"])


def test_equal_answers_are_one_vote_by_the_equivalence_of_the_job(folder, policy):
    class Spelled(Exact):
        texts = iter(())

        def answer(self, text):
            return next(Spelled.texts)

    found = {}
    for equivalence in ("exact", "phrase"):
        Spelled.texts = iter(["Rhine", "the Seine", "seine", "Rhone"] * 6)
        rewards = iter([0.0, 1.0, 1.0, 0.0] * 6)
        logged, _ = evaluated(folder, policy, lambda *_, given=rewards: next(given), Spelled(), equivalence=equivalence)
        found[equivalence] = ended(logged)["maj_at_4"]
    assert found == {"exact": 0.0, "phrase": 1.0}


FIRST, GRADED = [1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]
SCORES = {"mean_at_4": 0.25, "pass_at_2": 0.5, "pass_at_4": 1.0}
GIVEN = {
    "a question with a completion without a reward is left out": ([1.0, None, 1.0, 1.0, *FIRST * 5], {}, SCORES),
    "verdicts of minus one are wrong answers": ([1.0, -1.0, -1.0, -1.0] * 6, {}, SCORES),
    # two batches of two
    "graded rewards have only a mean": (FIRST * 2 + GRADED * 2 + FIRST * 2, {"verdict": None}, {"mean_at_4": 1.25 / 6}),
    "unless they are named as the verdict": (FIRST * 2 + GRADED * 2 + FIRST * 2, {"verdict": "function"}, SCORES),
}


@pytest.mark.parametrize("name", GIVEN)
def test_which_rewards_are_scored(folder, policy, name):
    given, settings, expected = GIVEN[name]
    rewards = iter(given)
    settings |= {"allocator": {"name": "uniform", "rollouts_per_prompt": 8}} if settings else {}
    logged, _ = evaluated(folder, policy, lambda *_: next(rewards), **settings)
    assert ended(logged) == pytest.approx(expected)


def test_a_batch_of_an_evaluation_holds_whole_groups(folder, policy):
    logged, _ = evaluated(folder, policy, right, FirstLetter(), {"num_generations_eval": 16})
    assert {"mean_at_16", "pass_at_16", "pass_at_2", "maj_at_16"} <= ended(logged).keys()
    assert prepare(job_of(folder / "job.toml")).arguments.per_device_eval_batch_size == 16
