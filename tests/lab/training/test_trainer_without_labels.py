"""The trainer without labels, from the file of prompts to the weights."""

import pytest
import torch

from apportion.allocators import TTRL, OptPO, Voting
from apportion.lab.policy.exact import exact_success
from apportion.lab.training.judge import Judge
from apportion.lab.training.settings import Training
from apportion.lab.training.trainer import Trainer
from apportion.lab.world.task import Problem, completion_text, problem_pool
from tests.damaged_states import equal
from tests.lab.states import curve, remembered, write_prompts

ALLOCATORS = {
    "ttrl": lambda: TTRL(max_samples=8, min_samples=4),
    "optpo": lambda: OptPO(min_samples=4, max_samples=8, exceedances=1),
    "voting": lambda: Voting(max_samples=8, min_samples=2, reward="vote_share"),
}
UPDATES = ("grpo", "gae", "reinforce_plus_plus", "sft")
JUDGED = ("labels", "labels_right", "false_consensus")
SCORED = ("mean_16", "pass_16", "maj_16", "pass_1")
PROBLEMS = tuple(problem for problem in problem_pool(60, seed=5) if len(problem.operations) <= 2)[:12]
"""Short problems, because votes of the small base on longer ones end in ties."""


def write(path, gold=None, problems=PROBLEMS):
    """Write a file of the prompts. ``gold`` gives the answer of a problem."""
    return write_prompts(path, problems, gold and map(gold, problems))


def right(problem):
    return problem.answer


def wrong(problem):
    return "".join(str((int(digit) + 1) % 10) for digit in problem.answer)


def settings(base, **changes):
    lengths = {"prompts_per_step": 4, "steps": 5, "evaluate_every": 10_000, "checkpoint_every": 2}
    return Training(base=base, **(lengths | {"labels": "none", "held_out": 10, "estimator": "grpo"} | changes))


def prepared(directory, base, allocator="ttrl", **changes):
    """Return a trainer on the file of prompts, with right gold unless ``changes`` names another file."""
    prompts = changes.pop("prompts", None) or write(directory.parent / "prompts.jsonl", right)
    return Trainer(settings(base, prompts=prompts, **changes), ALLOCATORS[allocator](), 0, directory)


def trained(directory, base, allocator="ttrl", on_step=lambda record: True, **changes):
    trainer = prepared(directory, base, allocator, **changes)
    trainer.run(on_step)
    return trainer


def changed(trainer):
    weights = zip(trainer.policy.parameters(), trainer.start.parameters(), strict=True)
    return any(not torch.equal(now, before) for now, before in weights)


@pytest.mark.parametrize(
    ("allocator", "changes"),
    [
        ("ttrl", {"kl": 0.01}),
        ("optpo", {"estimator": "sft"}),
        ("voting", {"estimator": "gae", "reset_every": 1}),
    ],
)
def test_gold_never_reaches_the_update(tmp_path, small_base_folder, allocator, changes):
    """Right, wrong and no gold give the same weights, optimiser and metrics, except for the judged metrics."""
    runs = {}
    for name, gold in {"right": right, "wrong": wrong, "none": None}.items():
        prompts = write(tmp_path / f"{name}.jsonl", gold)
        runs[name] = trained(tmp_path / name, small_base_folder, allocator, prompts=prompts, steps=2, **changes)
    assert changed(runs["right"])
    for name in ("wrong", "none"):
        assert equal(remembered(runs[name]), remembered(runs["right"]))
        judged = (*JUDGED, *SCORED)
        assert curve(tmp_path / name, without=judged) == curve(tmp_path / "right", without=judged)
    assert_judged_by_their_gold(*(curve(tmp_path / name) for name in runs))


def assert_judged_by_their_gold(right, wrong, none):
    assert right[-1]["mean_16"] > wrong[-1]["mean_16"]
    assert sum(record.get("labels_right", 0) for record in right) > 0
    assert not any(record.get(key) for record in none for key in ("labels", *SCORED))


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_verdicts_of_the_verifier_never_reach_the_update(tmp_path, small_base_folder, monkeypatch, estimator):
    """Wrong solutions, by which the verifier and the evaluation judge, leave the weights as they were."""
    honest = trained(tmp_path / "honest", small_base_folder, steps=2, estimator=estimator)
    known = (*honest.pool.problems, *honest.pool.held_out)
    lies = {problem: (completion_text(map(int, wrong(problem))),) for problem in known}
    solutions = Problem.solutions.fget
    monkeypatch.setattr(Problem, "solutions", property(lambda problem: lies.get(problem) or solutions(problem)))
    lied = trained(tmp_path / "lied", small_base_folder, steps=2, estimator=estimator)
    assert changed(honest) and equal(remembered(lied), remembered(honest))
    assert curve(tmp_path / "lied")[-1]["success"] != curve(tmp_path / "honest")[-1]["success"]


def test_runs_of_different_seeds_differ_on_one_file(tmp_path, small_base_folder):
    training = settings(small_base_folder, prompts=write(tmp_path / "prompts.jsonl", right), steps=1)
    for seed in (0, 1):
        Trainer(training, ALLOCATORS["ttrl"](), seed, tmp_path / str(seed)).run()
    zero, one = (curve(tmp_path / str(seed)) for seed in (0, 1))
    assert zero[0]["prompts_success"] == one[0]["prompts_success"] and zero[0]["mean_16"] != one[0]["mean_16"]
    assert zero[1]["p"] != one[1]["p"]


def test_the_scores_before_the_first_step_are_those_of_the_base(tmp_path, small_base_folder):
    trainer = trained(tmp_path / "run", small_base_folder, steps=1)
    first, last = curve(tmp_path / "run")
    judge = Judge(trainer.pool, trainer.start, 0, 1.0, max_new_tokens=14)
    assert {key: first[key] for key in SCORED} == judge.scores(trainer.start, step=0)
    assert first["drift"] == 0 < last["drift"] == judge.drift(trainer.policy, step=1)
    assert first["prompts_success"] == exact_success(trainer.start, trainer.problems).mean()
    assert last["prompts_success"] == exact_success(trainer.policy, trainer.problems).mean()


def test_a_step_says_what_the_votes_gave(tmp_path, small_base_folder):
    trainer = trained(tmp_path / "run", small_base_folder, steps=2)
    steps = curve(tmp_path / "run")[1:]
    for record in steps:
        assert record["counts"] == [8] * 4 and record["rounds"] == 1
        ended = record["allocator"]
        assert ended["decided"] + ended["exhausted"] + ended["tied"] + ended["unanswered"] == pytest.approx(1)
        assert record["labels"] == 4 * (1 - ended["tied"] - ended["unanswered"])
        assert 0 < record["train_reward"] < 1
    assert trainer.asked == 2 * 4 * 8


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_the_update_after_a_reset_is_that_of_a_new_learner(tmp_path, small_base_folder, estimator):
    changes = {"estimator": estimator, "learning_rate": 1e-3, "max_grad_norm": 0.1}
    trainer = trained(tmp_path / "reset", small_base_folder, steps=3, reset_every=2, **changes)
    fresh = prepared(tmp_path / "fresh", small_base_folder, **changes)
    before = trained(tmp_path / "before", small_base_folder, steps=2, **changes)
    fresh.sampler.load_state_dict(before.sampler.state_dict())
    fresh.selector.load_state_dict(before.selector.state_dict())
    fresh._step()
    assert equal(fresh.learner.state_dict(), trainer.learner.state_dict())
