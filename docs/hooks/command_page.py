"""Makes the page of the commands, reference/commands.md, from the command line itself when the site is built."""

import re
from collections.abc import Iterator

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from apportion.cli import app

NAME = "reference/commands.md"

INTRODUCTION = """# Commands

`pip install 'apportion[cli]'` installs the command `apportion`. Each of its commands lists the same options with
`--help`. Wrong options and wrong input end a command with exit code 2 and one line that says what to change.
"""

HIDDEN = ("help", "install_completion", "show_completion")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    files.append(File.generated(config, NAME, content=page()))
    return files


def page() -> str:
    """Return the page: a table of all commands, then a section for each."""
    context = typer.Context(get_command(app), info_name="apportion")
    named = sorted(commands(context))
    table = [f"| [`apportion {name}`](#apportion-{name}) | {first_sentence(each.command)} |" for name, each in named]
    sections = [part for name, each in named for part in section(name, each)]
    return "\n".join([INTRODUCTION, "| command | what it does |", "| --- | --- |", *table, "", *sections])


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


def first_sentence(command: click.Command) -> str:
    """Return the first line of a command's help."""
    return (command.help or "").partition("\n")[0]


def escaped(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_<>|#\[\]])", r"\\\1", text)
