"""An evaluation of any trainer logs Mean@k, Pass@k and Maj@k of each question's k completions."""

import re
from pathlib import Path

import numpy as np
import pytest
from trl import GRPOTrainer, RLOOTrainer

from apportion.trl import AllocatedGRPOTrainer, EvaluationAtK
from apportion.trl.at_k import scores_at_k
from tests.trl.test_parity import assert_same
from tests.trl.tiny import CHARACTERS, Judge, hora, make_questions, trained

CONFIG = {"num_generations_eval": 4, "per_device_eval_batch_size": 8}


def first(text):
    """The answer of a completion: its first letter, if it is among the first twenty of the alphabet."""
    return text[:1] if text[:1] and text[0] in CHARACTERS[:20] else None


def evaluated(make, trainer, judge, config=CONFIG, sets=None, **settings):
    """Return what an evaluation of six questions logs, and its groups of completions."""
    held_out = make_questions(6, extra=100) if sets is None else sets
    allocator = {"allocator": hora()} if trainer is AllocatedGRPOTrainer else {}
    built = make(trainer, config=config, reward_funcs=[judge], eval_dataset=held_out, **allocator)
    built.add_callback(EvaluationAtK(built, **{"extract": first} | settings))
    built.evaluate()
    logged, k = logged_by(built), config["num_generations_eval"]
    seen = [call for calls in judge.rounds for call in calls]
    groups = [seen[place : place + k] for place in range(0, len(seen), k)]
    assert all(len({call.prompt for call in group}) == 1 for group in groups)
    return logged, groups


def logged_by(trainer):
    """Return all that ``trainer`` logged: early versions of TRL do not return it from an evaluation."""
    return {name: value for entry in trainer.state.log_history for name, value in entry.items()}


def ended(logged):
    """Return the scores of an evaluation without TRL's prefix."""
    return {name[5:]: value for name, value in logged.items() if "_at_" in name}


def scored(groups):
    """Return the scores of groups of completions. ``GIVEN`` has scores that were computed by hand."""
    right = np.array([[call.score > 0 for call in group] for group in groups])
    assert 0 < right.sum() < right.size
    found = scores_at_k(right, [[first(call.text) for call in group] for group in groups])
    return {name: pytest.approx(scores.mean()) for name, scores in found.items()}


@pytest.mark.parametrize("trainer", [RLOOTrainer, AllocatedGRPOTrainer])
def test_an_evaluation_logs_what_its_completions_give_scored(make, trainer):
    logged, groups = evaluated(make, trainer, Judge())
    assert len(groups) == 6 and ended(logged) == scored(groups)
    assert logged["eval_reward"] == pytest.approx(logged["eval_mean_at_4"])


def test_each_of_several_sets_has_scores_of_its_own(make):
    sets = {"easy": make_questions(6, extra=100), "hard": make_questions(4, extra=200)}
    logged, groups = evaluated(make, AllocatedGRPOTrainer, Judge(), sets=sets)
    for name, own in (("easy", groups[:6]), ("hard", groups[6:])):
        found = {key.removeprefix(f"{name}_"): value for key, value in ended(logged).items() if name in key}
        assert found == scored(own)


def test_training_stays_the_same_to_the_last_bit(make, tmp_path):
    settings, runs = CONFIG | {"eval_strategy": "steps", "eval_steps": 2}, []
    for scored in (False, True):
        built = make(
            GRPOTrainer, folder=tmp_path / str(scored), config=settings, eval_dataset=make_questions(4, extra=100)
        )
        if scored:
            built.add_callback(EvaluationAtK(built))
        history = [{key: v for key, v in entry.items() if "_at_" not in key} for entry in trained(built)]
        runs.append((history, built.model.state_dict()))
    assert_same(*runs)


def test_equal_answers_are_one_vote_by_the_equivalence(make):
    found = {}
    for equivalence in ("exact", "phrase"):
        answers, scores = iter(["Rhine", "the Seine", "seine", "Rhone"] * 6), iter([0.0, 1.0, 1.0, 0.0] * 6)
        judge = Judge(mark=lambda *_, given=scores: next(given))
        settings = {"extract": lambda _, given=answers: next(given), "equivalence": equivalence}
        logged, _ = evaluated(make, GRPOTrainer, judge, **settings)
        found[equivalence] = ended(logged)["maj_at_4"]
    assert found == {"exact": 0.5, "phrase": 1.0}


FIRST, GRADED = [1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]
SCORES = {"mean_at_4": 0.25, "pass_at_2": 0.5, "pass_at_4": 1.0}
GIVEN = {
    "a question with a completion without a reward is left out": ([1.0, None, 1.0, 1.0, *FIRST * 5], {}, SCORES),
    "verdicts of minus one are wrong answers": ([1.0, -1.0, -1.0, -1.0] * 6, {}, SCORES),
    # two batches of two
    "graded rewards have only a mean": (FIRST * 2 + GRADED * 2 + FIRST * 2, {}, {"mean_at_4": 1.25 / 6}),
    "unless they are named as the verdict": (FIRST * 2 + GRADED * 2 + FIRST * 2, {"verdict": "judge"}, SCORES),
}


@pytest.mark.parametrize("name", GIVEN)
def test_which_rewards_are_scored(make, name):
    given, settings, expected = GIVEN[name]
    rewards = iter(given)
    logged, _ = evaluated(make, GRPOTrainer, Judge(mark=lambda *_: next(rewards)), extract=None, **settings)
    assert ended(logged) == pytest.approx(expected)


def test_another_trainer_and_another_verdict_are_refused(make):
    with pytest.raises(TypeError, match="trainer must be TRL's GRPOTrainer or RLOOTrainer, got object; give one"):
        EvaluationAtK(object())
    with pytest.raises(ValueError, match="verdict must be one of the reward functions, judge, got 'right'"):
        EvaluationAtK(make(GRPOTrainer), verdict="right")


def test_the_example_of_the_page_adds_the_scores(make):
    page = (Path(__file__).parents[2] / "docs" / "trl.md").read_text()
    example = re.search(
        r"^```python\n(from apportion.trl import EvaluationAtK\n.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    assert example
    built = make(GRPOTrainer, config=CONFIG, eval_dataset=make_questions(4, extra=100))
    exec(example[1], {"trainer": built})
    built.evaluate()
    assert {"eval_mean_at_4", "eval_pass_at_4", "eval_maj_at_4"} <= logged_by(built).keys()
