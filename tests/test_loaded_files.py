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
from tests.vote.builders import make_ballot

pytest.importorskip("pyarrow")


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


def test_answers_made_to_exhaust_a_parser_are_refused_in_one_line(tmp_path):
    path = tmp_path / "answers.jsonl"

    def check(content):
        path.write_bytes(content + b"\n")
        refused(path, "answers")

    check_all(check, [(b"[" * 200_000,), (b'{"p": ' + b"9" * 5000 + b"}",), (b'{"id": "a", "votes": "evil"}',)])


def test_an_answer_whose_values_have_other_types_is_refused(tmp_path):
    good = make_ballot()
    assert Ballot.from_json(good.to_json()) == good
    path = tmp_path / "answers.jsonl"
    for field in ("votes", "samples", "seconds", "stopped", "errors", "correct", "id"):
        path.write_text(Ballot(**vars(good) | {field: {"nested": ["x"]}}).to_json() + "\n")
        refused(path, "answers")
