"""Nothing that is loaded runs code: tables, logs, answers and configurations that a stranger wrote.

Checkpoints are tested where they are loaded, in tests/lab, tests/trl and tests/verl.
"""

import pytest

from apportion.config import ConfigError, load
from apportion.records import RecordError, read_log
from apportion.rows import TableError
from apportion.tables import read_columns
from apportion.vote.ballot import Ballot
from apportion.vote.journal import read_recorded
from apportion.vote.lines import JournalError
from tests.cases import check_all
from tests.hostile import FILES, MARKER

pytest.importorskip("pyarrow")

DEEP = b"[" * 200_000
MANY_DIGITS = b'{"p": ' + b"9" * 5000 + b"}"


def read_step(path):
    read_log(path.parent)


LOADERS = {
    "csv": ("table.csv", lambda path: read_columns(path, ["p"]), TableError),
    "jsonl": ("table.jsonl", lambda path: read_columns(path, ["p"]), TableError),
    "parquet": ("table.parquet", lambda path: read_columns(path, ["p"]), TableError),
    "rollout log": ("step-000000.parquet", read_step, RecordError),
    "answers": ("answers.jsonl", read_recorded, JournalError),
    "samples": ("answers.samples.jsonl", lambda path: read_recorded(path.parent / "answers.jsonl"), JournalError),
    "configuration": ("job.toml", load, ConfigError),
}


def refused(path, loader):
    _, read, error = LOADERS[loader]
    with pytest.raises(error) as caught:
        read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_foreign_file_is_refused_in_one_line_and_runs_no_code(tmp_path, loader):
    path = tmp_path / "loaded" / LOADERS[loader][0]
    path.parent.mkdir()

    def check(name):
        path.write_bytes(FILES[name](tmp_path / MARKER))
        refused(path, loader)
        assert not (tmp_path / MARKER).exists()

    check_all(check, [(name,) for name in sorted(FILES.keys() - {"nothing"})])


def test_text_made_to_exhaust_a_parser_is_refused_in_one_line(tmp_path):
    cases = [
        ("jsonl", DEEP),
        ("jsonl", MANY_DIGITS),
        ("answers", DEEP + b"\n"),
        ("answers", MANY_DIGITS + b"\n"),
        ("configuration", b"a = " + DEEP),
        ("answers", b'{"id": "a", "votes": "evil"}\n'),
    ]

    def check(loader, content):
        path = tmp_path / LOADERS[loader][0]
        path.write_bytes(content)
        refused(path, loader)

    check_all(check, cases)


def test_an_answer_whose_values_have_other_types_is_refused(tmp_path):
    numbers = dict.fromkeys(("failed", "unparsed", "cancelled", "waves", "texts"), 0)
    good = Ballot(
        id="a", question_hash="h", answer="4", gold=None, correct=None, votes={"4": 3}, samples=3, stopped="rule",
        prompt_length=None, prompt_tokens=None, completion_tokens=None, seconds=0.5, disagreement=0.0, **numbers,
    )  # fmt: skip
    assert Ballot.from_json(good.to_json()) == good
    path = tmp_path / "answers.jsonl"
    for field in ("votes", "samples", "seconds", "stopped", "errors", "correct", "id"):
        path.write_text(Ballot(**vars(good) | {field: {"nested": ["x"]}}).to_json() + "\n")
        refused(path, "answers")
