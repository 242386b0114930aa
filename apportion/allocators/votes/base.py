"""The protocol of learning without labels: vote, use the winner as the label, reward agreement, retain some rollouts.

A failed sample and one without an answer are paid for and do not vote. A prompt whose vote ends without any answer, or
in a tie unless ``ties`` is "leader", has no pseudo-label and is not trained on. A rollout's own ``correct`` and
``reward`` are never read or passed to reward functions; groups hold new rewards. Curtailment gives ties to the answer
that came first, so that a vote it stops has a label, even if all M samples might have ended in a tie.

Reference: Zuo et al. 2025, "TTRL: Test-Time Reinforcement Learning", arXiv 2504.16084, and Wang et al. 2025, "OptPO",
arXiv 2512.02882, Section 3.3.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, Literal, get_args

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.allocators.votes.rewards import PseudoReward, check_reward, pseudo_rewards
from apportion.checks import check_choice
from apportion.stopping import Rule, Wave, check_max_samples, check_wave, count_votes, encode_answers, top_two
from apportion.types import Batch, Counts, Group, Needs, Plan, Prompt, Rollout

Retain = Literal["first", "all"]
"""Which rollouts are retained for the update: the first N, the minimum drawn, or all that arrived.

The first N do not depend on when the vote stopped. All do: a vote stops while its leader is ahead, so that the mean of
the group is above the expected reward of its rollouts."""

Ties = Literal["drop", "leader"]
"""Whether a prompt whose leading answers tie has no label, or the one of them that appeared first."""

Status = Literal["decided", "exhausted", "tied", "unanswered"]
"""How a vote ended: its rule stopped before M samples, it took all M or its budget ended, answers tie, or no sample
holds an answer.

