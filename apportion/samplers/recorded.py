"""A sampler that gives recorded rollouts, in the order in which they were drawn: replays without an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from apportion.types import Counts, Prompt, Rollout


@dataclass
class Recorded:
    """Rollouts of each prompt, by its ``Prompt.id``, given out in order, and fewer than asked for once they run out.

    It is a sampler for ``collect``, and its method ``one`` is one for ``collect_async``. It remembers how many it gave
    of each prompt, which is what a sampler draws next; ``restart`` forgets it, so that another batch replays the same.

    >>> from apportion import HORA, Prompt, collect
    >>> prompt = Prompt("6 x 7?")
    >>> recorded = Recorded({prompt.id: [Rollout(True), Rollout(False), Rollout(True)]})
    >>> batch = collect(HORA(pre_rollouts=2, rollouts_per_prompt=4), [prompt], recorded)
    >>> batch.asked.tolist(), batch.trials.tolist()
    ([4], [3])
    """

    streams: Mapping[str, Sequence[Rollout]]
    _given: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def __call__(self, prompts: Sequence[Prompt], counts: Counts) -> list[Sequence[Rollout]]:
        """The next ``counts`` [P] rollouts of each of ``prompts`` [P], or what is left of them.

        Raises ValueError for a prompt that is not recorded.
        """
        return [self._next(prompt, int(count)) for prompt, count in zip(prompts, counts, strict=True)]

    async def one(self, prompt: Prompt, count: int) -> Sequence[Rollout]:
        """The next ``count`` rollouts of ``prompt``, or what is left of them; errors as above."""
        return self._next(prompt, count)

    def restart(self) -> None:
        """Every stream from its beginning again."""
        self._given.clear()

    def _next(self, prompt: Prompt, count: int) -> Sequence[Rollout]:
        if prompt.id not in self.streams:
            raise ValueError(
                f"every prompt must be recorded, got {prompt.text!r} with id {prompt.id}, which is not; "
                "give its rollouts under its Prompt.id"
            )
        start = self._given[prompt.id]
        self._given[prompt.id] += count
        return self.streams[prompt.id][start : start + count]
