"""A saved state with well-typed nonsense in it is refused by the predictor, baseline or allocator that reads it."""

import copy

import numpy as np
import pytest

from apportion import AR3PO, VIP
from apportion.baselines import BASELINES
from apportion.predictors import PREDICTORS, MeanLengths, Shuffled
from apportion.types import Batch, Belief, Plan, Rollout
from tests.predictors.test_base import PROMPTS as EVERY_PROMPT
from tests.predictors.test_base import make

PROMPTS = EVERY_PROMPT[:6]
MAKERS = {
    **{f"predictor {name}": (lambda name=name: make(name)) for name in PREDICTORS},
    **{f"baseline {name}": BASELINES[name] for name in BASELINES},
    "predictor shuffled": lambda: Shuffled(make("gp")),
    "lengths": lambda: MeanLengths(initial=9),
    "vip": lambda: VIP(tokens_per_prompt=80, lengths=MeanLengths(initial=9), predictor=make("counts")),
    "ar3po": AR3PO,
}


def taught(name):
    """Return one that has learned from a batch."""
    learner = MAKERS[name]()
    batch = Batch.start(PROMPTS, Belief.uniform(6))
    if hasattr(learner, "start"):
        batch = learner.start(PROMPTS)
    rng = np.random.default_rng(1)
    counts = np.full(6, 4)
    rollouts = [
        [Rollout(bool(rng.random() < 0.5), "4", completion=f"{q} {i}", tokens=5, score_norm=0.5) for i in range(n)]
        for q, n in enumerate(counts)
    ]
    batch = batch.add(Plan(counts), rollouts)
    (getattr(learner, "observe", None) or learner.update)(batch)
    return learner


def places(state, path=()):
    """Yield the path of everything in ``state``, itself included."""
    yield path
    if isinstance(state, dict):
        for key in state:
            yield from places(state[key], (*path, key))
    elif isinstance(state, list):
        for index in range(min(len(state), 2)):
            yield from places(state[index], (*path, index))


def replaced(state, path, value):
    state = copy.deepcopy(state)
    if not path:
        return value
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return state


NONSENSE = {
    "None": None,
    "text": "evil",
    "nan": float("nan"),
    "infinity": float("inf"),
    "negative": -1,
    "list": [1, 2, 3],
    "dict": {"other": 1},
    "nan array": np.full((2, 2), np.nan),
    "object array": np.array([None, "x"], dtype=object),
    "nested": {"a": {"b": [None]}},
    "number": 10**400,
    "zeros": [0.0, 0.0],
}


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_nonsense_anywhere_in_a_state_is_a_value_error_or_changes_nothing_else(name):
    """Every place of a state is replaced by every kind of nonsense. Predictions stay finite if it is accepted."""
    state, fresh, refused = taught(name).state_dict(), MAKERS[name]().state_dict(), 0
    for path in places(state):
        for kind, value in NONSENSE.items():
            twin = MAKERS[name]()
            try:
                twin.load_state_dict(replaced(state, path, value))
            except ValueError:
                refused += 1
                if name == "ar3po":
                    assert twin.state_dict() == fresh
            else:
                if hasattr(twin, "predict"):
                    found = twin.predict(PROMPTS)
                    for numbers in (found.mean, found.variance) if isinstance(found, Belief) else (found,):
                        assert np.isfinite(numbers).all(), (path, kind)
    assert refused > 8


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_key_too_many_or_too_few_is_refused(name):
    state = taught(name).state_dict()
    for path in places(state):
        inner = state
        for key in path:
            inner = inner[key]
        by_prompt = path and path[-1] in ("counts", "spreads", "sums", "seen")
        if isinstance(inner, dict) and inner and not by_prompt:
            fewer = {key: value for key, value in inner.items() if key != next(iter(inner))}
            for changed in (fewer, inner | {"another": 1}):
                with pytest.raises(ValueError):
                    MAKERS[name]().load_state_dict(replaced(state, path, changed))


def test_rows_of_a_gaussian_process_must_be_those_of_its_prompts():
    state = taught("predictor gp").state_dict()
    for rows in (state["rows"][::-1].copy(), state["rows"] + 1, state["rows"] * 0):
        with pytest.raises(ValueError, match="rows must be"):
            make("gp").load_state_dict(state | {"rows": rows})


def test_a_stored_rollout_must_be_a_correct_one_of_the_past():
    state = taught("ar3po").state_dict()
    prompt_id, rollout = state["store"]["entries"][0]
    for change in ({"correct": False}, {"step": 9}, {"completion": None}, {"tokens": -1}, {"score_norm": -1.0}):
        forged = state | {"store": {**state["store"], "entries": [(prompt_id, rollout | change)]}}
        name = "entries must be correct responses" if "correct" in change else f"{next(iter(change))} must be"
        with pytest.raises(ValueError, match=name):
            AR3PO().load_state_dict(forged)
    with pytest.raises(ValueError, match="must have"):
        AR3PO().load_state_dict(state | {"store": {**state["store"], "entries": [(prompt_id, {"correct": True})]}})
