"""Everything that decides what a question's answer will be, checked before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from apportion import __version__
from apportion.config import build, choices
from apportion.consensus import Voting
from apportion.questions import TEMPLATE
from apportion.samplers import Endpoint
from apportion.stopping import RULES, Rule, Wave, make_rule
from apportion.verifiers.equivalence import EQUIVALENCES
from apportion.verifiers.extraction import EXTRACTORS

ENDPOINT_SETTINGS = ("base_url", "model", "api", "temperature", "top_p", "max_tokens", "seed", "extra_body")
"""Those of the endpoint that decide answers: the others decide how soon they come, and the key is a secret."""


@dataclass(frozen=True)
class Setup:
    """Who is asked, when that ends, and how texts become answers: ``template``, ``extract`` and ``equivalence``."""

    endpoint: Endpoint
    voting: Voting
    template: str = TEMPLATE
    extract: str = "auto"
    equivalence: str = "math"

    def __post_init__(self) -> None:
        if "{question}" not in self.template:
            raise ValueError(
                f"template must contain {{question}}, got {self.template!r}; put it where the question goes"
            )
        for name, value, known in (
            ("extract", self.extract, EXTRACTORS),
            ("equivalence", self.equivalence, EQUIVALENCES),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}; choose one")

    def resolved(self) -> dict[str, Any]:
        """The settings that decide answers, as plain values by name. Never the key."""
        endpoint = {name: getattr(self.endpoint, name) for name in ENDPOINT_SETTINGS}
        rule = {f"rule.{name}": value for name, value in asdict(self.voting.rule).items()}  # type: ignore[call-overload]
        return {
            "apportion": __version__,
            **endpoint,
            "extra_body": dict(self.endpoint.extra_body),
            "rule": self.voting.rule.name,
            **rule,
            "max_samples": self.voting.max_samples,
            "wave": self.voting.wave,
            "curtail": self.voting.curtail,
            "template": self.template,
            "extract": self.extract,
            "equivalence": self.equivalence,
        }


def make_setup(
    base_url: str,
    model: str,
    *,
    rule: str | Rule = "posterior_predictive",
    rule_settings: Mapping[str, Any] | None = None,
    max_samples: int = 64,
    wave: Wave = "free",
    curtail: bool = True,
    template: str = TEMPLATE,
    extract: str = "auto",
    equivalence: str = "math",
    **endpoint: Any,
) -> Setup:
    """The setup with these settings; ``endpoint`` are ``Endpoint``'s own, such as ``temperature`` and ``concurrency``.

    Raises ValueError for what cannot be used; nothing is contacted.
    """
    return Setup(
        Endpoint(base_url, model, **endpoint),
        Voting(_rule(rule, rule_settings or {}), max_samples, wave=wave, curtail=curtail),
        template,
        extract,
        equivalence,
    )


def _rule(rule: str | Rule, settings: Mapping[str, Any]) -> Rule:
    """The rule with its settings, each of the type that the rule says."""
    if isinstance(rule, Rule):
        return make_rule(rule, **settings)
    if rule not in RULES:
        raise ValueError(f"rule must be known, got {rule!r}; {choices(rule, RULES)}")
    return build(RULES[rule], settings, rule)
