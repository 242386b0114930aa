"""Rules that decide when to stop voting, from vote counts alone.

``decide`` replays a rule on recorded answers. The voting allocators and ``apportion vote`` use the same rules.
"""

from collections.abc import Mapping, Sequence, Set, Sized
from dataclasses import fields
from typing import Any, cast, overload

from apportion.stopping.adaptive_consistency import AdaptiveConsistencyBeta, AdaptiveConsistencyDirichlet
from apportion.stopping.audited import Audit, audited_threshold
from apportion.stopping.base import CountRule, Rule
from apportion.stopping.calibrated import Calibrated
from apportion.stopping.curtailment import Curtailed, Curtailment
from apportion.stopping.decisions import Decision, Decisions, Wave, are_streams, check_max_samples, check_wave, replay
from apportion.stopping.esc import ESC
from apportion.stopping.fixed import Fixed
from apportion.stopping.optpo import BayesianSPRT, vote_gaps
from apportion.stopping.p_value import PValue
from apportion.stopping.posterior_predictive import PosteriorPredictive
from apportion.stopping.sprt import MSPRT, SPRT
from apportion.stopping.targets import TARGETS, RuleDefaults
from apportion.stopping.votes import Stream, count_votes, encode_answers, leader, top_two

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Fixed,
        BayesianSPRT,
        AdaptiveConsistencyBeta,
        AdaptiveConsistencyDirichlet,
        ESC,
        SPRT,
        MSPRT,
        PValue,
        Curtailment,
        PosteriorPredictive,
        Calibrated,
    )
}
"""Every stopping rule by name."""

USUAL_TARGET = "agreement"
"""The target of a vote if none is named."""

USUAL_RULE = TARGETS[USUAL_TARGET].name
"""The rule if none is named: in ``decide``, in ``apportion vote`` and in the allocator ``Voting``.

Its setting is the share of answers that may differ from those of the full vote, calibrated on recorded answers
(benchmarks/results/calibrated.md). ``PosteriorPredictive`` bounds that share instead, and takes more samples.
``BayesianSPRT`` is for results of the paper on OptPO.
"""


def make_rule(rule: str | Rule, **settings: Any) -> Rule:
    """Return the rule with this name and these settings. A rule that is already built is returned unchanged.

    Raises ValueError for an unknown name or setting, for a value of the wrong type, and for settings beside a built
    rule.

    >>> make_rule("optpo", min_samples=32).min_samples
    32
    >>> make_rule("opt")
    Traceback (most recent call last):
    ValueError: rule must be one of fixed, optpo, ..., got 'opt'
    """
    if isinstance(rule, Rule):
        if settings:
            raise ValueError(
                f"settings belong to a rule given by name, got {', '.join(settings)}; set them on the rule"
            )
        return rule
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    known = [field.name for field in fields(RULES[rule])]  # type: ignore[arg-type]
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise ValueError(f"{rule} has no setting {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return RULES[rule](**settings)


@overload
def decide(
    answers: Stream,
    rule: str | Rule = ...,
    max_samples: int = ...,
    *,
    wave: Wave = ...,
    curtail: bool = ...,
    **settings: Any,
) -> Decision:
    """Return the decision on one stream."""


@overload
def decide(
    answers: Sequence[Stream],
    rule: str | Rule = ...,
    max_samples: int = ...,
    *,
    wave: Wave = ...,
    curtail: bool = ...,
    **settings: Any,
) -> Decisions:
    """Return the decisions on many streams."""


def decide(
    answers: Stream | Sequence[Stream],
    rule: str | Rule = USUAL_RULE,
    max_samples: int = 64,
    *,
    wave: Wave = 1,
    curtail: bool = False,
    **settings: Any,
) -> Decision | Decisions:
    """Replay ``rule``, by default ``USUAL_RULE``, on one stream of answers, or on each of a list of streams.

    An answer is a string. None is a sample without an answer, which is paid for and does not vote. At most
    ``max_samples`` answers of a stream are read; a shorter stream is its own maximum. The rule is asked after every
    ``wave`` samples. ``curtail`` adds lossless curtailment. ``settings`` are the rule's own, by name:
    ``decide(answers, "posterior_predictive", eps=0.05)``.

    Raises ValueError for an unknown rule or setting, for answers that are neither strings nor None, and for a stream
    without samples.

    >>> decide(["7", "7", "9", "7", "7", "7", "7", "7"], rule="adaptive_consistency_beta", max_samples=8)
    Decision(samples=7, answer='7', waves=7)
    >>> decide([["a"] * 8, ["a", "b"] * 4], rule="esc", max_samples=8, window=4).samples.tolist()
    [4, 8]
    """
    made = make_rule(rule, **settings)
    if curtail:
        made = Curtailed(made)
    check_max_samples(max_samples)
    check_wave(wave)
    made.check(max_samples)
    if isinstance(answers, (str, bytes, Set, Mapping)) or not isinstance(answers, Sized):
        raise ValueError(f"answers must be a list of strings, or of such lists, got {answers!r:.80}; list them")
    if not len(answers):
        raise ValueError("answers must hold at least one sample, got none; give a list of answers, or of such lists")
    if are_streams(answers):
        return replay(cast(Sequence[Stream], answers), made, max_samples, wave)
    return replay([cast(Stream, answers)], made, max_samples, wave)[0]


__all__ = [
    "ESC",
    "MSPRT",
    "RULES",
    "SPRT",
    "TARGETS",
    "USUAL_RULE",
    "USUAL_TARGET",
    "AdaptiveConsistencyBeta",
    "AdaptiveConsistencyDirichlet",
    "Audit",
    "BayesianSPRT",
    "Calibrated",
    "CountRule",
    "Curtailed",
    "Curtailment",
    "Decision",
    "Decisions",
    "Fixed",
    "PValue",
    "PosteriorPredictive",
    "Rule",
    "RuleDefaults",
    "Stream",
    "Wave",
    "audited_threshold",
    "check_max_samples",
    "check_wave",
    "count_votes",
    "decide",
    "encode_answers",
    "leader",
    "make_rule",
    "top_two",
    "vote_gaps",
]
