"""Early-stopped majority votes in inspect_ai: epochs are the samples of a vote, and a stopping rule ends them.

``VoteStopping`` is an ``EarlyStopping`` of inspect_ai: it skips the epochs of a question that are left when the rule
stops. ``answer_vote`` is a reducer of epochs: the score of the answer with the most votes. ::

    Task(
        dataset, solver=generate(), scorer=match(numeric=True),
        epochs=Epochs(32, answer_vote()), early_stopping=VoteStopping("posterior_predictive", eps=0.1),
    )

Votes are the scores' ``answer``: of ``match(numeric=True)``, ``pattern``, ``answer``, ``math`` and ``choice`` it is
what they read. Other scorers give the whole completion, and need ``answer=``. Equal texts are equal answers.

The rule is applied in the order of the epochs and not of arrival, because short completions arrive first. An earlier
epoch that is still under way, or failed, is a sample without an answer: it can delay the stop but not cause it.

inspect_ai runs the first epoch of all questions, then the second, and so on. Epochs under way when a rule stops are
completed and counted. They are few if there are more questions than ``max_samples``, the number that run at once.

Reference: inspect_ai 0.3.285, ``inspect_ai.util.EarlyStopping`` and ``inspect_ai.scorer.ScoreReducer``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from apportion.stopping import USUAL_RULE, Curtailed, Rule, count_votes, encode_answers, make_rule
from apportion.untrusted import shown

if TYPE_CHECKING:
    from inspect_ai.scorer import SampleScore, Score, ScoreReducer
    from inspect_ai.util import EarlyStop

ReadAnswer = Callable[["Score"], str | None]
"""From a score to the answer that it votes for; None is a sample without an answer."""


def stated_answer(score: Score) -> str | None:
    """Return the score's ``answer``, or None if it is missing or blank."""
    return score.answer if score.answer and score.answer.strip() else None


class VoteStopping:
    """Stops the epochs of each question when ``rule`` says so: an ``EarlyStopping`` of inspect_ai for one task.

    Args:
        rule: when to stop, as a name or a built rule; the number of epochs is its largest number of samples.
        scorer: the name of the scorer whose answers vote; needed if the task has several.
        curtail: also stop once the leader cannot be overtaken.
        answer: reads a score's answer.
        settings: those of a rule given by name.

    Raises ValueError for an unknown rule or setting. It raises before the first sample if the rule contradicts the
    number of epochs, if the task has several scorers and none is named, and if it serves another task already.
    """

    def __init__(
        self,
        rule: str | Rule = USUAL_RULE,
        *,
        scorer: str | None = None,
        curtail: bool = True,
        answer: ReadAnswer = stated_answer,
        **settings: Any,
    ) -> None:
        made = make_rule(rule, **settings)
        self.rule = Curtailed(made) if curtail else made
        self.scorer = scorer
        self.answer = answer
        self._task: str | None = None
        self._epochs = 0
        self._answers: dict[str | int, dict[int, str | None]] = {}
        self._started: set[tuple[str | int, int]] = set()
        self._stopped: dict[str | int, int] = {}

    async def start_task(self, task: Any, samples: Sequence[Any], epochs: int) -> str:
        """Check the task, forget an earlier attempt at it, and return this manager's name."""
        self.rule.check(epochs)
        scorers = [scorer.name for scorer in task.scorers or []]
        if self.scorer is None and len(scorers) > 1:
            raise ValueError(f"scorer must name one of {', '.join(scorers)}, got None; its answers are the votes")
        if self._task not in (None, task.task_id):
            raise ValueError(f"VoteStopping serves one task and model, got a second, {task.model}; build one for each")
        self._task, self._epochs = task.task_id, epochs
        self._answers, self._started, self._stopped = {sample.id: {} for sample in samples}, set(), {}
        return "apportion"

    async def schedule_sample(self, id: str | int, epoch: int) -> EarlyStop | None:
        """Return a stop if the question's rule has stopped, and None if this epoch has to run."""
        if id not in self._stopped:
            self._started.add((id, epoch))
            return None
        from inspect_ai.util import EarlyStop  # noqa: PLC0415 - optional

        taken = self._stopped[id]
        votes = Counter(answer for answer in self._stream(id)[:taken] if answer is not None)
        leader, most = votes.most_common(1)[0] if votes else (None, 0)
        reason = f"{shown(leader)} has {most} of {taken} votes"
        return EarlyStop(id=id, epoch=epoch, reason=reason, metadata={"answer": leader, "samples": taken})

    async def complete_sample(self, id: str | int, epoch: int, scores: Mapping[str, SampleScore]) -> None:
        """Count the epoch's answer, and stop the question if the rule says so."""
        self._answers.setdefault(id, {})[epoch] = self.answer(self._own(scores))
        labels, codes = encode_answers(self._stream(id))
        stops = self.rule.stops(count_votes(codes, len(labels)), self._epochs)
        if stops.any() and id not in self._stopped:
            self._stopped[id] = int(stops.argmax()) + 1

    async def complete_task(self) -> dict[str, Any]:
        """Return the rule, and how many epochs ran, failed, gave no answer, and would have run without the rule."""
        answers = [answer for epochs in self._answers.values() for answer in epochs.values()]
        done = {(id, epoch) for id, epochs in self._answers.items() for epoch in epochs}
        self._task = None
        return {
            "rule": str(self.rule),
            "questions": len(self._answers),
            "stopped": len(self._stopped),
            "epochs": len(done),
            "epochs_without_the_rule": len(self._answers) * self._epochs,
            "failed": len(self._started - done),
            "without_answer": answers.count(None),
        }

    def _stream(self, id: str | int) -> list[str | None]:
        """Return the answers up to the last epoch that is scored, with None for those that are not."""
        answers = self._answers[id]
        return [answers.get(epoch) for epoch in range(1, max(answers) + 1)]

    def _own(self, scores: Mapping[str, SampleScore]) -> Score:
        names = [self.scorer] if self.scorer is not None else list(scores)
        if len(names) != 1 or names[0] not in scores:
            raise ValueError(f"scorer must be one of {', '.join(scores) or 'none'}, got {self.scorer!r}; name it so")
        return scores[names[0]].score


def answer_vote(answer: ReadAnswer = stated_answer) -> ScoreReducer:
    """Return a reducer of inspect_ai: the score of the answer with the most votes among a question's epochs.

    Among equals the answer that comes first wins, and among its scores the first. Without any answer it is the first
    score. ``metadata`` of the score gets ``votes``, the number of votes by answer. Unlike inspect_ai's ``mode`` and
    ``majority`` it counts answers and not grades, so several wrong answers do not add up.
    """
    from inspect_ai.scorer import score_reducer  # noqa: PLC0415 - optional

    def reduce(scores: list[Score]) -> Score:
        answers = [answer(score) for score in scores]
        votes = Counter(each for each in answers if each is not None)
        if not votes:
            return scores[0]
        won = scores[answers.index(votes.most_common(1)[0][0])]
        return won.model_copy(update={"metadata": {**(won.metadata or {}), "votes": dict(votes)}})

    reducer: ScoreReducer = score_reducer(name="answer_vote")(lambda: reduce)()
    return reducer
