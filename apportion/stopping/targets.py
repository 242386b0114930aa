"""What a vote aims at, and the rule and settings for it."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from apportion.stopping.base import Rule
from apportion.stopping.calibrated import Calibrated


@dataclass(frozen=True)
class RuleDefaults:
    """A rule by name and its settings."""

    rule: type[Rule]
    settings: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    def make(self) -> Rule:
        """Return the rule with these settings."""
        return self.rule(**dict(self.settings))

    def __str__(self) -> str:
        return ", ".join([self.name, *(f"{key} = {value}" for key, value in self.settings)])


TARGETS = MappingProxyType(
    {
        "agreement": RuleDefaults(Calibrated, (("eps", 0.01),)),
        "accuracy": RuleDefaults(Calibrated, (("eps", 0.05),)),
    }
)