A vote of M samples is never "decided", because several rules stop at M whatever the answers."""


@dataclass(frozen=True, slots=True)
class PseudoLabel:
    """The result of a vote: the ``answer`` or None, how the vote ended, and the answer's share of votes.

    ``share`` is among all requested samples. If answers tie it is the share of each; without answers it is 0.
    """

    answer: str | None
    status: Status
    share: float


class ConsensusAllocator(Allocator):
    """Votes on each prompt with at least N = ``min_samples`` and at most M = ``max_samples`` samples.

    ``retain`` says which rollouts enter the loss; ``reward`` is the reward of rollouts, by name or as a function.
    """

    max_samples: int
    min_samples: int
    retain: Retain
    reward: str | PseudoReward
    ties: Ties = "drop"
    needs: ClassVar[Needs] = Needs(labels=False)

    def __post_init__(self) -> None:
        """Check the settings that all votes have. Subclasses with more to check call it."""
        super().__post_init__()
        check_max_samples(self.max_samples)
        if not 1 <= self.min_samples <= self.max_samples:
            raise ValueError(
                f"min_samples must be an integer from 1 to max_samples, got {self.min_samples} and "
                f"{self.max_samples}; it is N, the minimum drawn"
            )
        check_choice("retain", self.retain, get_args(Retain))
        check_choice("ties", self.ties, get_args(Ties))
        check_reward(self.reward)

    @property
    @abstractmethod
    def stopping(self) -> Rule:
        """The rule that says, from ``min_samples`` on, whether a vote is decided, and for which answer."""

    def size(self, prompts: int) -> Size:
        return self._size_of(prompts, prompts * self.max_samples)

    def _size_of(self, prompts: int, asked: int) -> Size:
        first = prompts * self.min_samples
        return Size(asked, first if self.retain == "first" else asked, least=min(first, asked))

    def winner(self, batch: Batch, q: int) -> str | None:
        """Return the answer that the rule chooses for prompt ``q`` after the samples so far; None without answers."""
        answers, votes = self.votes(batch, q)
        if not answers:
            return None
        return answers[int(self.stopping.winner(votes, self.max_samples)[-1])]

    def label(self, batch: Batch, q: int) -> PseudoLabel:
        """Return the pseudo-label of prompt ``q`` after the samples so far: the winner, unless two answers lead."""
        answers, votes = self.votes(batch, q)
        if not answers:
            return PseudoLabel(None, "unanswered", 0.0)
        first, second = top_two(votes[-1])
        place = int(self.stopping.winner(votes, self.max_samples)[-1])
        if first == second:
            return PseudoLabel(answers[place] if self.ties == "leader" else None, "tied", float(first) / len(votes))
        decided = len(votes) < self.max_samples and self._enough(votes)
        return PseudoLabel(answers[place], "decided" if decided else "exhausted", float(votes[-1, place]) / len(votes))

    def labels(self, batch: Batch) -> list[PseudoLabel]:
        """Return the pseudo-label of every prompt, in order."""
        return [self.label(batch, q) for q in range(len(batch.prompts))]

    def votes(self, batch: Batch, q: int) -> tuple[list[str], Counts]:
        """Return the answers to prompt ``q`` in order of appearance, and their votes [T, K] after each sample.

        Failed samples come first, because a batch does not know which ones failed: at the end they would be in every
        newest window of a rule with windows.
        """
        failed = int(batch.asked[q]) - len(batch.rollouts[q])
        answers, codes = encode_answers([None] * failed + [rollout.answer for rollout in batch.rollouts[q]])
        return answers, count_votes(codes, len(answers))

    def groups(self, batch: Batch) -> list[Group]:
        """Return the labelled prompts as groups of their retained rollouts, rewarded by the votes of all rollouts."""
        voted = zip(batch.prompts, batch.rollouts, self.labels(batch), strict=True)
        return [self._group(prompt, own, label.answer) for prompt, own, label in voted if label.answer is not None]

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return the shares of prompts by how their vote ended, and the mean ``share``."""
        labels = self.labels(batch)
        size = max(len(labels), 1)
        ended = {status: sum(label.status == status for label in labels) / size for status in get_args(Status)}
        return ended | {"leader_share": sum(label.share for label in labels) / size}

    def _enough(self, votes: Counts) -> bool:
        if not self.min_samples <= len(votes) < self.max_samples:
            return len(votes) >= self.max_samples
        return bool(self.stopping.stops_now(votes, self.max_samples))

    def _group(self, prompt: Prompt, rollouts: Sequence[Rollout], label: str) -> Group:
        named = isinstance(self.reward, str)  # such a function reads answers alone
        rewards = pseudo_rewards(self.reward, rollouts if named else [_rewarded(r, None) for r in rollouts], label)
        judged = (_rewarded(rollout, reward) for rollout, reward in zip(rollouts, rewards.tolist(), strict=True))
        return Group(prompt, tuple(islice(judged, None if self.retain == "all" else self.min_samples)))


class SeparateVotes(ConsensusAllocator):
    """Samples each prompt until its rule stops. Prompts do not depend on each other."""

    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_wave(self.wave)

    @property
    @abstractmethod
    def wave(self) -> Wave:
        """Number of samples requested at a time; "free" is the minimum before the rule can stop."""

    def plan(self, batch: Batch) -> Plan:
        """Return the next wave of each prompt that the rule has not stopped."""
        places = range(len(batch.prompts))
        return Plan(np.array([self._more(self.votes(batch, q)[1]) for q in places], np.int64))

    def finished(self, batch: Batch, q: int) -> bool:
        """Return whether prompt ``q`` needs no more samples."""
        return self._enough(self.votes(batch, q)[1])

    def _more(self, votes: Counts) -> int:
        if self._enough(votes):
            return 0
        taken = len(votes)
        if self.wave == "free":
            return max(int(self.stopping.earliest(votes, self.max_samples)), self.min_samples - taken)
        return min(self.wave, self.max_samples - taken)


def _rewarded(rollout: Rollout, reward: float | None) -> Rollout:
    """Return ``rollout`` with this reward. Its verdict and what is compared in place of its reward are removed."""
    return replace(rollout, correct=None, reward=reward, components=())
