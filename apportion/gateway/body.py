"""What a request asks for: the fields for upstream, the number of choices, and the vote.

The gateway reads ``messages``, ``n``, ``seed``, ``stream``, ``stream_options``, ``temperature`` and ``apportion``. All
other fields go upstream unchanged. ``apportion`` sets the vote of one request, within the gateway's bounds:

    {"vote": false}
    {"rule": "adaptive_consistency_beta", "confidence": 0.9, "max_samples": 16, "wave": 8, "extract": "choice"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from apportion.allocators import Voting
from apportion.answers import EXTRACTORS, Extractor
from apportion.checks import check_integer
from apportion.endpoint import seed_of
from apportion.gateway.errors import GatewayError
from apportion.gateway.settings import GatewaySettings
from apportion.stopping import Fixed, Rule
from apportion.untrusted import parse_json, shown
from apportion.vote.setup import rule_for

FIELDS = ("vote", "target", "rule", "max_samples", "wave", "curtail", "extract")

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
    n, most = _taken(given, "n", 1), settings.voting.max_samples
    if not 1 <= n <= most:
        raise _wrong("n", f"must be from 1 to {most}", n, "ask for fewer choices")
    options = given.pop("stream_options", None) or {}
    if not isinstance(options, dict):
        raise _wrong("stream_options", "must be an object", options, 'send {"include_usage": true}')
    voted, extractor = _voting(given.pop("apportion", None), n, settings)
    unvoted: Unvoted | None = None if voted else "off"
    temperature = None
    if voted and given.get("temperature") == 0:
        temperature = settings.greedy_temperature
        if temperature is None:
            unvoted = "greedy"
        else:
            given["temperature"] = temperature
    return VoteRequest(
        n=n,
        seed=_taken(given, "seed", None),
        stream=_taken(given, "stream", False),
        include_usage=_taken(options, "include_usage", False, "stream_options."),
        voting=voted if voted and not unvoted else Voting(Fixed(), n, n, wave=n, curtail=False),
        extractor=extractor,
        unvoted=unvoted,
        temperature=temperature,
        fields=given,
    )


def _voting(given: Any, n: int, settings: GatewaySettings) -> tuple[Voting | None, Extractor]:
    """Return how to vote, or None if the request is not to be voted on, and the extractor."""
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise _wrong("apportion", "must be an object", given, 'send one such as {"max_samples": 16}')
    vote, extract = _taken(given, "vote", True, "apportion."), given.pop("extract", None)
    # a client must not name code to run
    if extract is not None and (not isinstance(extract, str) or extract not in EXTRACTORS):
        raise _wrong("apportion.extract", f"must be one of {', '.join(EXTRACTORS)}", extract, "choose one")
    own = settings.voting
    most = _taken(given, "max_samples", own.max_samples, "apportion.")
    if not n <= most <= own.max_samples:
        must = f"must be from n to {own.max_samples}"
        raise _wrong("apportion.max_samples", must, most, "the gateway has that bound")
    waves = {name: given.pop(name) for name in ("wave", "curtail") if name in given}
    least = max(n, min(own.min_samples, most))
    try:
        voting = replace(own, rule=_rule(given, own.rule), max_samples=most, min_samples=least, **waves)
    except ValueError as error:
        said = f"apportion: {error}. Its fields are {', '.join(FIELDS)}, and those of the rule"
        raise GatewayError(400, said, param="apportion") from None
    return voting if vote else None, settings.extractor if extract is None else EXTRACTORS[extract]


def _rule(given: dict[str, Any], own: Rule) -> Rule:
    """Return the gateway's rule with the settings that are given, or another. Raise ValueError or GatewayError."""
    named = {name: given.pop(name, None) for name in ("target", "rule")}
    for name, value in named.items():
        if not isinstance(value, str | None):
            raise _wrong(f"apportion.{name}", "must be a text", value, "name one")
    if named["target"] is None and named["rule"] in (None, own.name):
        named["rule"], given = own.name, {**asdict(own), **given}  # type: ignore[call-overload]
    return rule_for(named["target"], named["rule"], given)


def _taken(given: dict[str, Any], name: str, default: Any, where: str = "") -> Any:
    """Remove an integer, or a flag if ``default`` is one, from ``given`` and return it.

    Raise GatewayError for other types.
    """
    value, param = given.pop(name, None), f"{where}{name}"
    if value is None:
        return default
    if isinstance(default, bool) and not isinstance(value, bool):
        raise _wrong(param, "must be true or false", value, "choose one")
    try:
        return value if isinstance(default, bool) else check_integer(param, value)
    except ValueError as error:
        raise GatewayError(400, str(error), param=param) from None


def _wrong(param: str, must: str, value: Any, remedy: str) -> GatewayError:
    return GatewayError(400, f"{param} {must}, got {shown(value)}; {remedy}", param=param)
