"""The settings of a vote, checked before anything is asked."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from apportion import __version__
from apportion.allocators import Voting
from apportion.answers import Equivalence, Extractor, check_equivalence, make_equivalence, make_extractor
from apportion.answers.making import JUDGE
from apportion.checks import check_least, check_numbers
from apportion.config import build, choices
from apportion.endpoint import Endpoint
from apportion.questions import TEMPLATE
from apportion.stopping import RULES, TARGETS, USUAL_TARGET, Rule, make_rule
from apportion.untrusted import shown
from apportion.vote.count import Weight
from apportion.vote.judge import connect_judge, keep_verdicts, verdicts_path

ENDPOINT_SETTINGS = ("base_url", "model", "api", "temperature", "top_p", "max_tokens", "seed", "extra_body", "system")
"""Settings of the endpoint that decide answers. The others decide how fast answers come, and the key is a secret."""


@dataclass(frozen=True)
class Setup:
    """The server, the rule, and how texts become answers.

    Args:
        endpoint: the server.
        voting: the rule and the samples of a question.
        template: the prompt, with {question} in it; by default one for mathematics.
        extract: where the answer is in a completion: a name, or "module:function".
        equivalence: which answers are the same: a name, or "module:function".
        equivalence_settings: the settings of the equivalence, such as {"timeout_seconds": 9} of "math".
        judge_model: the model that compares answers under the equivalence "judge"; None is the model that answers.
        give_up: number of samples without any answer after which a question ends.
        weight: what a vote counts for in the choice of the winner: 1, or the tokens of its completion. The rule
            that stops always counts votes.
    """

    endpoint: Endpoint
    voting: Voting
    template: str = TEMPLATE
    extract: str = "auto"
    equivalence: str = "math"
    equivalence_settings: Mapping[str, Any] = field(default_factory=dict)
    judge_model: str | None = None
    give_up: int = 8
    weight: Weight = "votes"

    def __post_init__(self) -> None:
        check_numbers(self)
        if "{question}" not in self.template:
            raise ValueError(
                f"template must contain {{question}}, got {shown(self.template)}; put it where the question goes"
            )
        make_extractor(self.extract)
        check_equivalence(self.equivalence, **self.equivalence_settings)
        if self.judge_model is not None and self.equivalence != JUDGE:
            raise ValueError(
                f"judge_model must be left out under another equivalence, got {shown(self.judge_model)}; "
                'set equivalence to "judge"'
            )
        check_least(self, give_up=1)
        if self.weight not in (weights := get_args(Weight)):
            raise ValueError(f"weight must be one of {', '.join(weights)}, got {shown(self.weight)}; choose one")
        try:
            json.dumps(self.resolved(), ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # such as an argument in another encoding than the terminal's
            found = error.object[error.start]
            raise ValueError(f"settings must be Unicode, got {found!r} in one; write it in UTF-8") from error

    @cached_property
    def extractor(self) -> Extractor:
        """The function that reads the answer in a completion."""
        return make_extractor(self.extract)

    @asynccontextmanager
    async def open_equivalence(self, path: Path | None = None) -> AsyncIterator[Equivalence]:
        """Open the equivalence for a block. A judge has a connection of its own, which counts its tokens.

        The verdicts of a judge are kept beside the answers at ``path``, if it is given.
        """
        async with AsyncExitStack() as stack:
            ask, settings = None, dict(self.equivalence_settings)
            if self.equivalence == JUDGE:
                ask = await stack.enter_async_context(connect_judge(self.endpoint, self.judge_model))
                if path is not None:
                    kept = keep_verdicts(verdicts_path(path), self.judge_model or self.endpoint.model)
                    settings["known"], settings["on_verdict"] = stack.enter_context(kept)
            equivalence = make_equivalence(self.equivalence, ask=ask, **settings)
            stack.push_async_callback(equivalence.aclose)
            yield equivalence

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
            "equivalence_settings": dict(self.equivalence_settings),
        }


VOTING = ("rule", "max_samples", "wave", "curtail")
COUNTED = ("extract", "equivalence", "equivalence_settings", "judge_model", "give_up", "weight")
READING = ("template", *COUNTED)
SETTINGS: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
    (Endpoint, tuple(field.name for field in fields(Endpoint))),
    (Voting, VOTING),
    (Setup, READING),
)
"""The fields that ``make_setup`` and the command line set, by their class."""


def is_about_counting(key: str) -> bool:
    """Return whether the setting ``key`` of ``Setup.resolved`` decides how samples are counted, not drawn."""
    return key.partition(".")[0] in (*VOTING, *COUNTED)


def make_setup(
    base_url: str,
    model: str,
    *,
    target: str | None = None,
    rule: str | Rule | None = None,
    rule_settings: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Setup:
    """Return the setup with these ``settings``, the fields of ``Endpoint``, ``Voting`` and ``Setup`` in ``SETTINGS``.

    ``target`` names the rule that keeps the "agreement" with the full vote, or its "accuracy" only
    (``apportion.stopping.TARGETS``). Without a target and a ``rule`` it is "agreement".

    Raises ValueError for settings that cannot be used. Nothing is contacted.
    """
    voting = {name: settings.pop(name) for name in VOTING if name in settings}
    reading = {name: settings.pop(name) for name in READING if name in settings}
    made = rule_for(target, rule, rule_settings or {})
    return Setup(Endpoint(base_url, model, **settings), Voting(made, **voting), **reading)


def rule_for(target: str | None, rule: str | Rule | None, settings: Mapping[str, Any]) -> Rule:
    """Return ``rule``, or the rule of ``target`` if it is None, with these ``settings`` of its own.

    Raises ValueError for an unknown name or setting, and for a target together with a rule.

    >>> rule_for("agreement", None, {"eps": 0.02}).eps
    0.02
    """
    if rule is not None and target is not None:
        raise ValueError(f"target must be left out with a rule, got {shown(target)}; it names a rule of its own")
    if isinstance(rule, Rule):
        return make_rule(rule, **settings)
    if rule is None:
        if (target or USUAL_TARGET) not in TARGETS:
            raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {shown(target)}; choose one")
        defaults = TARGETS[target or USUAL_TARGET]
        rule, settings = defaults.name, dict(defaults.settings) | dict(settings)
    if rule not in RULES:
        raise ValueError(f"rule must be known, got {shown(rule)}; {choices(rule, RULES)}")
    return build(RULES[rule], settings, rule)
