"""A sampler that replays recorded rollouts, without an engine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from apportion.types import Counts, Prompt, Rollout


@dataclass
class Recorded:
    """Gives out recorded rollouts, by ``Prompt.id``, in their order; fewer than asked for once they run out.

    It is a sampler for ``collect``, and its method ``sample`` is one for ``collect_async``. It remembers how many
    rollouts of each prompt it has given. ``restart`` forgets that, so that another batch replays the same rollouts.

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
        """Return the next ``counts`` [P] rollouts of each of ``prompts`` [P], or as many as are left.

        Raises ValueError for a prompt that is not recorded.
        """
        return [self._next(prompt, int(count)) for prompt, count in zip(prompts, counts, strict=True)]

    async def sample(self, prompt: Prompt, count: int) -> Sequence[Rollout]:
        """Return the next ``count`` rollouts of ``prompt``, or as many as are left; errors as above."""
        return self._next(prompt, count)

    def restart(self) -> None:
        """Start every prompt's rollouts from the first again."""
        self._given.clear()

    def _next(self, prompt: Prompt, count: int) -> Sequence[Rollout]:
        if prompt.id not in self.streams:
            raise ValueError(
                f"every prompt must be recorded, got {prompt.text!r} without a record for its id {prompt.id}; "
                "add its rollouts under that id"
            )
        start = self._given[prompt.id]
        self._given[prompt.id] += count
        return self.streams[prompt.id][start : start + count]
