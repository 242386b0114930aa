"""The contract of every adapter: an engine with its own scheduler asks what to sample, and says what came of it.

The engine calls ``next`` when it starts a group, samples ``count`` rollouts of its prompt, and calls ``observe`` when
they are done. Groups end in any order. A rule of several rounds then asks for more rollouts of the prompt. An engine
that lets others compute its advantages calls ``advantages``. One with checkpoints puts ``state_dict`` into them. The
decisions are those of a ``Scheduler`` that learns from each group as it ends, and leaves updates to the engine.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from apportion.advantages import ACROSS_GROUPS, check_agreement, check_compared, needs
from apportion.engines.saved_state import load_state, restoring
from apportion.predictors.saved import SavedValues
from apportion.scheduler import Rows, Scheduler, Selected, Ticket
from apportion.scheduler.decisions import RunDecisions, TrainerAllocation
from apportion.scheduler.outcomes import rollout_of
from apportion.scheduler.saved_settings import check_same_settings
from apportion.scheduler.unit import Unit
from apportion.types import Floats, Group, Prompt, Rollout

NEVER_DUE = 2**31
"""An age bound, in groups, that no group reaches: the engine decides what it trains on."""
REMEDY = "start a new run from the weights of the checkpoint"


@dataclass
class _Ended(Rows):
    """Groups are learned from when one with rows ends; those without rows also if no other prompt is free.

    Args:
        prompts: prompts of the data set.
    """

    prompts: int = 0

    def take(self, finished: Mapping[int, int], units: Mapping[int, Unit], version: int, short: bool) -> list[int]:
        """As in ``Rows``."""
        return super().take(finished, units, version, short or len(units) == self.prompts)


@dataclass(frozen=True, slots=True)
class Opened:
    """A group to sample: ``count`` rollouts of ``prompt``. A prompt that is opened again has another ``key``."""

    key: str
    prompt: Prompt
    count: int


class EngineGroups:
    """The groups of one run in an engine with its own scheduler.

    Args:
        decisions: which prompts, how many rollouts of each, which baseline and advantages.
        prompts: the data set, each prompt once; more than the engine samples at once.
        group_size: the rollouts of a group if the engine samples groups of one size; None if each group may differ.
        seed: of the selection.
        lost_after: a group that is not observed while so many others are opened is given up, because engines drop
            some without a word. It must be longer than any group takes, or short groups would be preferred.

    Raises ValueError for decisions that the engine cannot follow.

    >>> groups = EngineGroups(TrainerAllocation(allocator="uniform"), [Prompt("a"), Prompt("b")], group_size=2)
    >>> opened = groups.next()
    >>> opened.count, groups.observe(opened.key, [groups.rollout(1.0), groups.rollout(0.0)])
    (2, 0)
    """

    def __init__(
        self,
        decisions: TrainerAllocation,
        prompts: Sequence[Prompt],
        *,
        group_size: int | None = None,
        seed: int = 0,
        lost_after: int = 4096,
    ) -> None:
        self.decisions, self._lock = decisions, RLock()  # engines sample, train and save in several threads
        rule = decisions.allocator if group_size is None else decisions.allocator.with_budget(group_size)
        if decisions.label_free or decisions.needs.reused_rollouts:
            raise ValueError(
                f"allocator must learn from fresh rollouts with rewards in this engine, got {rule.name}; use uniform"
            )
        if group_size is not None and not (rule.one_round and rule.separable and rule.size(1).asked == group_size):
            raise ValueError(
                f"allocator must give each prompt {group_size} rollouts, because the engine samples groups of one "
                f"size, got {rule.name}; use uniform"
            )
        if decisions.outcome_gate and decisions.estimator is None:
            raise ValueError(
                "outcome_gate must go with an estimator of the allocation, because the engine's own advantages are not "
                "gated, got None; set estimator, such as grpo"
            )
        if (estimator := decisions.estimator) is not None:
            rule = rule.with_estimator(estimator)
            check_compared(rule, estimator)
            check_agreement(rule, estimator, decisions.loss_weighting)
            if "rounds" in needs(estimator) and not rule.one_round:
                raise ValueError(
                    f"estimator must not compare rounds, which engines do not tell apart, got {estimator} with "
                    f"{rule.name}; use reinforce with a baseline, or a rule of one round"
                )
        own = RunDecisions(
            allocator=rule,
            baseline=decisions.baseline,
            selection=decisions.selection,
            outcome_gate=decisions.outcome_gate,
        )
        due, source = _Ended(1, NEVER_DUE, len(prompts)), Selected(seed=seed)
        self._stream = Scheduler(own, prompts, due, source, attempts=1, patience=lost_after)
        self._settings = decisions.settings | {"group_size": group_size}
        self._clock, self._prompts = 0, {prompt.id: prompt for prompt in prompts}
        self._flying: dict[str, tuple[Ticket, ...]] = {}
        self._values: dict[str, float] = {}  # of the baseline, by key, before the rollouts; the latest ``lost_after``
        self._kept, self.counts = lost_after, Counter[str]()
        own.prepare(prompts)

    def rollout(
        self, reward: object, tokens: int | None = None, logprobs: ArrayLike | None = None, verdict: object = None
    ) -> Rollout | None:
        """Return the rollout with ``reward``, see ``rollout_of``; None if it failed."""
        return rollout_of(reward, self.decisions.needs, verdict=verdict, tokens=tokens, logprobs=logprobs)

    @property
    def in_flight(self) -> list[Opened]:
        """The groups that were opened and not finished, oldest first."""
        with self._lock:
            return [Opened(key, tickets[0].prompt, len(tickets)) for key, tickets in self._flying.items()]

    def next(self) -> Opened:
        """Open the next group. Raises ValueError if every prompt is in flight."""
        with self._lock:
            self._clock += 1
            self._settle()
            if not (tickets := self._stream.group()):
                raise ValueError(
                    f"a prompt must be free to be sampled, got all {len(self._prompts)} in flight; use a data set with "
                    "more prompts than the engine has groups in flight, or lower lost_after if the engine drops groups"
                )
            prompt, baseline = tickets[0].prompt, self.decisions.baseline
            key = _key_of(tickets[0])
            self._flying[key] = tickets
            if baseline is not None:
                self._values[key] = float(baseline.predict([prompt])[0])
                for old in list(self._values)[: -self._kept]:
                    del self._values[old]
            self.counts["opened"] += 1
            return Opened(key, prompt, len(tickets))

    def observe(self, name: str, rollouts: Sequence[Rollout | None]) -> int:
        """Take the rollouts of a group, None for each that failed. Return how many more of its prompt to sample.

        ``name`` is the key of the group, or the id of its prompt in engines that pass no more on. A group that is not
        in flight is counted and ignored. Rollouts that are missing have failed. Raises ValueError for too many.
        """
        with self._lock:
            key = name if name in self._flying else next((k for k in self._flying if k.rpartition("#")[0] == name), "")
            tickets = self._flying.get(key, ())
            if not tickets:
                self.counts["ignored"] += 1
                return 0
            if len(rollouts) > len(tickets):
                raise ValueError(
                    f"a group must have at most the {len(tickets)} rollouts that were asked for, got {len(rollouts)} "
                    f"of {name!r:.80}; set rollouts_per_prompt to the engine's own number"
                )
            for ticket, rollout in zip_longest(tickets, rollouts):
                self._stream.arrived(ticket, rollout)
            if more := self._stream.group(tickets[0].unit):
                self._flying[key] = more
            else:
                del self._flying[key]
            self._settle()
            return len(more)

    def advantages(self, keys: Sequence[str], rollouts: Sequence[Rollout | None]) -> Floats:
        """Return the weighted advantages, [N], of rollouts in any order. The key [N] of each names its group.

        Weights are those of the loss and of the selection. They have a mean of about 1. A rollout that failed is None:
        it has advantage 0, and no other is compared with it. Raises ValueError for a key that is not known any more.
        """
        with self._lock:
            decisions, rows = self.decisions, defaultdict[str, dict[int, Rollout]](dict)
            for row, (key, rollout) in enumerate(zip(keys, rollouts, strict=True)):
                if rollout is not None:
                    rows[key][row] = rollout
            try:
                prompts = [self._prompts[key.rpartition("#")[0]] for key in rows]
                values = None if decisions.baseline is None else [self._values[key] for key in rows]
            except KeyError as error:
                raise ValueError(
                    f"a group that is trained on must be one of the latest {self._kept} that were opened, got {error}; "
                    "raise lost_after"
                ) from error
            groups = [Group(p, tuple(own.values())) for p, own in zip(prompts, rows.values(), strict=True)]
            decisions.look([group.rollouts for group in groups])
            found = np.zeros(len(keys))
            found[[row for own in rows.values() for row in own]] = decisions.weighted(groups, values)
            return found

    def teaches(self, outcomes: Sequence[float]) -> bool:
        """Return whether a group has a gradient: its ``outcomes`` differ, or the estimator looks beyond it."""
        return self.decisions.estimator in ACROSS_GROUPS or differ(outcomes)

    def metrics(self) -> dict[str, float]:
        """Return counts since the start: groups opened, unknown groups reported, groups given up; and those open."""
        return {name: float(self.counts[name]) for name in ("opened", "ignored", "given_up")} | {
            "in_flight": float(len(self._flying))
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything, with the states of the rule, the baseline and the selection, as plain values."""
        with self._lock:
            return {
                "stream": self._stream.state_dict(), "settings": self._settings, "clock": self._clock,
                "values": dict(self._values), "counts": dict(self.counts),
            }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Groups in flight are opened again first. Raise ValueError for anything else.
        """
        with self._lock:
            old = ["baseline"] if isinstance(state, Mapping) and "baseline" in state else []  # of 0.3.0
            saved = SavedValues(state, "the groups of an engine", [*self.state_dict(), *old])
            check_same_settings(saved.state("settings"), self._settings)
            clock = saved.count("clock")
            values, counts = (SavedValues(own := saved.state(key), key, own) for key in ("values", "counts"))
            found = {key: values.number(key) for key in values.keys}
            counted = Counter({name: counts.count(name) for name in counts.keys})
            self._stream.load_state_dict({key: saved.values[key] for key in old} | saved.state("stream"))
            self._clock, self._values, self.counts, self._flying = clock, found, counted, {}
            self._stream.restarted()

    def load(self, path: Path, kind: str) -> None:
        """Restore the state that ``save_state`` wrote to ``path`` for this ``kind``.

        Raises SavedStateError if there is none, or one of something else.
        """
        with restoring(path, REMEDY):
            self.load_state_dict(load_state(path, kind, remedy=REMEDY))

    def _settle(self) -> None:
        """Give up lost groups, and learn from finished ones."""
        while (decision := self._stream.decide(0, self._clock)).cancelled or decision.update:
            for lost in decision.cancelled:
                self.counts["given_up"] += self._flying.pop(_key_of(lost), None) is not None
            if decision.update:
                self._stream.trained(decision.update.version)


def differ(rewards: Sequence[float]) -> bool:
    """Return whether ``rewards`` of a group differ: then it has a group-relative gradient. Fewer than two do not count.

    >>> differ([1.0, 0.0]), differ([1.0, 1.0]), differ([1.0])
    (True, False, True)
    """
    return len(rewards) < 2 or len(set(rewards)) > 1


def _key_of(ticket: Ticket) -> str:
    return f"{ticket.prompt.id}#{ticket.unit}"
