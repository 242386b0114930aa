"""Mean@k, Pass@k and Maj@k of the evaluation of any trainer of TRL, from the k completions that it draws of a question.

from apportion.trl import EvaluationAtK

trainer = GRPOTrainer(..., eval_dataset={"aime24": aime24, "aime25": aime25})
trainer.add_callback(EvaluationAtK(trainer))
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import TrainerCallback

from apportion.answers import Equivalence
from apportion.answers.extraction import Extractor
from apportion.answers.reader import AnswerReader
from apportion.engines.prompts import last_text
from apportion.evaluation import majority_at_k, pass_at_k, right_answers, usual_ks
from apportion.scheduler.outcomes import are_verdicts
from apportion.trl.ranks import Ranks
from apportion.trl.replaced import replaced
from apportion.trl.settings import check_verdict
from apportion.trl.votes import Votes
from apportion.types import Floats, Mask


def scores_at_k(right: Mask, answers: Sequence[Sequence[str | None]] = ()) -> dict[str, Floats]:
    """Return the scores [P] of P questions, given which of their k completions are ``right`` [P, k], by metric.

    Pass@n is unbiased for every power of two n up to k, and for k. With ``answers`` [P][k], in which equal texts are
    one vote, the majority is right if a right completion has its answer. Answers with equal votes share the majority.
    With k = 1 all scores are the mean, which is then the only one.

    >>> {name: found.tolist() for name, found in scores_at_k(np.array([[True, False]]), [["7", "8"]]).items()}
    {'mean_at_2': [0.5], 'pass_at_2': [1.0], 'maj_at_2': [0.5]}
    """
    count, k = right.shape
    found = {f"mean_at_{k}": right.mean(axis=1)}
    for n in usual_ks(k):
        if n > 1:
            found[f"pass_at_{n}"] = pass_at_k(right.sum(axis=1), np.full(count, k), n)
    if answers and k > 1:
        found[f"maj_at_{k}"] = majority_at_k(answers, list(map(right_answers, answers, right)), k)
    return found


class EvaluationAtK(TrainerCallback):
    """Logs the scores of each evaluation beside TRL's mean reward. Training is not changed.

    k is TRL's ``num_generations_eval``. A question with a completion that has no reward is left out. Of graded rewards
    only the mean is logged, unless ``verdict`` is given. The names of several sets of an evaluation come first:
    ``eval_aime24_mean_at_32``.

    Args:
        trainer: TRL's ``GRPOTrainer`` or ``RLOOTrainer``, or a subclass, with an allocator or without.
        verdict: the name of the reward function that is above 0 for right completions, by default the first one.
        extract: finds the answer in a completion, as in ``TRLAllocation``; None leaves out Maj@k.
        equivalence: decides which answers are one vote, as in ``TRLAllocation``.

    Raises TypeError for another trainer, and ValueError for a verdict that is none of its reward functions.
    """

    def __init__(
        self,
        trainer: Any,
        verdict: str | None = None,
        extract: str | Extractor | None = "auto",
        equivalence: str | Equivalence = "exact",
    ) -> None:
        if not hasattr(trainer, "num_generations_eval"):
            raise TypeError(
                f"trainer must be TRL's GRPOTrainer or RLOOTrainer, got {type(trainer).__name__}; give one of these"
            )
        check_verdict(verdict, trainer.reward_func_names)
        self.trainer, self.verdict = trainer, verdict
        self._answers = None if extract is None else AnswerReader(extract, equivalence)
        self._prefix = ""
        self._graded = set[str]()
        self._evaluate, self._calculate_rewards = trainer.evaluate, trainer._calculate_rewards
        trainer.evaluate, trainer._calculate_rewards = self._named, self._scored

    def on_train_end(self, *args: Any, **settings: Any) -> None:
        """Close the equivalence. A later evaluation makes it again."""
        if self._answers is not None:
            self._answers.close()

    def _named(self, *args: Any, metric_key_prefix: str = "eval", **settings: Any) -> Any:
        """Evaluate as the trainer does.

        It calls this again for each of several sets, with the set's name as a prefix.
        """
        name = metric_key_prefix.partition("_")[2]
        with replaced(self, _prefix=name and f"{name}_"):
            return self._evaluate(*args, metric_key_prefix=metric_key_prefix, **settings)

    def _scored(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        trainer = self.trainer
        scores: Tensor = self._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if trainer.model.training:
            return scores
        ranks, k = Ranks(trainer.accelerator), trainer.num_generations_eval
        read: Any = [] if self._answers is None else [self._answers.read(last_text(each)) for each in completions]
        answers = ranks.all_gather(read)
        column = trainer.reward_func_names.index(self.verdict) if self.verdict else 0
        rewards = scores[:, column].double().cpu().numpy().reshape(-1, k)
        found, logged = ranks.run_on_main(lambda: self._scores(rewards, answers)), trainer._metrics["eval"]
        prefix = self._prefix
        for name, values in found.items():
            logged[f"{prefix}{name}"].extend(values)
        if k > 1 and len(found) == 1:
            self._graded.add(prefix)
        for name in [name for name in logged if name.startswith((f"{prefix}pass_at_", f"{prefix}maj_at_"))]:
            if prefix in self._graded:
                del logged[name]
        return scores

    def _scores(self, rewards: Floats, answers: Sequence[str | None]) -> dict[str, list[float]]:
        """Return the scores of the questions with ``rewards`` [P, k] and ``answers`` [P * k], by metric."""
        k, whole = rewards.shape[1], np.flatnonzero(~np.isnan(rewards).any(axis=1))
        if self.verdict is None and not are_verdicts(rewards.flat):
            return {f"mean_at_{k}": rewards[whole].mean(axis=1).tolist()}
        votes: list[list[str | None]] = []
        if answers and self._answers is not None and len(whole):
            votes = [Votes(self._answers).merged([0] * k, answers[k * place : k * (place + 1)]) for place in whole]
        return {name: values.tolist() for name, values in scores_at_k(rewards[whole] > 0, votes).items()}
