"""Options that several commands have, and options that are made from the fields of dataclasses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.main import get_command

from apportion.described import described_fields
from apportion.untrusted import parse_json, shown

if TYPE_CHECKING:
    from apportion.records import RunRecord

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

Rewards = Annotated[
    list[str] | None,
    typer.Option("--reward", metavar="NAME[=WEIGHT]", help="The column of the reward; repeat it for a weighted sum."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="NAME=COLUMN", help="A column of another name, as in reward=score."),
]
"""Options that name the columns of another tool's table. A rollout log needs none of them."""
Outcome = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The reward column that says whether a rollout is right, beside the others."),
]

Target = Annotated[
    str | None, typer.Option(help="What to keep of the full vote: agreement or accuracy. It names a rule.")
]
Labels = Annotated[
    Path | None,
    typer.Option(help="Right answers of a random draw of the questions, by id or prompt: a bound on right winners."),
]
SettingsOfRules = Annotated[
    list[str] | None, typer.Option("--set", metavar="RULE.KEY=VALUE", help="A setting of a rule, such as vip.low=4.")
]
FurtherRules = Annotated[list[str] | None, typer.Argument(metavar="[RULE]...", help="Further rules.")]
RuleSettings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the rule.")]


def several(*given: Iterable[str] | None) -> list[str]:
    """Return the values of an option that takes several, by spaces or commas.

    >>> several(["vip,hora"], None, ["mixed"])
    ['vip', 'hora', 'mixed']
    """
    return [value for texts in given for text in texts or () for value in text.split(",") if value]


def read_run(path: Path, reward: list[str] | None, column: list[str] | None, outcome: str | None = None) -> RunRecord:
    """Return the recorded run at ``path``, with its columns as ``Rewards``, ``Columns`` and ``Outcome`` say."""
    from apportion.records import open_run  # noqa: PLC0415 - slow to import

    return open_run(path, reward or [], pairs_of(column, "--column"), outcome)


def pairs_of(texts: Iterable[str] | None, name: str) -> dict[str, str]:
    """Return the pairs in ``texts``, each NAME=VALUE. Raise ValueError for anything else; its message shows no values.

    >>> pairs_of(["X-Team=a=b"], "header")
    {'X-Team': 'a=b'}
    """
    pairs: dict[str, str] = {}
    for number, text in enumerate(texts or (), start=1):
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ValueError(
                f"{name} must be NAME=VALUE, got no name or no = in number {number}; write {name} NAME=VALUE"
            )
        if key.strip() in pairs:
            raise ValueError(f"{name} must be given once for a name, got {shown(key.strip())} twice; leave one out")
        pairs[key.strip()] = value.strip()
    return pairs


def json_fields(text: str | None, name: str) -> dict[str, Any]:
    """Return the JSON object in ``text``, the option ``name``. Raises ValueError for anything else."""
    from apportion.endpoint.secrets import is_secret_name  # noqa: PLC0415

    given = "a text that seems to hold a secret" if is_secret_name(text or "") else shown(text)
    try:
        found = parse_json(text or "{}")
    except ValueError as error:
        raise ValueError(f"{name} must be JSON, got {given} ({error}); quote it for the shell") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a JSON object, got {given}; write '{{\"name\": value}}'")
    return found


PLAIN = (str, int, float, bool)
DIGITS = 20
WITHOUT = "no_"
"""The prefix of the options that give a field the value None."""
FLAGS = {"timeout_seconds": "--request-timeout", "headers": "--header"}
"""The names of options that are not their field's."""

Parts = Iterable[tuple[type[Any], Iterable[str]]]
"""Dataclasses, each with the names of its fields that are options."""


