"""Settings of everything that a registry names: what is not the number that the annotation asks for is refused."""

import asyncio
import contextlib
import tomllib
import warnings
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np

from apportion.advantages import gae, group_optimal, maxrl, opo, rollout_weights, sft, whiten
from apportion.allocators import ALLOCATORS, VIP, printed_counts
from apportion.allocators.spending.knapsack import spend_costs
from apportion.allocators.spending.solver import spend
from apportion.allocators.votes.rewards import pseudo_rewards
from apportion.answers import (
    check_equivalence,
    exact_match,
    extract,
    f1_at_k,
    make_equivalence,
    make_extractor,
    precision_at_k,
)
from apportion.baselines import BASELINES
from apportion.config import build as configured
from apportion.config import dump, to_toml
from apportion.evaluation import answer_scores, bootstrap_interval, evaluate, majority_at_k, pass_at_k
from apportion.forecast import RateSample, forecast
from apportion.loop import collect, collect_async
from apportion.predictors import EMBEDDERS, PREDICTORS, MeanLengths, UniformPrior
from apportion.predictors.score_norms import sampled_score_norm
from apportion.questions import Question
from apportion.replay import replay
from apportion.scheduler import Rows, Scheduler
from apportion.selection import SELECTORS
from apportion.solve import solve
from apportion.stopping import RULES, audited_threshold, decide, make_rule, vote_gaps
from apportion.types import Belief, Plan, Prompt, Rollout
from tests.replay.runs import made_run

SUBJECTS = {
    f"{kind} {name}": cls
    for kind, registry in (
        ("allocator", ALLOCATORS),
        ("predictor", PREDICTORS),
        ("rule", RULES),
        ("baseline", BASELINES),
        ("selector", SELECTORS),
        ("embedder", {name: cls for name, cls in EMBEDDERS.items() if is_dataclass(cls)}),
        ("lengths", {"mean_lengths": MeanLengths}),
    )
    for name, cls in registry.items()
}
REQUIRED = {
    "predictor shuffled": {"predictor": UniformPrior()},
    "lengths mean_lengths": {"initial": 100.0},
    "embedder precomputed": {"embeddings": {"a": [1.0]}},
}
REFUSALS = Path(__file__).with_name("refusals.toml")
NAN, INF = float("nan"), float("inf")
NO_INTEGER = ("8", 7.5, 8.0, True, NAN, INF, -1, 2**63)
NO_NUMBER = ("x", "0.5", NAN, INF, -INF, True, 1j)
NO_FLAG = ("yes", 1)


def kinds_of(cls, field):
    hint = get_type_hints(cls)[field]
    return {hint, *get_args(hint)}


def settings_of(*wanted):
    """Every subject and field whose annotation names the first of int, float, bool that is in ``wanted``."""
    return [
        (subject, field.name)
        for subject, cls in SUBJECTS.items()
        for field in fields(cls)
        if field.init
        and next((kind for kind in (float, int, bool) if kind in kinds_of(cls, field.name)), None) in wanted
    ]


def build(subject, field, value):
    """Build the subject with one setting. A budget in tokens needs lengths beside it."""
    given = REQUIRED.get(subject, {}) | {field: value}
    if field == "tokens_per_prompt":
        given["lengths"] = MeanLengths(initial=1.0)
    return SUBJECTS[subject](**given)


def fault(subject, field, value):
    """Return what is wrong with the refusal of ``value``; "" if it is refused in one line with field, value, remedy."""
    where = f"{subject}.{field} = {value!r}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing may be computed with the value before it is refused
        try:
            build(subject, field, value)
        except (ValueError, TypeError, ArithmeticError, Warning) as refusal:
            message = str(refusal) if isinstance(refusal, ValueError) else f"({type(refusal).__name__})"
        else:
            return f"{where} is accepted"
    shown = {repr(value), str(value), f"{value:g}" if isinstance(value, (int, float)) else repr(value)}
    good = field in message and any(text in message for text in shown) and "\n" not in message and "; " in message
    return "" if good else f"{where} says {message!r}, which lacks the field, the value or a remedy"


def faults(wanted, values):
    assert len(settings_of(wanted)) > 4
    return [
        found for subject, field in settings_of(wanted) for value in values if (found := fault(subject, field, value))
    ]


