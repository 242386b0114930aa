import logging
import pickle
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import Rollout
from apportion.allocators.response_store import ENTRY_BYTES, ResponseStore, completion_bytes, response_key


@dataclass(frozen=True, eq=False)
class Tokens:
    """A completion as engines give it: compared by identity, with arrays inside."""

    tokens: object
    logprobs: object = None


def right(text):
    return Rollout(True, completion=text)


def held(store, prompt_id):
    return [rollout.completion for rollout in store.responses(prompt_id).values()]


class ListStore:
    """A reference store that scans one list: [prompt id, text, step], oldest first."""

    def __init__(self, entries_per_prompt, entries):
        self.entries_per_prompt, self.entries, self.step, self.list = entries_per_prompt, entries, 0, []

    def add(self, prompt_id, text):
        self.list = [entry for entry in self.list if entry[:2] != [prompt_id, text]]
        own = [entry for entry in self.list if entry[0] == prompt_id]
        if len(own) == self.entries_per_prompt:
            self.list.remove(own[0])
        self.list.append([prompt_id, text, self.step])
        self.list = self.list[-self.entries :]


additions = st.lists(st.none() | st.tuples(st.sampled_from("abcd"), st.sampled_from("123456")), max_size=60)


@given(st.integers(1, 4), st.integers(1, 8), additions, st.integers(0, 60))
def test_it_keeps_what_a_plain_list_would(entries_per_prompt, entries, additions, restored_at):
    """None ends a step. At some point the store is saved and restored into another."""
    store, model = ResponseStore(entries_per_prompt, entries), ListStore(entries_per_prompt, entries)
    for i, addition in enumerate(additions):
        if i == restored_at:
            state = pickle.loads(pickle.dumps(store.state()))
            store = ResponseStore(entries_per_prompt, entries)
            store.restore(state)
        if addition is None:
            store.step += 1
            model.step += 1
        else:
            store.add(addition[0], right(addition[1]))
            model.add(*addition)
        assert len(store) == len(model.list) <= entries
        assert store.prompts == len({entry[0] for entry in model.list})
        for prompt_id in "abcd":
            kept = [[prompt_id, r.completion, r.step] for r in store.responses(prompt_id).values()]
            assert kept == [entry for entry in model.list if entry[0] == prompt_id]
            assert len(kept) <= entries_per_prompt
    in_order = [[prompt_id, values["completion"], values["step"]] for prompt_id, values in store.state()["entries"]]
    assert in_order == model.list


def test_a_response_that_is_sampled_again_counts_as_new_and_takes_the_later_probabilities():
    store = ResponseStore(entries_per_prompt=2, entries=10)
    store.add("a", Rollout(True, completion=Tokens((1, 2), "early")))
    store.step += 1
    store.add("a", right("x"))
    store.add("a", Rollout(True, completion=Tokens((1, 2), "late")))
    store.add("a", right("y"))
    again, last = store.responses("a").values()
    assert (again.completion.logprobs, again.step, last.completion) == ("late", 1, "y")


def test_a_rollout_without_a_completion_holds_no_response():
    store = ResponseStore(entries_per_prompt=2, entries=10)
    store.add("a", Rollout(True))
    assert (len(store), store.prompts, store.responses("a")) == (0, 0, {})


def test_a_rollout_is_kept_as_it_was_but_for_the_step():
    store = ResponseStore(entries_per_prompt=2, entries=10)
    store.step = 3
    rollout = Rollout(True, "4", 0.5, Tokens((3, 4), np.array([-0.5, -1.0])), tokens=2, score_norm=1.5, round=1)
    store.add("a", rollout)
    [kept] = store.responses("a").values()
    assert kept == replace(rollout, step=3) and kept.completion is rollout.completion
    twin = ResponseStore(entries_per_prompt=2, entries=10)
    twin.restore(store.state())
    assert list(twin.responses("a").values()) == [kept] and twin.step == 3


@pytest.mark.parametrize("kind", [tuple, list, np.array, lambda ids: np.array(ids, np.int32)])
def test_responses_with_tokens_are_the_same_where_their_tokens_are(kind):
    key = response_key(Rollout(True, completion=Tokens((5, 300, 7), "one")))
    assert response_key(Rollout(False, completion=Tokens(kind([5, 300, 7]), "two"))) == key
    different = [kind([5, 300]), kind([5, 300, 7, 0]), kind([300, 5, 7]), kind([])]
    assert key not in {response_key(Rollout(True, completion=Tokens(tokens))) for tokens in different}


