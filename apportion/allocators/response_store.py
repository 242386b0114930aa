"""Correct responses of earlier steps, kept for reuse. The number is bounded per prompt and in all, oldest out first."""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from apportion.checks import check_numbers
from apportion.predictors.saved import SavedValues
from apportion.types import Rollout
from apportion.untrusted import shown


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
    """Rollouts by prompt id, each with the step it was sampled in. Every operation touches O(1) entries.

    Args:
        entries_per_prompt: the most rollouts of one prompt; its oldest is dropped first.
        entries: the most in all; the oldest of any prompt is dropped first.

    A response that is sampled again replaces its earlier copy and counts as new, because its log-probabilities are new.
    A rollout without a completion is not kept.

    >>> store = ResponseStore(entries_per_prompt=2, entries=100)
    >>> for text in ("4", "four", "4", "2 + 2 = 4"):
    ...     store.add("sum", Rollout(True, completion=text))
    >>> [rollout.completion for rollout in store.responses("sum").values()], len(store), store.prompts
    (['4', '2 + 2 = 4'], 2, 1)
    """

    entries_per_prompt: int
    entries: int
    step: int = field(default=0, init=False)
    """The current step, from 0, which added rollouts get."""
    _by_prompt: dict[str, OrderedDict[Hashable, Rollout]] = field(default_factory=dict, init=False, repr=False)
    _by_age: OrderedDict[tuple[str, Hashable], None] = field(default_factory=OrderedDict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in ("entries_per_prompt", "entries"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f'{name} must be at least 1, got {getattr(self, name)}; use reuse="none" to store none'
                )

    def __len__(self) -> int:
        return len(self._by_age)

    @property
    def prompts(self) -> int:
        """The number of prompts that have a response."""
        return len(self._by_prompt)

    def responses(self, prompt_id: str) -> dict[Hashable, Rollout]:
        """Return the rollouts of one prompt by ``response_key``, oldest first; {} if there are none."""
        return dict(self._by_prompt.get(prompt_id, {}))

    def add(self, prompt_id: str, rollout: Rollout) -> None:
        """Keep ``rollout``, as sampled in the current step."""
        self._put(prompt_id, replace(rollout, step=self.step))

    def advance(self) -> None:
        """End the step."""
        self.step += 1

    def state(self) -> dict[str, Any]:
        """Return the step and all entries, oldest first, as plain Python values. Completions are not copied."""
        names = [each.name for each in fields(Rollout)]
        kept = ((prompt_id, self._by_prompt[prompt_id][key]) for prompt_id, key in self._by_age)
        entries = [(prompt_id, {name: getattr(rollout, name) for name in names}) for prompt_id, rollout in kept]
        return {"step": self.step, "entries": entries}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace everything by what ``state`` returned. Raise ValueError for anything else."""
        saved = SavedValues(state, "the store of responses", ["step", "entries"])
        step, entries = saved.count("step"), saved.values["entries"]
        if not isinstance(entries, list) or len(entries) > self.entries:
            raise saved.refusal("entries", f"a list of at most {self.entries} rollouts")
        rollouts = [_saved_rollout(entry, step) for entry in entries]
        self.step = step
        self._by_prompt.clear()
        self._by_age.clear()
        for prompt_id, rollout in rollouts:
            self._put(prompt_id, rollout)

    def _put(self, prompt_id: str, rollout: Rollout) -> None:
        key = response_key(rollout)
        if key is None:
            return
        own = self._by_prompt.get(prompt_id, OrderedDict())
        if key in own:
            self._remove(prompt_id, key)
        elif len(own) == self.entries_per_prompt:
            self._remove(prompt_id, next(iter(own)))
        elif len(self) == self.entries:
            self._remove(*next(iter(self._by_age)))
        self._by_prompt.setdefault(prompt_id, OrderedDict())[key] = rollout
        self._by_age[prompt_id, key] = None

    def _remove(self, prompt_id: str, key: Hashable) -> None:
        own = self._by_prompt[prompt_id]
        del own[key], self._by_age[prompt_id, key]
        if not own:
            del self._by_prompt[prompt_id]


def _saved_rollout(entry: Any, step: int) -> tuple[str, Rollout]:
    """Return the prompt id and the rollout of a saved entry. Raise ValueError if no store has it at ``step``."""
    if not isinstance(entry, tuple) or len(entry) != 2 or type(entry[0]) is not str:
        raise ValueError(
            f"an entry of a saved store must be a prompt id and a rollout, got {shown(entry)}; "
            "load a state that is unchanged"
        )
    prompt_id, values = entry
    saved = SavedValues(values, "a stored rollout", [each.name for each in fields(Rollout)])
    if saved.values["correct"] is not True:
        raise saved.refusal("correct", "true")
    if saved.count("step") > step:
        raise saved.refusal("step", f"at most {step}, the present one,")
    if type(saved.values["answer"]) not in (str, type(None)):
        raise saved.refusal("answer", "a text or None")
    if saved.values["completion"] is None:
        raise saved.refusal("completion", "a response")
    saved.number("reward")
    saved.count("round")
    if saved.values["tokens"] is not None:
        saved.count("tokens")
    if saved.values["score_norm"] is not None:
        saved.number("score_norm", low=0)
    return prompt_id, Rollout(**values)
