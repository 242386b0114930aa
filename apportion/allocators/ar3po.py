"""AR3PO: sample in stages until a prompt has a correct response; if it gets none, reuse one from an earlier step.

Reference: Y. Zhang, W. Yao, C. Yu, Y. Liu, Q. Yin, B. Yin, H. Yun, L. Li, "Improving Sampling Efficiency in RLVR
through Adaptive Rollout and Response Reuse", arXiv 2509.25808 (2025), section 3. Symbols of the paper used here: S
stages (``stages``), k rollouts of a prompt in each (``rollouts_per_stage``), B the replay buffer of correct responses.
S = 2 and k = 4 are the paper's.

Adaptive rollout: a prompt leaves with its first correct response, so one with success probability p takes k (1 + (1 -
p)^k + ... + (1 - p)^(k (S - 1))) rollouts on average. Response reuse (section 3.2): if a group has no correct response
and B has one, it replaces one incorrect response, and the advantages are those of the mixed group.

Note: the paper leaves the size of B open. 4 responses per prompt and a gibibyte in all, oldest out first, are our
choice. A prompt reuses a response that it got in an earlier epoch, so B must hold those of the whole data set.
Note: rollouts of one prompt are exchangeable, so the last incorrect response is replaced. A group of fewer than two
incorrect responses is not changed, because no incorrect one would remain.
Note: the draw from B is seeded from the seed, the step and the prompt, so that every rank reuses the same response.
Note: the counts depend on outcomes of the same batch, which biases group-relative gradients; see docs/allocators.md.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from apportion.allocators.base import Allocator, Size
from apportion.allocators.response_store import GIB, ResponseStore, response_key
from apportion.checks import check_choice, check_least
from apportion.predictors.saved import SavedValues
from apportion.types import Batch, Group, Needs, Plan, Prompt, Rollout, prompt_id

Reuse = Literal["stop_gradient", "recompute", "replay", "none"]


@dataclass(frozen=True)
class AR3PO(Allocator):
    """Stages of rollouts for prompts without a correct response, then reuse of earlier ones; needs binary rewards.

    Args:
        stages: S, the most stages of a prompt.
        rollouts_per_stage: k, rollouts of a prompt in each stage.
        reuse: how a reused response enters the loss. "stop_gradient", the paper's Option II: not at all; it only
            changes the baseline. "recompute", its Option I: with its log-probabilities under the current policy as the
            behaviour's. "replay", which the paper compares with: with the log-probabilities it was sampled with. "none"
            is adaptive rollout without reuse.
        entries_per_prompt: the most responses kept of one prompt.
        entries: the most in all; by default only ``store_bytes`` bounds them.
        store_bytes: the most memory for them, where the allocator runs; a checkpoint takes about as much.
        seed: seeds the draw among a prompt's responses.

    A reused rollout has ``Rollout.step`` and is otherwise as it was sampled, including the completion. Rollouts without
    a completion are never reused.

    >>> from apportion import Prompt, Rollout
    >>> allocator = AR3PO(stages=2, rollouts_per_stage=2)
    >>> batch = allocator.start([Prompt("a"), Prompt("b")])
    >>> batch = batch.add(allocator.plan(batch), [[Rollout(True, completion="yes"), Rollout(False)], []])
    >>> allocator.plan(batch).counts.tolist()
    [0, 2]
    >>> allocator.observe(batch)
    >>> batch = allocator.start([Prompt("a")]).add(Plan([2]), [[Rollout(False), Rollout(False)]])
    >>> allocator.groups(batch)[0].rewards.tolist(), allocator.groups(batch)[0].keep.tolist()
    ([0.0, 1.0], [True, False])
    """

    stages: int = 2
    rollouts_per_stage: int = 4
    reuse: Reuse = "stop_gradient"
    entries_per_prompt: int = 4
    entries: int | None = None
    store_bytes: int = GIB
    seed: int = 0

    name: ClassVar[str] = "ar3po"
    separable: ClassVar[bool] = True
    _store: ResponseStore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, "the paper has 2 stages of 4", stages=1, rollouts_per_stage=1)
        check_least(self, "any other integer will do", seed=0)
        check_least(self, 'use reuse="none" to store none', entries_per_prompt=1, entries=1, store_bytes=1)
        check_choice("reuse", self.reuse, get_args(Reuse), 'the paper recommends "stop_gradient"')
        object.__setattr__(self, "_store", ResponseStore(self.entries_per_prompt, self.entries, self.store_bytes))

    @property
    def needs(self) -> Needs:
        reused = self.reuse in ("recompute", "replay")
        return Needs(binary=True, reused_rollouts=reused, behaviour_logprobs=self.reuse == "replay")

    def size(self, prompts: int) -> Size:
        most = self.stages * self.rollouts_per_stage * prompts  # a reused rollout takes the place of one of these
        return Size(asked=most, kept=most, least=self.rollouts_per_stage * prompts, rounds=self.stages)

    def plan(self, batch: Batch) -> Plan:
        going = (batch.successes == 0) & (batch.asked < self.stages * self.rollouts_per_stage)
        return Plan(np.where(going, self.rollouts_per_stage - batch.asked % self.rollouts_per_stage, 0))

    def groups(self, batch: Batch) -> list[Group]:
        return [self._group(group.prompt, group.rollouts) for group in super().groups(batch)]

    def metrics(self, batch: Batch) -> dict[str, float]:
        """Return the number of groups that reuse a response, and shares of prompts without one. Call before observe."""
        without = int((batch.successes == 0).sum())
        reused = sum(self._reused(*own) is not None for own in zip(batch.prompts, batch.rollouts, strict=True))
        size = max(len(batch.prompts), 1)
        return {
            "reused": float(reused),
            "store_entries": float(len(self._store)),
            "store_bytes": float(self._store.bytes),
            "without_correct": without / size,
            "without_correct_after_reuse": (without - reused) / size,
        }

    def observe(self, batch: Batch) -> None:
        if self.reuse != "none":
            for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
                for rollout in rollouts:
                    if rollout.correct and rollout.step is None:
                        self._store.add(prompt.id, rollout)
        self._store.step += 1

    def _memory(self) -> dict[str, Any]:
        return {"store": self._store.state()}

    def _restore(self, saved: SavedValues) -> None:
        self._store.restore(saved.state("store"))

    def _group(self, prompt: Prompt, rollouts: tuple[Rollout, ...]) -> Group:
        reused = self._reused(prompt, rollouts)
        if reused is None:
            return Group(prompt, rollouts)
        place = max(i for i, rollout in enumerate(rollouts) if rollout.correct is False)
        mixed = (*rollouts[:place], reused, *rollouts[place + 1 :])
        from_store = np.arange(len(mixed)) == place
        outside = from_store & (self.reuse == "stop_gradient")
        return Group(prompt, mixed, keep=~outside, recompute=from_store & (self.reuse == "recompute"))

    def _reused(self, prompt: Prompt, rollouts: tuple[Rollout, ...]) -> Rollout | None:
        """Return the response of an earlier step that joins these rollouts of a prompt, or None."""
        verdicts = [rollout.correct for rollout in rollouts]
        if True in verdicts or verdicts.count(False) < 2:
            return None
        if not (stored := self._store.responses(prompt.id)):
            return None
        present = {response_key(rollout) for rollout in rollouts}
        if not (absent := [rollout for key, rollout in stored.items() if key not in present]):
            return None
        draw = np.random.default_rng([self.seed, self._store.step, int(prompt_id(prompt.id), 16)])
        return absent[draw.integers(len(absent))]
