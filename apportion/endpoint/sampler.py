"""A server as an ``AsyncSampler``: allocators run on it through ``collect_async``."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from apportion.endpoint.client import Client
from apportion.types import Prompt, Rollout
from apportion.untrusted import shown
from apportion.verifiers import Verifier

Read = Callable[[str, Prompt], Rollout]
"""The text of a completion and its prompt -> the verified rollout."""


@dataclass
class EndpointSampler:
    """Samples rollouts from a server. It is an ``AsyncSampler`` for ``collect_async``.

        verifier = Math()
        prompts = [Prompt("What is 6 x 7?", data="42"), Prompt("What is 6 + 7?", data="13")]
        async with Endpoint("http://localhost:8000/v1", "Qwen/Qwen2.5-0.5B-Instruct").connect() as client:
            batch = await collect_async(HORA(), prompts, EndpointSampler(client, verifier))

    A request that fails after its retries gives no rollouts, which stay charged in ``Batch.asked``. The completion of
    a rollout is its text, and ``tokens`` is what the server counted, unless ``read`` sets them.

    Samples of a prompt are numbered across calls, so that no two have the same seed. ``state_dict`` holds the numbers.

    Attributes:
        client: a connected client.
        read: a function of text and prompt that returns the rollout, or a verifier. A verifier takes gold from
            ``Prompt.data``, a text or None. Texts are read one at a time, in a thread, while requests go on.

    Raises EndpointError for an error that no retry can fix. ``collect_async`` puts it into an ExceptionGroup. Raises
    TypeError if a verifier is given and ``Prompt.data`` is not a text or None.
    """

    client: Client
    read: Read | Verifier
    _drawn: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)

    async def __call__(self, prompt: Prompt, count: int) -> Sequence[Rollout]:
        """Return ``count`` rollouts of ``prompt``, or fewer if some failed."""
        read = self.read
        if isinstance(read, Verifier):
            if not isinstance(prompt.data, str | None):
                raise TypeError(
                    f"Prompt.data must be the gold answer for a verifier, a text or None, got {shown(prompt.data)}; "
                    "put gold there, or pass a function as read"
                )
            read = rollout_reader(read)
        start = self._drawn[prompt.id]
        self._drawn[prompt.id] += count
        rollouts = []
        async with aclosing(self.client.sample(prompt.text, count, start, prompt.id)) as completions:
            async for completion in completions:
                if completion.text is None:
                    continue
                async with self._reading:
                    rollout = await asyncio.to_thread(read, completion.text, prompt)
                if rollout.completion is None:
                    rollout = replace(rollout, completion=completion.text)
                rollouts.append(rollout if rollout.tokens is not None else replace(rollout, tokens=completion.tokens))
        return rollouts

    def state_dict(self) -> dict[str, int]:
        """Return the number of samples requested so far, by ``Prompt.id``."""
        return dict(self._drawn)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore a ``state_dict``. Raise ValueError for anything but numbers of at least 0 by ``Prompt.id``."""
        known = isinstance(state, Mapping) and all(type(id) is str for id in state)
        if not known or not all(type(drawn) is int and drawn >= 0 for drawn in state.values()):
            raise ValueError(
                f"a saved state must have a number of samples by prompt id, got {shown(state)}; load a state that is "
                "unchanged"
            )
        self._drawn = Counter(state)


def rollout_reader(verifier: Verifier) -> Read:
    """Return a function that makes a rollout of a completion by ``verifier``, with gold from ``Prompt.data``.

    A verdict of 0 or 1 is also ``Rollout.correct``. Any other score is a graded reward, whose ``correct`` is None.

    >>> from apportion.verifiers import Exact
    >>> rollout = rollout_reader(Exact())("The answer is 42.", Prompt("What is 6 x 7?", data="42"))
    >>> rollout.correct, rollout.reward, rollout.answer
    (True, 1.0, '42')
    """

    def read(text: str, prompt: Prompt) -> Rollout:
        verdict = verifier.verdict(text, prompt.data)
        correct = bool(verdict) if verdict in (0.0, 1.0) else None
        return Rollout(correct, verifier.answer(text), verdict)

    return read
