"""Commands of the command line, run in this process, and what they print."""

import json
import shlex

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from apportion.cli import app
from tests.cases import check_all, lines


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def printed(*words):
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def parsed(*words):
    """Return what is printed with ``--json``: one object in one line, and nothing else."""
    done = invoke(*words, "--json")
    assert done.exit_code == 0 and done.stderr == "" and done.stdout.count("\n") == 1, done.output
    return json.loads(done.stdout)


def refused(*words):
    """Return the line with which a command ends: a problem and a remedy."""
    done = invoke(*words)
    assert done.exit_code == 2 and done.stdout == "", done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and ";" in done.stderr, done.stderr
    return done.stderr


def refuse_all(table, *before):
    """Check each line of ``table``: options that are refused after those ``before``, and the problem that is said."""

    def check(options, problem):
        assert problem in refused(*before, *shlex.split(options))

    check_all(check, lines(table))
