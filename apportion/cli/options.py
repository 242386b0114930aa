"""Options that several commands have, and options that are made from the fields of a dataclass."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from apportion.described import described_fields

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting.")]
Name = Annotated[str | None, typer.Option(help="The folder of the results under runs/.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what was started.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")]

PLAIN = (str, int, float, bool)


def option_of(cls: type[Any], name: str, flag: str | None = None, choices: Iterable[str] = ()) -> Parameter:
    """Return the option for the field ``name`` of the dataclass ``cls``: its type, default and help are the field's.

    The option is text if the command line has no such type. ``choices`` are listed in the help and completed by the
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
    if get_origin(hint) in (Mapping, Literal):
        settings["metavar"] = "JSON" if get_origin(hint) is Mapping else "|".join(get_args(hint))
    option = typer.Option(*([flag] if flag else []), help=help_text, **settings)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[_plain_type(hint), option])


def _plain_type(hint: Any) -> Any:
    """Return ``hint`` if it is a plain type or one that may be None, else ``str``."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    return hint if len(kinds) == 1 and kinds[0] in PLAIN else str
