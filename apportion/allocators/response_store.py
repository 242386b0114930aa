"""Correct responses of earlier steps, kept for reuse: bounded per prompt and, in bytes, in all; oldest out first."""

import hashlib
import logging
import sys
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from apportion.allocators.stored_rollouts import for_reuse, plain_rollout, restored_rollout, saved_by_prompt
from apportion.predictors.saved import SavedValues
from apportion.types import Rollout

logger = logging.getLogger(__name__)

GIB = 2**30
ARRAY_BYTES = 250
"""What an array or a tensor takes beside its numbers."""
ENTRY_BYTES = 1200
"""What an entry takes beside its completion: the rollout, two keys and their places in two dictionaries."""


def completion_bytes(value: Any) -> int:
    """Return how much memory ``value`` takes, with all that it holds: arrays, tensors, texts, numbers, objects.

    >>> completion_bytes(np.zeros(1000, np.int32)) - completion_bytes(np.zeros(0, np.int32))
    4000
    """
    if hasattr(value, "nbytes"):
        return ARRAY_BYTES + int(value.nbytes)
    own = sys.getsizeof(value)
    if is_dataclass(value) and not isinstance(value, type):
        return own + sum(completion_bytes(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Mapping):
        return own + sum(completion_bytes(key) + completion_bytes(part) for key, part in value.items())
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return own + sum(map(completion_bytes, value))
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return own + completion_bytes(vars(value))
    return own


def response_key(rollout: Rollout) -> Hashable:
    """Return a key that two rollouts share if and only if their responses are identical; None without a completion.

    If the completion has ``tokens`` it is a digest of these ids, so that long responses are not held twice. Else it is
    the completion itself, which must be hashable and compare by content, as strings and tuples do. Raises ValueError
    for one that is not hashable.

    >>> response_key(Rollout(True, completion="4")) == response_key(Rollout(True, completion="2 + 2 = 4"))
    False
    """
    completion = rollout.completion
    if hasattr(completion, "tokens"):
        return hashlib.blake2b(np.asarray(completion.tokens, np.int64).tobytes(), digest_size=16).digest()
    try:
        hash(completion)
    except TypeError as error:
        raise ValueError(
            f"a completion must be hashable or have tokens, so that identical responses are recognised, got "
            f"{type(completion).__name__}; give a string, a tuple of token ids, or an object with tokens"
        ) from error
    return completion


@dataclass(eq=False)
class ResponseStore:
    """Rollouts by prompt id, each with the step it was sampled in. Every operation touches O(1) entries on average.

    Args:
        entries_per_prompt: the most rollouts of one prompt; its oldest is dropped first.
        entries: the most in all, or None; the oldest of any prompt is dropped first.
        store_bytes: the most memory in all, by ``completion_bytes``; the oldest of any prompt are dropped first.

    A response that is sampled again replaces its earlier copy and counts as new, because its log-probabilities are new.
    A rollout without a completion is not kept. The first time that an entry is dropped because the store as a whole is
    full, a warning is logged.

    >>> store = ResponseStore(entries_per_prompt=2)
    >>> for text in ("4", "four", "4", "2 + 2 = 4"):
    ...     store.add("sum", Rollout(True, completion=text))
    >>> [rollout.completion for rollout in store.responses("sum").values()], len(store), store.prompts
    (['4', '2 + 2 = 4'], 2, 1)
    """

    entries_per_prompt: int
    entries: int | None = None
    store_bytes: int = GIB
    step: int = field(default=0, init=False)
    """The current step, from 0, which added rollouts get."""
    bytes: int = field(default=0, init=False)
    """The memory that the entries take."""
    _by_prompt: dict[str, OrderedDict[Hashable, Rollout]] = field(default_factory=dict, init=False, repr=False)
    _sizes: OrderedDict[tuple[str, Hashable], int] = field(default_factory=OrderedDict, init=False, repr=False)
    """The memory of each entry, oldest first."""
    _warned: bool = field(default=False, init=False, repr=False)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def prompts(self) -> int:
        """The number of prompts that have a response."""
        return len(self._by_prompt)

    def responses(self, prompt_id: str) -> dict[Hashable, Rollout]:
        """Return the rollouts of one prompt by ``response_key``, oldest first; {} if there are none."""
        return dict(self._by_prompt.get(prompt_id, {}))

    def add(self, prompt_id: str, rollout: Rollout) -> None:
        """Keep ``rollout``, as sampled in the current step."""
        self._put(prompt_id, for_reuse(rollout, self.step))

    def state(self) -> dict[str, Any]:
        """Return the step and all entries, oldest first, as plain Python values. Completions are not copied."""
        kept = ((prompt_id, self._by_prompt[prompt_id][key]) for prompt_id, key in self._sizes)
        return {"step": self.step, "entries": [(prompt_id, plain_rollout(rollout)) for prompt_id, rollout in kept]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace everything by what ``state`` returned. Raise ValueError for anything else."""
        saved = SavedValues(state, "the store of responses", ["step", "entries"])
        step = saved.count("step")
        rollouts = [(id, restored_rollout(values, step)) for id, values in saved_by_prompt(saved, "entries", dict)]
        if not all(rollout.correct and response_key(rollout) is not None for _, rollout in rollouts):
            raise saved.refusal("entries", "correct responses")
        self.step, self.bytes, self._by_prompt, self._sizes = step, 0, {}, OrderedDict()
        for prompt_id, rollout in rollouts:
            self._put(prompt_id, rollout)

    def _put(self, prompt_id: str, rollout: Rollout) -> None:
        key = response_key(rollout)
        if key is None:
            return
        size = ENTRY_BYTES + completion_bytes(rollout.completion)
        if size > self.store_bytes:  # it would drop all others and then itself
            self._warn_once()
            return
        own = self._by_prompt.get(prompt_id, OrderedDict())
        if key in own:
            self._remove(prompt_id, key)
        elif len(own) == self.entries_per_prompt:
            self._remove(prompt_id, next(iter(own)))
        self._by_prompt.setdefault(prompt_id, OrderedDict())[key] = rollout
        self._sizes[prompt_id, key] = size
        self.bytes += size
        while self.bytes > self.store_bytes or (self.entries is not None and len(self) > self.entries):
            self._warn_once()
            self._remove(*next(iter(self._sizes)))

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the store of responses is full with %d entries of %d prompts in %d bytes: the oldest are dropped from "
                "now on, so that fewer prompts can reuse one; raise store_bytes%s, or lower entries_per_prompt",
                len(self),
                self.prompts,
                self.bytes,
                "" if self.entries is None else " or entries",
            )

    def _remove(self, prompt_id: str, key: Hashable) -> None:
        own = self._by_prompt[prompt_id]
        del own[key]
        self.bytes -= self._sizes.pop((prompt_id, key))
        if not own:
            del self._by_prompt[prompt_id]
