"""The settings of a vote, checked before anything is asked."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from apportion import __version__
from apportion.allocators import Voting
from apportion.answers.equivalence import EQUIVALENCES
from apportion.answers.extraction import EXTRACTORS, Extractor
from apportion.checks import check_integer
from apportion.config import build, choices
from apportion.endpoint import Endpoint
from apportion.questions import TEMPLATE
from apportion.stopping import RULES, USUAL_RULE, Rule, make_rule
from apportion.untrusted import shown
from apportion.vote.count import Weight

ENDPOINT_SETTINGS = ("base_url", "model", "api", "temperature", "top_p", "max_tokens", "seed", "extra_body", "system")
"""Settings of the endpoint that decide answers. The others decide how fast answers come, and the key is a secret."""


@dataclass(frozen=True)
class Setup:
    """The server, the rule, and how texts become answers.

    Args:
        endpoint: the server.
        voting: the rule and the samples of a question.
        template: the prompt, with {question} in it; by default one for mathematics.
        extract: where the answer is in a completion.
        equivalence: which answers are the same.
        give_up: number of samples without any answer after which a question ends.
        weight: what a vote counts for in the choice of the winner: 1, or the tokens of its completion. The rule
            that stops always counts votes.
    """

    endpoint: Endpoint
    voting: Voting
    template: str = TEMPLATE
    extract: str = "auto"
    equivalence: str = "math"
    give_up: int = 8
    weight: Weight = "votes"

    def __post_init__(self) -> None:
        if "{question}" not in self.template:
            raise ValueError(
                f"template must contain {{question}}, got {shown(self.template)}; put it where the question goes"
            )
        for name, known in (("extract", EXTRACTORS), ("equivalence", EQUIVALENCES)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {shown(value)}; choose one")
        check_integer("give_up", self.give_up, 1, "8 is usual")
        weights = ", ".join(get_args(Weight))
        if self.weight not in get_args(Weight):
            raise ValueError(f"weight must be one of {weights}, got {shown(self.weight)}; choose one")

    @property
    def extractor(self) -> Extractor:
        """The function that reads the answer in a completion."""
        return EXTRACTORS[self.extract]

    def resolved(self) -> dict[str, Any]:
        """Return the settings that decide answers, as plain values by name. No secret is among them."""
        rule = {f"rule.{name}": value for name, value in asdict(self.voting.rule).items()}  # type: ignore[call-overload]
        return {
            "apportion": __version__,
            **{name: value for name, value in self.endpoint.public_settings().items() if name in ENDPOINT_SETTINGS},
            "rule": self.voting.rule.name,
            **rule,
            **{name: getattr(self.voting, name) for name in VOTING if name != "rule"},
            **{name: getattr(self, name) for name in READING},
        }


VOTING = ("rule", "max_samples", "wave", "curtail")
READING = ("template", "extract", "equivalence", "give_up", "weight")
COUNTING = ("rule", "max_samples", "wave", "curtail", "extract", "equivalence", "give_up", "weight")
SETTINGS: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (Endpoint, tuple(field.name for field in fields(Endpoint))),
    (Voting, VOTING),
    (Setup, READING),
)
"""The fields that ``make_setup`` and the command line set, by their class."""


def is_about_counting(key: str) -> bool:
    """Return whether the setting ``key`` of ``Setup.resolved`` decides how samples are counted, not what is sampled."""
    return key in COUNTING or key.startswith("rule.")


def make_setup(
    base_url: str,
    model: str,
    *,
    rule: str | Rule = USUAL_RULE,
    rule_settings: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Setup:
    """Return the setup with these ``settings``, the fields of ``Endpoint``, ``Voting`` and ``Setup`` in ``SETTINGS``.

    Raises ValueError for settings that cannot be used. Nothing is contacted.
    """
    voting = {name: settings.pop(name) for name in VOTING if name in settings}
    reading = {name: settings.pop(name) for name in READING if name in settings}
    endpoint, of_rule = Endpoint(base_url, model, **settings), rule_settings or {}
    if isinstance(rule, Rule):
        made = make_rule(rule, **of_rule)
    elif rule in RULES:
        made = build(RULES[rule], of_rule, rule)
    else:
        raise ValueError(f"rule must be known, got {shown(rule)}; {choices(rule, RULES)}")
    return Setup(endpoint, Voting(made, **voting), **reading)
