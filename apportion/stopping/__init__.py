"""When to stop voting: from vote counts to stop or go on.

``decide`` replays a rule on recorded answers; the voting allocator and ``apportion vote`` ask the same rules.
"""

from __future__ import annotations

from apportion.stopping.adaptive_consistency import AdaptiveConsistencyBeta, AdaptiveConsistencyDirichlet
from apportion.stopping.base import CountRule, Rule, leader, top_two
from apportion.stopping.curtailment import Curtailed, Curtailment
from apportion.stopping.decide import Decision, Decisions, Wave, check_max_samples, check_wave, decide
from apportion.stopping.esc import ESC
from apportion.stopping.fixed import Fixed
from apportion.stopping.optpo import OptPO
from apportion.stopping.p_value import PValue
from apportion.stopping.posterior_predictive import PosteriorPredictive
from apportion.stopping.registry import RULES, make_rule
from apportion.stopping.sprt import MSPRT, SPRT
from apportion.stopping.votes import Stream, coded, counted

__all__ = [
    "ESC",
    "MSPRT",
    "RULES",
    "SPRT",
    "AdaptiveConsistencyBeta",
    "AdaptiveConsistencyDirichlet",
    "CountRule",
    "Curtailed",
    "Curtailment",
    "Decision",
    "Decisions",
    "Fixed",
    "OptPO",
    "PValue",
    "PosteriorPredictive",
    "Rule",
    "Stream",
    "Wave",
    "check_max_samples",
    "check_wave",
    "coded",
    "counted",
    "decide",
    "leader",
    "make_rule",
    "top_two",
]
