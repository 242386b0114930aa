"""The judge of a run without labels. It knows the right answers; only the report sees its scores."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from apportion.allocators.votes import PseudoLabel
from apportion.evaluation import answer_scores
from apportion.lab.policy.network import distributions_at, pack_rows
from apportion.lab.policy.sampler import LedgerSampler
from apportion.lab.training.pool import Pool
from apportion.lab.world.task import encode
from apportion.types import Prompt

ROLLOUTS = 16
"""Rollouts of a prompt in mean@16, pass@16 and maj@16."""
CONFIDENT = 0.5
"""A consensus counts as confident above this share of its samples."""
DRIFT_PROMPTS = 200


class Judge:
    """Scores pseudo-labels and policies against the gold of ``pool``. ``reference`` is the policy before learning.

    It has no state. The seed and the step fix its random numbers, which are independent of the run's.
    """

    def __init__(
        self, pool: Pool, reference: Qwen2ForCausalLM, seed: int, temperature: float, max_new_tokens: int
    ) -> None:
        self.pool, self.reference, self.seed = pool, reference, seed
        self.temperature, self.max_new_tokens = temperature, max_new_tokens
        self.known = [prompt for prompt in pool.prompts if prompt.id in pool.gold]

    def labels(self, prompts: Sequence[Prompt], labels: Sequence[PseudoLabel]) -> dict[str, float]:
        """Return how many of a step's pseudo-labels have known gold, are right, and are a false consensus.

        A false consensus is a wrong label that more than half of the samples agree on.
        """
        pairs = [
            (label, label.answer in self.pool.gold[prompt.id])
            for prompt, label in zip(prompts, labels, strict=True)
            if label.answer is not None and prompt.id in self.pool.gold
        ]
        return {
            "labels": float(len(pairs)),
            "labels_right": float(sum(right for _, right in pairs)),
            "false_consensus": float(sum(not right and label.share > CONFIDENT for label, right in pairs)),
        }

    def scores(self, policy: Qwen2ForCausalLM, step: int) -> dict[str, float]:
        """Return mean@16, pass@16 and maj@16 of sampled answers and pass@1 of the greedy one; {} without gold."""
        if not self.known:
            return {}
        gold = [self.pool.gold[prompt.id] for prompt in self.known]
        sampled = answer_scores(self._answers(policy, step, self.temperature, ROLLOUTS), gold)
        greedy = answer_scores(self._answers(policy, step, 0.0, 1), gold)
        return {"mean_16": sampled.mean, "pass_16": sampled.pass_any, "maj_16": sampled.majority, "pass_1": greedy.mean}

    @torch.no_grad()
    def drift(self, policy: Qwen2ForCausalLM, step: int) -> float:
        """Return KL(policy || reference) in nats per completion, on prompts that are never trained on.

        Prefixes are sampled, one completion per prompt. The divergence of each next token is exact.
        """
        prompts = [problem.prompt() for problem in self.pool.held_out[:DRIFT_PROMPTS]]
        sampler = self._sampler(policy, step, 1.0)
        written = [rollouts[0].completion.tokens for rollouts in sampler(prompts, [1] * len(prompts))]
        tokens, places, mask = pack_rows([encode(prompt.text) for prompt in prompts], written)
        mine, theirs = (distributions_at(each, tokens, places) for each in (policy, self.reference))
        divergence = (mine.exp() * (mine - theirs)).sum(-1)
        return float((divergence * mask).sum() / len(prompts))

    def _answers(self, policy: Qwen2ForCausalLM, step: int, temperature: float, count: int) -> list[list[str | None]]:
        sampler = self._sampler(policy, step, temperature)
        drawn = sampler(self.known, [count] * len(self.known))
        return [[rollout.answer for rollout in rollouts] for rollouts in drawn]

    def _sampler(self, policy: Qwen2ForCausalLM, step: int, temperature: float) -> LedgerSampler:
        seed = int(np.random.SeedSequence([self.seed, step]).generate_state(1)[0])
        return LedgerSampler(policy, seed, temperature, self.max_new_tokens, reward=None)