def command_of(
    function: Callable[..., None], options: Callable[[list[Parameter]], Sequence[Parameter]] | None = None
) -> Any:
    """Return the command of ``function``.

    ``options`` takes the parameters of ``function`` without ``**settings``, and returns all. Required ones come first.
    """

    def run(**given: Any) -> None:
        function(**given)

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    if options is not None:
        own = signature(function, eval_str=True)
        named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        keyword = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in options(named)]
        keyword.sort(key=lambda each: each.default is not Parameter.empty)
        run.__signature__ = own.replace(parameters=keyword)  # type: ignore[attr-defined]
    app.command(help=function.__doc__)(run if options else function)
    return get_command(app)


def settings_options(parts: Parts, choices: Mapping[str, Iterable[str]]) -> list[Parameter]:
    """Return an option for each field in ``parts``: its type, default and help are the field's.

    The option is text if the command line has no such type, and a list of NAME=VALUE for a mapping to texts. The values
    that a field can have are ``choices``, which the help lists and the shell completes. A field that may be None and is
    not by default has ``--no-NAME``, too. A rule is None by default, because a target may name it. ``given_settings``
    reads the options.
    """
    made: list[Parameter] = []
    for cls, names in parts:
        for name in names:
            option = _option(cls, name, list(choices.get(name, ())))
            made.append(option.replace(default=None) if name == "rule" else option)
            if NoneType in get_args(get_type_hints(cls)[name]) and option.default not in (None, Parameter.empty):
                off = typer.Option(f"--no-{name.replace('_', '-')}", help=f"Leave {name} to the server.")
                made.append(_keyword(f"{WITHOUT}{name}", False, Annotated[bool, off]))
    return made


def given_settings(options: Mapping[str, Any], parts: Parts, usual: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return ``options``, in which those that ``settings_options`` made of ``parts`` have the values of their fields.

    ``no_NAME`` makes None of the field NAME. Raises ValueError if a field is given a value that is not its default, or
    the ``usual`` one in place of that, and None at the same time; and for what is no JSON or no NAME=VALUE.
    """
    settings = dict(options)
    for cls, names in parts:
        hints, defaults = get_type_hints(cls), {field.name: field.default for field in fields(cls)} | dict(usual)
        for name in names:
            value = settings[name]
            if settings.pop(WITHOUT + name, False):
                if value != defaults[name]:
                    off = f"--no-{name.replace('_', '-')}"
                    raise ValueError(f"{name} must be given once, got {shown(value)} and {off}; leave one out")
                settings[name] = None
            elif hints[name] == Mapping[str, str]:
                settings[name] = pairs_of(value, FLAGS[name])
            elif get_origin(hints[name]) is Mapping:
                settings[name] = json_fields(value, name)
            elif name == "wave" and value.isdecimal() and len(value) < DIGITS:  # a number of samples, or a word
                settings[name] = int(value)
    return settings


def _option(cls: type[Any], name: str, choices: list[str]) -> Parameter:
    (field,) = (field for field in fields(cls) if field.name == name)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if not isinstance(default, (*PLAIN, NoneType)):
        default = Parameter.empty if default is MISSING else getattr(default, "name", None)
    hint, help_text = get_type_hints(cls)[name], described_fields(cls).get(name, "")
    if default is not None:
        help_text = re.sub(r"; None [^.]*", "", help_text)  # which no text of an option can be
    named = [FLAGS[name]] if name in FLAGS else []
    if hint == Mapping[str, str]:
        option = typer.Option(*named, help=f"{help_text} Repeatable.", metavar="NAME=VALUE")
        return _keyword(name, None, Annotated[list[str] | None, option])
    settings: dict[str, Any] = {"show_default": "\n" not in str(default)}
    if choices:
        help_text += f" One of {', '.join(choices)}."
        settings["autocompletion"] = lambda incomplete: [each for each in choices if each.startswith(incomplete)]
    if get_origin(hint) in (Mapping, Literal):
        settings["metavar"] = "JSON" if get_origin(hint) is Mapping else "|".join(get_args(hint))
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    kind = hint if len(kinds) == 1 and kinds[0] in PLAIN else str
    return _keyword(name, default, Annotated[kind, typer.Option(*named, help=help_text, **settings)])


def _keyword(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