def test_what_is_no_integer_is_refused():
    assert not faults(int, NO_INTEGER)


def test_what_is_no_finite_number_is_refused():
    assert not faults(float, NO_NUMBER)


def test_what_is_no_flag_is_refused():
    assert not faults(bool, NO_FLAG)


def test_none_is_refused_unless_the_annotation_says_so():
    wrong = []
    for subject, field in settings_of(int, float, bool):
        if type(None) not in kinds_of(SUBJECTS[subject], field):
            wrong += filter(None, [fault(subject, field, None)])
        elif field != "tokens_per_prompt" and getattr(build(subject, field, None), field) is not None:
            wrong.append(f"{subject}.{field} does not keep None")  # lengths go with tokens_per_prompt
    assert not wrong, "\n".join(wrong)


def numbers():
    """Return every subject and field whose default is a number or a flag, and this default."""
    found = []
    for subject, field in settings_of(int, float, bool):
        declared = next(each for each in fields(SUBJECTS[subject]) if each.name == field)
        default = REQUIRED.get(subject, {}).get(field, declared.default)
        if default not in (None, MISSING, "free"):
            found.append((subject, field, default))
    assert len(found) > 60
    return found


def test_numbers_of_numpy_are_accepted():
    wrong = []
    for subject, field, default in numbers():
        kind = {bool: np.bool_, int: np.int64, float: np.float64}[type(default)]
        if getattr(build(subject, field, kind(default)), field) != default:
            wrong.append(f"{subject}.{field}")
    assert not wrong, "\n".join(wrong)


def test_settings_survive_the_way_through_toml():
    """Each number and flag at another value than its default, where the class takes that value alone."""
    tried = set()
    for subject, field, default in numbers():
        with contextlib.suppress(ValueError):
            one = build(subject, field, not default if isinstance(default, bool) else default * 2)
            tried.add(subject)
            assert configured(type(one), tomllib.loads(to_toml(dump(one)))) == one, f"{subject}.{field}"
    assert len(tried) > 25


MADE = {
    "solve": lambda success=None, **given: solve(success, **given),
    "rollout": Rollout,
    "prompt": Prompt,
    "plan": Plan,
    "belief": Belief,
    "decide": decide,
    "collect": partial(collect, prompts=[Prompt("a")], sample=None),
    "collect async": lambda allocator: asyncio.run(collect_async(allocator, [Prompt("a")], None)),
    "stream": partial(Scheduler, prompts=[Prompt("a")], due=Rows(1)),
    "token budget": partial(VIP, lengths=MeanLengths(initial=1)),
    "printed counts": printed_counts,
    "equivalence": make_equivalence,
    "pass at k": pass_at_k,
    "answer scores": answer_scores,
    "majority at k": majority_at_k,
    "evaluation": evaluate,
    "interval": bootstrap_interval,
    "replay": partial(replay, made_run(), rules={"vip": VIP()}),
    "forecast": partial(forecast, RateSample.of([0, 1, 2], [2, 2, 2])),
    "rate sample": RateSample.of,
    "pseudo rewards": lambda returned: pseudo_rewards(lambda rollouts, label: returned, [Rollout()] * 3, "a"),
}
MADE |= {
    each.__name__: each
    for each in (
        *(gae, rollout_weights, whiten, maxrl, sft, opo, group_optimal),
        *(spend, spend_costs, make_rule, vote_gaps, audited_threshold, sampled_score_norm),
        *(exact_match, precision_at_k, f1_at_k, make_extractor, check_equivalence, extract, Question),
    )
}


def test_what_makes_no_sense_is_refused_in_one_line_as_the_table_says():
    wrong = []
    for subject, table in tomllib.loads(REFUSALS.read_text()).items():
        for arguments, said in table.items():
            given = REQUIRED.get(subject, {}) | tomllib.loads(f"given = {{{arguments}}}")["given"]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    (SUBJECTS | MADE)[subject](**given)
                except ValueError as refusal:
                    if said not in str(refusal) or "\n" in str(refusal) or len(str(refusal)) > 500:
                        wrong.append(f"{subject} with {arguments} says {refusal}")
                else:
                    wrong.append(f"{subject} accepts {arguments}")
    assert not wrong, "\n".join(wrong)
