"""``apportion serve``: an OpenAI-compatible endpoint that answers each request by an early-stopped vote.

Most options are fields of the gateway's settings, which are imported when the command is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import fields
from inspect import Parameter, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from apportion.cli.errors import fail, usage_errors
from apportion.cli.options import RuleSettings, Target, option_of
from apportion.cli.vote import json_fields
from apportion.runs.signals import run_async

VOTING = ("rule", "max_samples", "wave", "curtail")
READING = ("extract", "equivalence", "equivalence_settings", "give_up", "greedy_temperature")
DIGITS = 20


class ServeCommand(TyperCommand):
    """The command, which gets its parameters and its function at first use because they are slow to import."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of ``serve`` with all options."""
        if not self.params:
            app = typer.Typer(add_completion=False)
            app.command()(_with_all_options())
            command = get_command(app)
            self.params, self.callback = command.params, command.callback
        return super().get_params(ctx)


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 is any free one.")] = 8001,
    target: Target = None,
    rule_settings: RuleSettings = None,
    **settings: Any,
) -> None:
    """Serve an endpoint that votes on each request."""
    try:
        from apportion.gateway.server import is_loopback, listen  # noqa: PLC0415 - an optional extra
        from apportion.gateway.server import serve as run  # noqa: PLC0415
    except ImportError as error:
        if (error.name or "").startswith("apportion"):
            raise
        package = str(error.name).partition(".")[0]
        raise typer.Exit(
            fail(f"serving needs {package}, which is not installed; pip install 'apportion[serve]'")
        ) from error
    from apportion.toml import load  # noqa: PLC0415

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("apportion.gateway").setLevel(logging.INFO)
    with usage_errors(ValueError, ImportError):
        made = _settings(settings | {"target": target}, load(None, rule_settings or []))
        sock = listen(host, port)

        def ready() -> None:
            if not is_loopback(host):
                typer.echo(f"warning: the gateway has no authentication, and {host} can be reached by others", err=True)
            shown = f"[{host}]" if ":" in host else host
            address = f"http://{shown}:{sock.getsockname()[1]}/v1"
            typer.echo(f"Votes are served on {address}, from {made.upstream.upstream}. Ctrl-C ends it.", err=True)

        with sock:
            run_async(run(made, sock, host, ready))


def _settings(given: dict[str, Any], of_rule: dict[str, Any]) -> Any:
    """Return the gateway's settings. Raise ValueError for those that cannot be used."""
    from apportion.allocators import Voting  # noqa: PLC0415
    from apportion.gateway import GatewayLimits, GatewaySettings, UpstreamSettings  # noqa: PLC0415
    from apportion.vote.setup import rule_for  # noqa: PLC0415

    def part(cls: type[Any]) -> Any:
        return cls(**{field.name: given.pop(field.name) for field in fields(cls)})

    upstream, limits = part(UpstreamSettings), part(GatewayLimits)
    voting = {name: given.pop(name) for name in VOTING}
    wave = voting["wave"]
    voting |= {"rule": rule_for(given.pop("target"), voting["rule"], of_rule)}
    given["equivalence_settings"] = json_fields(given["equivalence_settings"], "equivalence_settings")
    voting |= {"wave": int(wave) if wave.isdecimal() and len(wave) < DIGITS else wave}
    return GatewaySettings(upstream, Voting(**voting), **given, limits=limits)


def _with_all_options() -> Callable[..., None]:
    """Return ``serve`` with an option for each setting in place of ``**settings``."""
    from apportion.allocators import Voting  # noqa: PLC0415
    from apportion.answers import EQUIVALENCES, EXTRACTORS  # noqa: PLC0415
    from apportion.gateway import GatewayLimits, GatewaySettings, UpstreamSettings  # noqa: PLC0415
    from apportion.stopping import RULES  # noqa: PLC0415

    choices: dict[str, Iterable[str]] = {"rule": RULES, "extract": EXTRACTORS, "equivalence": EQUIVALENCES}
    parts: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
        (UpstreamSettings, tuple(field.name for field in fields(UpstreamSettings))),
        (Voting, VOTING),
        (GatewaySettings, READING),
        (GatewayLimits, tuple(field.name for field in fields(GatewayLimits))),
    )
    made = [option_of(cls, name, None, choices.get(name, ())) for cls, names in parts for name in names]
    made = [option.replace(default=None) if option.name == "rule" else option for option in made]
    own = signature(serve, eval_str=True)
    given = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    keyword = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (made[0], *given, *made[1:])]

    def serve_with_options(**options: Any) -> None:
        serve(**options)

    serve_with_options.__signature__ = own.replace(parameters=keyword)  # type: ignore[attr-defined]
    return serve_with_options
