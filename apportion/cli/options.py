"""Options that several commands have, and options that are made from the fields of a dataclass."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from apportion.described import described_fields
from apportion.untrusted import shown

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting.")]
Name = Annotated[str | None, typer.Option(help="The folder of the results under runs/.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what was started.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")]

Rewards = Annotated[
    list[str] | None,
    typer.Option("--reward", metavar="NAME[=WEIGHT]", help="The column of the reward; repeat it for a weighted sum."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="NAME=COLUMN", help="A column of another name, as in reward=score."),
]
"""What says which columns of another tool's tables are read. A rollout log needs neither."""

Target = Annotated[
    str | None, typer.Option(help="What to keep of the full vote: agreement or accuracy. It names a rule.")
]
Labels = Annotated[
    Path | None,
    typer.Option(help="Right answers of a random draw of the questions, by id or prompt: a bound on right winners."),
]
RuleSettings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the rule.")]


def several(*given: Iterable[str] | None) -> list[str]:
    """Return the values of an option that takes several, by spaces or commas.

    >>> several(["vip,hora"], None, ["mixed"])
    ['vip', 'hora', 'mixed']
    """
    return [value for texts in given for text in texts or () for value in text.split(",") if value]


PLAIN = (str, int, float, bool)
WITHOUT = "no_"
"""The prefix of the options that give a field the value None."""


def options_of(
    cls: type[Any], name: str, flag: str | None = None, choices: Iterable[str] = ()
) -> tuple[Parameter, ...]:
    """Return ``option_of`` these arguments, and ``--no-NAME`` if the field may be None and is not by default.

    ``given_settings`` makes the values of fields of what the command line gives.
    """
    option = option_of(cls, name, flag, choices)
    if NoneType not in get_args(get_type_hints(cls)[name]) or option.default in (None, Parameter.empty):
        return (option,)
    off = f"--no-{(flag or name).removeprefix('--').replace('_', '-')}"
    kind = Annotated[bool, typer.Option(off, help=f"Leave {name} to the server.")]
    return option, Parameter(f"{WITHOUT}{name}", Parameter.KEYWORD_ONLY, default=False, annotation=kind)


def given_settings(options: Mapping[str, Any], cls: type[Any]) -> dict[str, Any]:
    """Return the settings in ``options``, in which ``no_NAME`` makes None of the field NAME of the dataclass ``cls``.

    Raises ValueError if a field is given a value that is not its default, and None at the same time.
    """
    defaults = {WITHOUT + field.name: field.default for field in fields(cls) if WITHOUT + field.name in options}
    settings = {name: value for name, value in options.items() if name not in defaults}
    for option, default in defaults.items():
        name = option.removeprefix(WITHOUT)
        if options[option] and settings[name] != default:
            raise ValueError(f"{name} must be given once, got {shown(settings[name])} and --no-{name}; leave one out")
        settings[name] = None if options[option] else settings[name]
    return settings


def pairs_of(texts: Iterable[str] | None, name: str) -> dict[str, str]:
    """Return the pairs in ``texts``, each NAME=VALUE. Raise ValueError, which shows no values, for anything else.

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


def option_of(cls: type[Any], name: str, flag: str | None = None, choices: Iterable[str] = ()) -> Parameter:
    """Return the option for the field ``name`` of the dataclass ``cls``: its type, default and help are the field's.

    The option is text if the command line has no such type, and a list of NAME=VALUE for a mapping to texts, which
    ``pairs_of`` reads. ``choices`` are listed in the help and completed by the
    shell. ``flag`` is the option's name if it is not the field's.
    """
    (field,) = (field for field in fields(cls) if field.name == name)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if not isinstance(default, (*PLAIN, NoneType)):
        default = Parameter.empty if default is MISSING else getattr(default, "name", None)
    hint, help_text, listed = get_type_hints(cls)[name], described_fields(cls).get(name, ""), list(choices)
    settings: dict[str, Any] = {"show_default": "\n" not in str(default)}
    if listed:
        help_text += f" One of {', '.join(listed)}."
        settings["autocompletion"] = lambda incomplete: [each for each in listed if each.startswith(incomplete)]
    if hint == Mapping[str, str]:
        option = typer.Option(*([flag] if flag else []), help=f"{help_text} Repeatable.", metavar="NAME=VALUE")
        return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[list[str] | None, option])
    if get_origin(hint) in (Mapping, Literal):
        settings["metavar"] = "JSON" if get_origin(hint) is Mapping else "|".join(get_args(hint))
    option = typer.Option(*([flag] if flag else []), help=help_text, **settings)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[_plain_type(hint), option])


def _plain_type(hint: Any) -> Any:
    """Return ``hint`` if it is a plain type or one that may be None, else ``str``."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    return hint if len(kinds) == 1 and kinds[0] in PLAIN else str
