"""Mean@k, Pass@k and Maj@k of a job's evaluation, from the k completions that TRL draws of each question."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from apportion.engines.outcomes import are_verdicts
from apportion.engines.prompts import last_text
from apportion.evaluation import majority_at_k, pass_at_k, right_answers, usual_ks
from apportion.trl.jobs.job import JobAllocation
from apportion.trl.overrides import AllocatedTrainer
from apportion.trl.trainer import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.trl.votes import Votes
from apportion.types import Floats, Mask
from apportion.verifiers import Verifier


def scores_at_k(right: Mask, answers: Sequence[Sequence[str | None]] | None = None) -> dict[str, Floats]:
    """Return the scores [P] of P questions, given which of their k completions are ``right`` [P, k], by metric.

    Pass@n is unbiased for every power of two n up to k, and for k. With ``answers`` [P][k], in which equal texts are
    one vote, the majority is right if a right completion has its answer. With k = 1 all scores are the mean, which is
    then the only one.

    >>> {name: found.tolist() for name, found in scores_at_k(np.array([[True, False]]), [["7", "8"]]).items()}
    {'mean_at_2': [0.5], 'pass_at_2': [1.0], 'maj_at_2': [1.0]}
    """
    count, k = right.shape
    found = {f"mean_at_{k}": right.mean(axis=1)}
    for n in usual_ks(k):
        if n > 1:
            found[f"pass_at_{n}"] = pass_at_k(right.sum(axis=1), np.full(count, k), n)
    if answers and k > 1:
        found[f"maj_at_{k}"] = majority_at_k(answers, list(map(right_answers, answers, right)), k)
    return found


class EvaluatedTrainer(AllocatedTrainer):
    """Logs the scores of an evaluation beside TRL's mean reward. Training is not changed.

    A question with a completion that has no reward is left out. Of graded rewards only the mean is logged, unless the
    verifier is named as the verdict.
    """

    judge: Verifier | None = None
    """What reads answers for Maj@k: the verifier behind the one reward function."""
    _allocation = JobAllocation
    _graded = False

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        scores: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if not self.model.training:
            judge, answers = self.judge, None
            if judge is not None and type(judge).answer is not Verifier.answer:
                answers = self._ranks.all_gather([judge.answer(last_text(each)) for each in completions])
            rewards = scores[:, 0].double().cpu().numpy().reshape(-1, self.num_generations_eval)
            found, logged = self._ranks.run_on_main(lambda: self._scores(rewards, answers)), self._metrics["eval"]
            for name, values in found.items():
                if values:
                    logged[name].extend(values)
            self._graded |= len(found) == 1 and rewards.shape[1] > 1
            for name in [name for name in logged if self._graded and name.startswith(("pass_at_", "maj_at_"))]:
                del logged[name]
        return scores

    def _scores(self, rewards: Floats, answers: Sequence[str | None] | None) -> dict[str, list[float]]:
        """Return the scores of the questions with ``rewards`` [P, k] and ``answers`` [P * k], by metric."""
        k, whole = rewards.shape[1], ~np.isnan(rewards).any(axis=1)
        if self._graded or (self.allocation.verdict is None and not are_verdicts(rewards.flat)):
            return {f"mean_at_{k}": rewards[whole].mean(axis=1).tolist()}
        votes = None
        if answers is not None:
            of_questions = [answers[k * place : k * (place + 1)] for place in np.flatnonzero(whole)]
            votes = [Votes(self._answers).merged([0] * k, own) for own in of_questions]
        return {name: values.tolist() for name, values in scores_at_k(rewards[whole] > 0, votes).items()}


class EvaluatedGRPOTrainer(EvaluatedTrainer, AllocatedGRPOTrainer):  # type: ignore[misc]
    """``AllocatedGRPOTrainer`` with the scores of an evaluation."""


class EvaluatedRLOOTrainer(EvaluatedTrainer, AllocatedRLOOTrainer):  # type: ignore[misc]
    """``AllocatedRLOOTrainer`` with the scores of an evaluation."""
