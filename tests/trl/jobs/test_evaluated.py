"""An evaluation of a job logs Mean@k, Pass@k and Maj@k of each question's k completions."""

import json
from collections import Counter
from math import comb

import numpy as np
import pytest

from apportion.trl.jobs.command import make_trainer
from apportion.trl.jobs.evaluated import scores_at_k
from apportion.trl.jobs.prepared import prepare
from apportion.verifiers import Exact, Function
from tests.trl.jobs.small import job_of, make_job, train

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


def test_scores_of_known_rewards():
    right = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], bool)
    answers = [["7", "8", "8", None], ["7", "7", "8", "8"], [None] * 4]
    assert {name: values.tolist() for name, values in scores_at_k(right, answers).items()} == {
        "mean_at_4": [0.25, 0.5, 0.0],
        "pass_at_2": [0.5, pytest.approx(5 / 6), 0.0],
        "pass_at_4": [1.0, 1.0, 0.0],
        "maj_at_4": [0.0, 1.0, 0.0],
    }


def test_every_power_of_two_up_to_k_has_its_pass_at_k():
    for k, names in ((1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8])):
        found = scores_at_k(np.ones((2, k), bool), [["1"] * k] * 2)
        majority = [f"maj_at_{k}"] if k > 1 else []
        assert list(found) == [f"mean_at_{k}", *(f"pass_at_{n}" for n in names), *majority]
        assert all(values.tolist() == [1.0, 1.0] for values in found.values())


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


def test_a_verifier_that_reads_no_answers_has_no_majority(folder, policy):
    logged, _ = evaluated(folder, policy, right)
    assert list(ended(logged)) == ["mean_at_4", "pass_at_2", "pass_at_4"]
    assert isinstance(job_of(folder / "job.toml").judge, Function)


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


def test_a_job_from_its_file_logs_the_papers_scores_and_fits_whole_groups_into_a_batch(folder, policy):
    training = {"num_generations_eval": 16, "max_steps": 2, "eval_steps": 1}
    config = make_job(folder, policy, training, evaluation=EVALUATION, verifier="exact")
    job = job_of(config)
    assert prepare(job).arguments.per_device_eval_batch_size == 16
    assert train(config) == 0
    state = max((folder / "runs/job/checkpoints").glob("checkpoint-*/trainer_state.json"))
    entries = [row for row in json.loads(state.read_text())["log_history"] if "eval_mean_at_16" in row]
    assert entries and all({"eval_pass_at_16", "eval_pass_at_2", "eval_maj_at_16"} <= row.keys() for row in entries)
