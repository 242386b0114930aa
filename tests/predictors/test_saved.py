"""A saved state with well-typed nonsense in it is refused by the predictor, baseline or allocator that reads it."""

import numpy as np
import pytest

from apportion import AR3PO, VIP
from apportion.baselines import BASELINES
from apportion.predictors import PREDICTORS, EmpiricalBayes, MeanLengths, MovingAverage, Shuffled
from apportion.types import Belief, Rollout
from tests.builders import finished
from tests.damaged_states import at, check_damage, places, replaced
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
    learner, rng = MAKERS[name](), np.random.default_rng(1)
    rollouts = [
        [Rollout(bool(rng.random() < 0.5), "4", completion=f"{q} {i}", tokens=5, score_norm=0.5) for i in range(4)]
        for q in range(6)
    ]
    (getattr(learner, "observe", None) or learner.update)(finished(PROMPTS, rollouts))
    return learner


def check_belief(learner):
    """Fail if a belief is not finite."""
    if hasattr(learner, "predict"):
        found = learner.predict(PROMPTS)
        for numbers in (found.mean, found.variance) if isinstance(found, Belief) else (found,):
            assert np.isfinite(numbers).all()


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_damage_anywhere_in_a_state_is_a_value_error_that_changes_nothing_or_does_no_harm(name):
    assert check_damage(MAKERS[name], taught(name).state_dict(), check_belief) > 8


def test_so_it_is_in_a_state_of_empirical_bayes_that_version_0_3_0_wrote():
    rows = np.array([[4.0, 3.0, 0.75, 0.7], [0.0, 0.0, 0.0, 0.0]])
    none = dict.fromkeys(("features", "landmarks", "projection", "drift", "outage", "window", "level"))
    state = EmpiricalBayes().state_dict()
    state = {key: state[key] for key in ("predictor", "settings", "range", "graded")} | none | {
        "ids": [prompt.id for prompt in PROMPTS[:2]], "sums": rows, "rates": np.array([-1.0, 0.3]), "bandwidth": None,
    }  # fmt: skip
    (loaded := EmpiricalBayes()).load_state_dict(state)
    assert loaded.predict(PROMPTS[:1]).mean[0] > 0.55
    assert check_damage(EmpiricalBayes, state, check_belief) > 200


def test_observations_beyond_the_window_are_refused():
    state = MovingAverage(window=2).state_dict() | {"ids": ["a", "b", "c"], "rates": np.ones(3)}
    with pytest.raises(ValueError, match="ids must be at most 2 texts, the window"):
        MovingAverage(window=2).load_state_dict(state)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_key_too_many_or_too_few_is_refused(name):
    state = taught(name).state_dict()
    for path in places(state):
        inner = at(state, path)
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
