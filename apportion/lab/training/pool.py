"""The problems that a run trains on, from a seed or a file of prompts, and their right answers if known."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from apportion.lab.training.settings import Training
from apportion.lab.world.task import PAUSES, TASKS, Problem, held_out_problems, training_problems
from apportion.questions import Question, read_questions
from apportion.types import Prompt


@dataclass(frozen=True)
class Pool:
    """Problems to train on, held-out problems, and ``gold``: the known right answers by ``Prompt.id``.

    Only the report reads gold.
    """

    problems: tuple[Problem, ...]
    held_out: tuple[Problem, ...]
    gold: Mapping[str, frozenset[str]]

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        """The problems as prompts."""
        return tuple(problem.prompt() for problem in self.problems)

    @cached_property
    def row(self) -> Mapping[str, int]:
        """The place of each prompt, by its id."""
        return {prompt.id: row for row, prompt in enumerate(self.prompts)}


def pool_of(training: Training, seed: int) -> Pool:
    """The index of each prompt by its id.

    Raises ValueError if the file cannot be read, if a prompt is no problem of the lab, is repeated or needs a longer
    answer than the base can write, if gold is no possible answer, if there are fewer prompts than a step draws, and if
    the file holds all held-out problems.
    """
    task = training.task
    if training.prompts is None:
        drawn = training_problems(training.problems, seed, task)
        right = {problem: problem.answers for problem in drawn}
    else:
        right = _read(training.prompts, training)
    held_out = tuple(problem for problem in held_out_problems(task=task) if problem not in right)
    if not held_out:
        raise ValueError(
            f"{training.prompts} must leave out one of the 1000 held-out problems, got them all; remove some, so that "
            "there is something to measure on"
        )
    gold = {problem.prompt().id: answers for problem, answers in right.items() if answers}
    return Pool(tuple(right), held_out[: training.held_out], gold)


def _read(path: Path, training: Training) -> dict[Problem, frozenset[str]]:
    """Return the problems of the file in order, each with the right answer of the file, if any."""
    right: dict[Problem, frozenset[str]] = {}
    for number, question in enumerate(read_questions(path), start=1):
        try:
            problem = _parse(question, training)
            if problem in right:
                raise ValueError(f"a prompt must be there once, got {question.prompt!r} again; remove it")
        except ValueError as error:
            raise ValueError(f"{path}, prompt {number}: {error}") from error
        right[problem] = frozenset(question.golds)
    if len(right) < training.prompts_per_step:
        raise ValueError(
            f"{path} must hold at least the {training.prompts_per_step} prompts of a step, got {len(right)}; "
            "lower prompts_per_step"
        )
    return right


def _parse(question: Question, training: Training) -> Problem:
    """Return the problem of a question.

    Raise ValueError if the base cannot solve it, or if its gold answer is invalid.
    """
    problem, task = Problem.parse(question.text), TASKS[training.task]
    longest = (task.max_new_tokens - 1 - PAUSES * task.notes) // 2
    too_long, forked = len(problem.operations) > longest, any(problem.alternatives) and not any(task.forks)
    if too_long or forked or problem.notes != task.notes:
        forks, end = "" if any(task.forks) else ", no forks", "==" if task.notes else "="
        raise ValueError(
            f"a problem must have at most {longest} operations{forks} and the end {end!r} for the base "
            f"{training.base}, got {question.prompt!r}; remove it"
        )
    digits = len(problem.answer)
    if wrong := [gold for gold in question.golds if not re.fullmatch(rf"[0-9]{{{digits}}}", gold)]:
        raise ValueError(
            f"gold must be {digits} digits, the running digit after each operation or the last one after '==', got "
            f"{wrong[0]!r}; write it as text, a number loses its zeros, or leave it out"
        )
    return problem
