"""``apportion serve``: an OpenAI-compatible endpoint that answers each request by an early-stopped vote.

Most options are fields of the gateway's settings.
"""

from __future__ import annotations

import logging
from dataclasses import fields
from inspect import Parameter
from typing import Annotated, Any

import typer

from apportion.allocators import Voting
from apportion.answers import EQUIVALENCES, EXTRACTORS
from apportion.cli.errors import missing_extra, usage_errors
from apportion.cli.options import RuleSettings, Target, command_of, given_settings, settings_options
from apportion.gateway import GatewayLimits, GatewaySettings, UpstreamSettings
from apportion.runs.signals import run_async
from apportion.stopping import RULES
from apportion.toml import load
from apportion.vote.setup import rule_for

VOTING = ("rule", "max_samples", "wave", "curtail")
READING = ("extract", "equivalence", "equivalence_settings", "give_up", "greedy_temperature")
SETTINGS = (
    (UpstreamSettings, [field.name for field in fields(UpstreamSettings)]),
    (Voting, VOTING),
    (GatewaySettings, READING),
    (GatewayLimits, [field.name for field in fields(GatewayLimits)]),
)


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 is any free one.")] = 8001,
    target: Target = None,
    rule_settings: RuleSettings = None,
    **settings: Any,
) -> None:
    """Serve an endpoint that votes on each request."""
    with missing_extra("serving", "serve"):
        from apportion.gateway.server import is_loopback, listen  # noqa: PLC0415 - an optional extra
        from apportion.gateway.server import serve as run  # noqa: PLC0415

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("apportion.gateway").setLevel(logging.INFO)
    with usage_errors(ValueError, ImportError):
        made = _settings(settings, target, load(None, rule_settings or []))
        sock = listen(host, port)

        def ready() -> None:
            if not is_loopback(host):
                typer.echo(f"warning: the gateway has no authentication, and {host} can be reached by others", err=True)
            shown = f"[{host}]" if ":" in host else host
            address = f"http://{shown}:{sock.getsockname()[1]}/v1"
            typer.echo(f"Votes are served on {address}, from {made.upstream.upstream}. Ctrl-C ends it.", err=True)

        with sock:
            run_async(run(made, sock, host, ready))


def serve_options(own: list[Parameter]) -> list[Parameter]:
    """Return the parameters of ``serve`` itself, and an option for each setting of the gateway."""

    return [*own, *settings_options(SETTINGS, {"rule": RULES, "extract": EXTRACTORS, "equivalence": EQUIVALENCES})]


def _settings(given: dict[str, Any], target: str | None, of_rule: dict[str, Any]) -> Any:
    """Return the gateway's settings. Raise ValueError for those that cannot be used."""

    given = given_settings(given, SETTINGS)
    given["rule"] = rule_for(target, given["rule"], of_rule)
    upstream, voting, reading, limits = ({name: given[name] for name in names} for _, names in SETTINGS)
    return GatewaySettings(UpstreamSettings(**upstream), Voting(**voting), **reading, limits=GatewayLimits(**limits))


serve_command = command_of(serve, serve_options)