@pytest.mark.parametrize("completion", [[1, 2], {"text": "4"}, np.array([1])])
def test_a_completion_that_cannot_be_told_from_another_is_refused(completion):
    with pytest.raises(ValueError, match=r"hashable or have tokens.*got (list|dict|ndarray); give"):
        ResponseStore(2, 10).add("a", right(completion))


@dataclass(frozen=True)
class Shrinking:
    """A completion with a long text that a later step does not need."""

    tokens: tuple[int, ...]
    text: str | None

    def for_reuse(self):
        return replace(self, text=None)


def test_what_a_later_step_does_not_need_is_not_kept():
    store = ResponseStore(entries_per_prompt=2)
    store.add("a", Rollout(True, completion=Shrinking((1, 2), "long " * 1000)))
    [kept] = store.responses("a").values()
    assert kept.completion == Shrinking((1, 2), None) and store.bytes < ENTRY_BYTES + 1000


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 3000)), max_size=40))
def test_the_bytes_of_all_entries_stay_below_the_limit_and_only_the_oldest_go(additions):
    """Entries of very different sizes. Without the limit the store would hold a suffix more."""
    limit = 8 * ENTRY_BYTES
    store, unlimited = ResponseStore(3, store_bytes=limit), ResponseStore(3)
    for prompt_id, number, size in additions:
        for each in (store, unlimited):
            each.add(prompt_id, Rollout(True, completion=(number, "x" * size)))
        held = store.state()["entries"]
        assert store.bytes == sum(ENTRY_BYTES + completion_bytes(values["completion"]) for _, values in held) <= limit
        assert len(store) == len(held)
        whole = unlimited.state()["entries"]
        assert held == whole[len(whole) - len(held) :]


def test_dropping_for_want_of_room_is_said_once(caplog):
    store = ResponseStore(entries_per_prompt=2, store_bytes=4 * ENTRY_BYTES)
    with caplog.at_level(logging.WARNING, logger="apportion"):
        for text in ("1", "2", "3"):
            store.add("a", right(text))  # the third drops the first, because of the limit of one prompt
        assert not caplog.records
        for i in range(10):
            store.add(str(i), right("x"))
    (record,) = caplog.records
    assert "full with 4 entries of 3 prompts" in record.getMessage() and "raise store_bytes, or" in record.getMessage()


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (np.zeros(10_000, np.int32), 40_000, 41_000),
        ("x" * 10_000, 10_000, 10_100),
        ([1.5] * 1000, 8_000 + 1000 * sys.getsizeof(1.5), 40_000),
        ({"ids": np.zeros(1000, np.int64), "text": "x" * 1000}, 9_000, 10_000),
        (Tokens(np.zeros(1000, np.int64), (np.zeros(1000),)), 16_000, 17_000),
        (None, 0, 100),
    ],
)
def test_bytes_are_counted_through_all_that_a_completion_holds(value, least, most):
    assert least <= completion_bytes(value) <= most


@pytest.mark.parametrize(
    "bounds", [{"entries": 5_000}, {"store_bytes": 5_000 * (ENTRY_BYTES + sys.getsizeof("19999"))}]
)
def test_a_full_store_does_not_slow_down(bounds):
    """A scan of 5,000 entries per addition would take a minute."""
    store, started = ResponseStore(entries_per_prompt=4, **bounds), time.process_time()
    for i in range(20_000):
        store.add(str(i % 7919), right(str(i)))
    assert time.process_time() - started < 10
    assert len(store) == 5_000


def test_a_response_that_is_larger_than_the_store_drops_no_other(caplog):
    store = ResponseStore(4, store_bytes=2 * (ENTRY_BYTES + completion_bytes("small")) + 10)
    for prompt_id in "ab":
        store.add(prompt_id, right("small"))
    store.add("c", right("large" * 10_000))
    assert (held(store, "a"), held(store, "b"), held(store, "c")) == (["small"], ["small"], [])
    assert "the store of responses is full with 2 entries" in caplog.text
