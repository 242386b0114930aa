import pickle
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import Rollout
from apportion.allocators.response_store import ResponseStore, response_key


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
            store.advance()
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


def test_a_full_store_drops_the_oldest_response_of_any_prompt():
    store = ResponseStore(entries_per_prompt=2, entries=3)
    for prompt_id, text in [("a", "1"), ("b", "2"), ("b", "3"), ("c", "4")]:
        store.add(prompt_id, right(text))
    assert (held(store, "a"), held(store, "b"), held(store, "c")) == ([], ["2", "3"], ["4"])
    assert (len(store), store.prompts) == (3, 2)


def test_a_full_prompt_drops_its_own_oldest_response():
    store = ResponseStore(entries_per_prompt=1, entries=2)
    for prompt_id, text in [("a", "1"), ("b", "2"), ("b", "3")]:
        store.add(prompt_id, right(text))
    assert (held(store, "a"), held(store, "b")) == (["1"], ["3"])


def test_a_response_that_is_sampled_again_counts_as_new_and_takes_the_later_probabilities():
    store = ResponseStore(entries_per_prompt=2, entries=10)
    store.add("a", Rollout(True, completion=Tokens((1, 2), "early")))
    store.advance()
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
    for _ in range(3):
        store.advance()
    rollout = Rollout(True, "4", 0.5, Tokens((3, 4), np.array([-0.5, -1.0])), tokens=2, score_norm=1.5, round=1)
    store.add("a", rollout)
    [kept] = store.responses("a").values()
    assert kept == replace(rollout, step=3) and kept.completion is rollout.completion
    twin = ResponseStore(entries_per_prompt=2, entries=10)
    twin.restore(store.state())
    assert list(twin.responses("a").values()) == [kept] and twin.step == 3


def test_responses_and_state_are_copies():
    store = ResponseStore(entries_per_prompt=2, entries=10)
    store.add("a", right("1"))
    store.responses("a").clear()
    store.state()["entries"].clear()
    assert held(store, "a") == ["1"]


def test_restoring_replaces_what_was_there():
    store, other = ResponseStore(2, 10), ResponseStore(2, 10)
    store.add("a", right("1"))
    other.add("b", right("2"))
    store.restore(other.state())
    assert (held(store, "a"), held(store, "b"), len(store)) == ([], ["2"], 1)


@pytest.mark.parametrize("kind", [tuple, list, np.array, lambda ids: np.array(ids, np.int32)])
def test_responses_with_tokens_are_the_same_where_their_tokens_are(kind):
    key = response_key(Rollout(True, completion=Tokens((5, 300, 7), "one")))
    assert response_key(Rollout(False, completion=Tokens(kind([5, 300, 7]), "two"))) == key
    different = [kind([5, 300]), kind([5, 300, 7, 0]), kind([300, 5, 7]), kind([])]
    assert key not in {response_key(Rollout(True, completion=Tokens(tokens))) for tokens in different}


def test_strings_and_tuples_are_their_own_keys():
    assert response_key(right("4")) == response_key(right("4")) != response_key(right("5"))
    assert response_key(right((1, 2))) == response_key(right((1, 2))) != response_key(right((1, 3)))
    assert response_key(Rollout(True)) is None


@pytest.mark.parametrize("completion", [[1, 2], {"text": "4"}, np.array([1])])
def test_a_completion_that_cannot_be_told_from_another_is_refused(completion):
    with pytest.raises(ValueError, match=r"hashable or have tokens.*got (list|dict|ndarray); give"):
        ResponseStore(2, 10).add("a", right(completion))


@pytest.mark.parametrize("settings", [(0, 10), (2, 0), (-1, 10)])
def test_a_store_without_room_is_refused(settings):
    with pytest.raises(ValueError, match=r"^entries\w* must be at least 1, got (0|-1); "):
        ResponseStore(*settings)


def test_a_full_store_does_not_slow_down():
    """A scan of 10,000 entries per addition would take minutes."""
    store, started = ResponseStore(entries_per_prompt=4, entries=10_000), time.process_time()
    for i in range(40_000):
        store.add(str(i % 7919), right(str(i)))
    assert time.process_time() - started < 2
    assert len(store) == 10_000
