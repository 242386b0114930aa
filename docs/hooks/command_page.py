"""Adds all commands and their options to reference/commands.md, from the command line itself when the site is built."""

import re
from collections.abc import Iterator
from typing import Any

import click
import typer
from mkdocs.structure.pages import Page
from typer.main import get_command

from apportion.cli import app

NAME = "reference/commands.md"

HIDDEN = ("help", "install_completion", "show_completion")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the page with the commands after its own text."""
    return f"{markdown}\n{described()}" if page.file.src_uri == NAME else markdown


def described() -> str:
    """Return a table of all commands, then a section for each."""
    context = typer.Context(get_command(app), info_name="apportion")
    named = sorted(commands(context))
    table = [f"| [`apportion {name}`](#apportion-{name}) | {first_line(each.command)} |" for name, each in named]
    sections = [part for name, each in named for part in section(name, each)]
    return "\n".join(["| command | what it does |", "| --- | --- |", *table, "", *sections])


def commands(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    """Yield each command's name and its context."""
    assert isinstance(context.command, typer.core.TyperGroup)
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        assert command is not None
        yield name, typer.Context(command, parent=context, info_name=name)


def section(name: str, context: click.Context) -> Iterator[str]:
    """Yield the lines about one command: its text, its usage, and a list of what it takes."""
    yield f"## apportion {name}\n\n{context.command.help}\n"
    yield f"```sh\n{usage(context)}\n```\n"
    for parameter in context.command.get_params(context):
        record = None if parameter.name in HIDDEN else parameter.get_help_record(context)
        if record:
            yield f"`{record[0]}`\n:   {escaped(record[1])}\n"


def usage(context: click.Context) -> str:
    """Return the line that ``--help`` calls usage."""
    return " ".join(context.get_usage().split()).removeprefix("Usage: ")


def first_line(command: click.Command) -> str:
    """Return the first line of a command's help."""
    return (command.help or "").partition("\n")[0]


def escaped(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_<>|#\[\]])", r"\\\1", text)
