"""Commands of the command line, run in this process, and what they print."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner, Result

from apportion.cli import app
from tests.cases import check_all, lines


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def printed(*words: object) -> str:
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def parsed(*words: object) -> dict[str, Any]:
    """Return what is printed with ``--json``: one object in one line, and nothing else."""
    done = invoke(*words, "--json")
    assert done.exit_code == 0 and done.stderr == "" and done.stdout.count("\n") == 1, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*words: object) -> str:
    """Return the line with which a command ends: a problem and a remedy."""
    done = invoke(*words)
    assert done.exit_code == 2 and done.stdout == "", done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and ";" in done.stderr, done.stderr
    return done.stderr


def refuse_all(table: str, *before: object) -> None:
    """Check each line of ``table``: options that are refused after those ``before``, and the problem that is said."""

    def check(options: str, problem: str) -> None:
        assert problem in refused(*before, *shlex.split(options))

    check_all(check, lines(table))
