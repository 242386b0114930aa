"""Rules that choose which prompts get rollouts: one file and one line of the registry per rule."""

from apportion.selection.base import BeliefSelector, RankingSelector, Selector, check_selector
from apportion.selection.greso import GRESO
from apportion.selection.mixed import Mixed, mixed_probability
from apportion.selection.mopps import MoPPS
from apportion.selection.retire import Retire
from apportion.selection.shuffled import ShuffledEpochs
from apportion.selection.spo import SPOWeights
from apportion.selection.variance import LargestVariance

SELECTORS: dict[str, type[Selector]] = {
    rule.name: rule for rule in (ShuffledEpochs, Mixed, LargestVariance, SPOWeights, MoPPS, GRESO, Retire)
}
"""Every selector by name."""

__all__ = [
    "GRESO",
    "SELECTORS",
    "BeliefSelector",
    "LargestVariance",
    "Mixed",
    "MoPPS",
    "RankingSelector",
    "Retire",
    "SPOWeights",
    "Selector",
    "ShuffledEpochs",
    "check_selector",
    "mixed_probability",
]
