"""What a request asks for: the fields for upstream, the number of choices, and the vote.

The gateway reads ``messages``, ``n``, ``seed``, ``stream``, ``stream_options``, ``temperature`` and ``apportion``. All
other fields go upstream unchanged. ``apportion`` sets the vote of one request, within the gateway's bounds:

    {"vote": false}
    {"rule": "adaptive_consistency_beta", "confidence": 0.9, "max_samples": 16, "wave": 8, "extract": "choice"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from apportion.allocators import Voting
from apportion.answers import EXTRACTORS, Extractor
from apportion.checks import check_integer
from apportion.config import build, choices
from apportion.endpoint import seed_of
from apportion.gateway.errors import GatewayError
from apportion.gateway.settings import GatewaySettings
from apportion.stopping import RULES, TARGETS, Fixed, Rule
from apportion.untrusted import parse_json, shown

GATEWAY_FIELDS = ("n", "seed", "stream", "stream_options", "apportion")
"""Fields of a request that do not go upstream as they are."""

Unvoted = Literal["greedy", "off"]
"""Why a request is not voted on: its temperature is 0, or it says so."""


@dataclass(frozen=True)
class VoteRequest:
    """A request: the fields for upstream, ``n`` choices by this ``voting``, and how they are returned.

    ``unvoted`` is None if it is voted on. ``temperature`` is the gateway's if it replaced the request's, else None.
    """

    fields: Mapping[str, Any]
    n: int
    seed: int | None
    stream: bool
    include_usage: bool
    voting: Voting
    extractor: Extractor
    unvoted: Unvoted | None = None
    temperature: float | None = None

    @property
    def question(self) -> str:
        """The text of all messages, with an empty line between them; parts that are no text are left out."""
        contents = [each.get("content") for each in self.fields["messages"] if isinstance(each, dict)]
        return "\n\n".join(content for content in contents if isinstance(content, str))

    def upstream_body(self, number: int) -> dict[str, Any]:
        """Return the fields of the upstream request for the sample with this ``number``."""
        seed = {} if self.seed is None else {"seed": seed_of(self.seed, "", number)}
        return {**self.fields, **seed}


def read_request(body: bytes, settings: GatewaySettings) -> VoteRequest:
    """Return what ``body`` asks for. Raise GatewayError with status 400 for anything that cannot be done."""
    try:
        given = parse_json(body)
        json.dumps(given, allow_nan=False)
    except ValueError as error:
        raise GatewayError(400, f"the body must be JSON, got {error}; correct it") from None
    if not isinstance(given, dict):
        raise GatewayError(400, "the body must be a JSON object, got another value; send one with messages")
    if not isinstance(given.get("messages"), list) or not given["messages"]:
        raise _wrong("messages", "must be a list of at least one message", given.get("messages"), "send messages")
    n = _integer(given, "n", 1)
    if not 1 <= n <= settings.voting.max_samples:
        raise _wrong("n", f"must be from 1 to {settings.voting.max_samples}", n, "ask for fewer choices")
    options = given.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _wrong("stream_options", "must be an object", options, 'send {"include_usage": true}')
    sent = {name: value for name, value in given.items() if name not in GATEWAY_FIELDS}
    voted, extractor = _voting(given.get("apportion"), n, settings)
    unvoted: Unvoted | None = None if voted else "off"
    greedy, temperature = voted and given.get("temperature") == 0, None
    if greedy and settings.greedy_temperature is not None:
        sent["temperature"] = temperature = settings.greedy_temperature
    elif greedy:
        unvoted = "greedy"
    return VoteRequest(
        fields=sent,
        n=n,
        seed=None if given.get("seed") is None else _integer(given, "seed", 0),
        stream=_flag(given, "stream", False),
        include_usage=_flag(options, "include_usage", False, "stream_options.include_usage"),
        voting=voted if voted and not unvoted else Voting(Fixed(), n, n, wave=n, curtail=False),
        extractor=extractor,
        unvoted=unvoted,
        temperature=temperature,
    )


def _voting(given: Any, n: int, settings: GatewaySettings) -> tuple[Voting | None, Extractor]:
    """Return how to vote, or None if the request is not to be voted on, and the extractor."""
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise _wrong("apportion", "must be an object", given, 'send one such as {"max_samples": 16}')
    of_rule = dict(given)
    vote, extract = _flag(of_rule, "vote", True, "apportion.vote"), of_rule.pop("extract", None)
    of_rule.pop("vote", None)
    if extract is not None and (not isinstance(extract, str) or extract not in EXTRACTORS):  # no code of the client's
        raise _wrong("apportion.extract", f"must be one of {', '.join(EXTRACTORS)}", extract, "choose one")
    most = settings.voting.max_samples
    taken: dict[str, Any] = {"max_samples": _integer(of_rule, "max_samples", most, "apportion.max_samples")}
    if not n <= taken["max_samples"] <= most:
        raise _wrong(
            "apportion.max_samples", f"must be from n to {most}", taken["max_samples"], "the gateway has that bound"
        )
    for name in ("wave", "curtail"):
        if name in of_rule:
            taken[name] = of_rule.pop(name)
    of_rule.pop("max_samples", None)
    try:
        voting = replace(settings.voting, rule=_rule(of_rule, settings.voting.rule), **taken)
        voting = replace(voting, min_samples=max(n, min(voting.min_samples, voting.max_samples)))
    except ValueError as error:
        raise GatewayError(400, f"apportion: {error}", param="apportion") from None
    return voting if vote else None, settings.extractor if extract is None else EXTRACTORS[extract]


def _rule(given: dict[str, Any], own: Rule) -> Rule:
    """Return the gateway's rule with the settings that are given, or another. Raise ValueError or GatewayError."""
    target = given.pop("target", None)
    if target is not None:
        if "rule" in given or not isinstance(target, str) or target not in TARGETS:
            remedy = "choose one, and leave rule out"
            raise _wrong("apportion.target", f"must be one of {', '.join(TARGETS)} without a rule", target, remedy)
        given = {"rule": TARGETS[target].name, **dict(TARGETS[target].settings), **given}
    name = given.pop("rule", own.name)
    if not isinstance(name, str) or name not in RULES:
        raise _wrong("apportion.rule", "must be known", name, choices(str(name), RULES))
    known = [field.name for field in fields(RULES[name])]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            also = ", ".join(("vote", "target", "rule", "max_samples", "wave", "curtail", "extract", *known))
            raise GatewayError(
                400, f"apportion has no field {shown(key)} for rule {name}; it has {also}", param=f"apportion.{key:.80}"
            )
    before = asdict(own) if name == own.name and target is None else {}  # type: ignore[call-overload]
    return build(RULES[name], before | given, "") if given or not before else own


def _integer(given: Mapping[str, Any], name: str, default: int, param: str | None = None) -> int:
    value = given.get(name)
    if value is None:
        return default
    try:
        return check_integer(param or name, value)
    except ValueError as error:
        raise GatewayError(400, str(error), param=param or name) from None


def _flag(given: Mapping[str, Any], name: str, default: bool, param: str | None = None) -> bool:
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(param or name, "must be true or false", value, "choose one")
    return value


def _wrong(param: str, must: str, value: Any, remedy: str) -> GatewayError:
    return GatewayError(400, f"{param} {must}, got {shown(value)}; {remedy}", param=param)
