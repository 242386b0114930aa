"""The replay on recorded answers against a loop over prefixes; its inputs, results, errors and speed."""

import inspect
import tomllib
import tracemalloc
from collections import Counter, deque
from time import process_time
from timeit import timeit

import numpy as np
import pytest

from apportion import Voting
from apportion.stopping import RULES, TARGETS, USUAL_RULE, Decision, Decisions, decide, decisions, make_rule
from apportion.vote.setup import make_setup

M = 24
CHOSEN = tomllib.loads("""
    fixed = [{samples = 7}]
    optpo = [
        {min_samples = 6, exceedances = 2},
        {min_samples = 6, exceedances = 2, low_accuracy = "literal", p0_factor = 0.4},
    ]
    posterior_predictive = [{eps = 0.2}]
""")
SETTINGS = [(name, chosen) for name in RULES for chosen in ({}, *CHOSEN.get(name, []))]
each_rule = pytest.mark.parametrize(("name", "chosen"), SETTINGS)


def recorded(questions, samples=M, answers=6, seed=0):
    """Return streams of strings with some None; some questions are easy, some are not."""
    rng = np.random.default_rng(seed)
    names = np.array([None, *(f"answer {k}" for k in range(answers))], object)
    shares = [rng.dirichlet(np.full(answers + 1, rng.choice([0.1, 0.3, 1.0]))) for _ in range(questions)]
    return [rng.choice(names, samples, p=share).tolist() for share in shares]


def safe(stream, most):
    """Return whether the leader of ``stream`` wins the vote of ``most`` samples if all others go to one rival."""
    leader = Counter(filter(None, stream)).most_common(1)
    rivals = [*dict.fromkeys(filter(None, stream)), "an answer not seen yet"]
    left = [[rival] * (most - len(stream)) for rival in rivals]
    return bool(leader) and all(
        Counter(filter(None, stream + new)).most_common(1)[0][0] == leader[0][0] for new in left
    )


def one_by_one(stream, rule, max_samples, wave, curtail):
    stream = stream[:max_samples]
    for waves in range(1, len(stream) + 1):
        taken = stream[: waves * wave]
        answers = list(dict.fromkeys(filter(None, taken)))
        rows = [Counter(taken[:t]) for t in range(1, len(taken) + 1)]
        votes = np.array([[row[answer] for answer in answers or [""]] for row in rows])
        stops = rule.stops_now(votes, len(stream))
        if stops or len(taken) == len(stream) or (curtail and safe(taken, len(stream))):
            place = rule.winner(votes, len(stream))[-1] if stops else votes[-1].argmax()
            return Decision(len(taken), answers[place] if answers else None, waves)
    raise AssertionError("a replay must end with its stream")


@each_rule
@pytest.mark.parametrize(("wave", "curtail"), [(1, False), (5, True), (8, False)])
def test_streams_at_once_are_a_loop_over_prefixes(name, chosen, wave, curtail):
    streams = [*recorded(10), *recorded(5, samples=17, seed=1), *recorded(3, samples=40, seed=2), [None] * M, ["a"]]
    rule = make_rule(name, **chosen)
    decisions = decide(streams, name, M, wave=wave, curtail=curtail, **chosen)
    assert list(decisions) == [one_by_one(stream, rule, M, wave, curtail) for stream in streams]


@pytest.mark.parametrize("wave", [1, "free"])
def test_small_blocks_change_nothing(monkeypatch, wave):
    streams = [*recorded(30), *recorded(10, samples=11, answers=30)]
    whole = decide(streams, "optpo", M, min_samples=4, wave=wave)
    for block in (1, 200, 1000):
        monkeypatch.setattr(decisions, "BLOCK", block)
        assert list(decide(streams, "optpo", M, min_samples=4, wave=wave)) == list(whole)


def test_memory_is_that_of_a_block(monkeypatch):
    streams = recorded(1000, samples=64, answers=200, seed=4)
    distinct = max(len(set(stream)) for stream in streams)
    monkeypatch.setattr(decisions, "BLOCK", 2**15)
    tracemalloc.start()
    try:
        decide(streams, "optpo")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert distinct > 40 and peak < 1000 * 64 * distinct * 8 / 4


def test_one_default_rule_is_stated_once():
    """``decide``, ``apportion vote`` and ``Voting`` stop by the same rule if none is named."""
    streams = recorded(50, seed=5)
    assert list(decide(streams)) == list(decide(streams, USUAL_RULE))
    assert make_setup("http://localhost", "model").voting.rule == Voting().rule == make_rule(USUAL_RULE)
    assert inspect.signature(decide).parameters["rule"].default == USUAL_RULE
    assert make_setup("http://localhost", "model", target="agreement").voting.rule == make_rule(USUAL_RULE)
    assert make_setup("http://localhost", "model", target="accuracy").voting.rule == TARGETS["accuracy"].make()


def test_many_streams_give_columns_and_a_sequence():
    decisions = decide([["a"] * 64, ["b"] * 10, [None] * 3], "optpo")
    assert isinstance(decisions, Decisions) and len(decisions) == 3
    assert decisions.samples.tolist() == [16, 10, 3] and decisions.waves.tolist() == [16, 10, 3]
    assert decisions.answer == ("a", "b", None)
    assert decisions[1] == decisions[-2] == Decision(10, "b", 10)
    assert decisions[1:] == list(decisions)[1:] == [Decision(10, "b", 10), Decision(3, None, 3)]
    assert type(decisions[0].samples) is int
    with pytest.raises(IndexError):
        decisions[3]


def test_lists_tuples_and_arrays_are_streams_alike():
    streams = [["a", "b", "a", "a"], ["c", "c", "b", "c"]]
    expected = list(decide(streams, "curtailment", 4))
    for same in (tuple(map(tuple, streams)), np.array(streams), np.array(streams, object), [*map(np.array, streams)]):
        assert list(decide(same, "curtailment", 4)) == expected
    for one in (tuple(streams[0]), deque(streams[0]), np.array(streams[0])):
        decision = decide(one, "curtailment", 4)
        assert decision == expected[0] and type(decision.answer) is str


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optpo", "posterior_predictive"])
def test_ten_thousand_questions_are_decided_in_the_time_of_some_dozens_of_counts(name):
    """Each has about 50 different answers."""
    rng, names = np.random.default_rng(5), np.array([f"answer {k}" for k in range(150)], object)
    streams = [rng.choice(names, 64, p=rng.dirichlet(np.full(150, 3.0))).tolist() for _ in range(10_000)]
    decided = timeit(lambda: decide(streams, name, curtail=True), timer=process_time, number=1)
    counted = timeit(lambda: [*map(Counter, streams)], timer=process_time, number=1)
    assert decided < 100 * counted  # 45 times on an idle machine
