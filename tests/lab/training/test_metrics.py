"""The metrics of a run, whole, torn and damaged."""

import json
import os
from hashlib import sha256

import pytest

from apportion.lab.training.metrics import cut_metrics, read_metrics

RECORDS = [{"step": step, "rollouts": 8 * step, "tokens": 40 * step, "counts": [4, 4]} for step in range(4)]
LINES = [json.dumps(record).encode() + b"\n" for record in RECORDS]
SIZE, CHECKSUM = sum(map(len, LINES[:3])), sha256(b"".join(LINES[:3])).hexdigest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_a_run_that_has_not_begun_has_no_metrics(path):
    assert read_metrics(path) == []


@pytest.mark.parametrize(
    "torn", [b"", LINES[3][:1], LINES[3][:-1], b'{"step": 3, "p": {"a": 1}', b"\xff\xfe\n", b"{}\n", b"4\n"]
)
def test_a_torn_last_line_is_left_out(path, torn):
    """Also one that is torn behind a bracket, so that it looks whole."""
    path.write_bytes(b"".join(LINES[:3]) + torn)
    assert read_metrics(path) == RECORDS[:3]


OTHER = {
    "text": b"hello\n",
    "empty": b"\n",
    "bare": b'{"step": 1}\n',
    "flag": b'{"step": true, "rollouts": 1, "tokens": 1}\n',
}
DAMAGED = ["0 text 1", "empty 0 1 2 3", "0 1 2 3 3", "0 2", "1", "0 bare 2", "0 flag 2"]


@pytest.mark.parametrize(("names", "line"), zip(DAMAGED, [2, 1, 5, 2, 1, 2, 2], strict=True))
def test_a_line_that_is_not_the_next_step_is_refused(path, names, line):
    """Two processes that write one file leave steps out of order."""
    path.write_bytes(b"".join(OTHER.get(name) or LINES[int(name)] for name in names.split()))
    problem = (
        rf"metrics\.jsonl must hold step {line - 1} in line {line}, got something else; delete .* to train this run"
    )
    with pytest.raises(ValueError, match=problem):
        read_metrics(path)


def test_metrics_are_cut_to_the_steps_of_a_checkpoint(path):
    path.write_bytes(b"".join(LINES) + b'{"step": 4')
    cut_metrics(path, SIZE, CHECKSUM)
    assert path.read_bytes() == b"".join(LINES[:3])


def test_metrics_without_what_the_run_has_written_are_refused_and_left_as_they_are(path):
    digit = b"".join(LINES).replace(b"40", b"41", 1)
    less = [(content, "all that the run has written, got less") for content in (b"", b"".join(LINES[:2]), LINES[0])]
    for content, problem in [
        *less,
        (digit, "what the run has written, got something else"),
        (None, "all .*, got less"),
    ]:
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"metrics\.jsonl must hold {problem}; delete .* to train this run again"):
            cut_metrics(path, SIZE, CHECKSUM)
        assert content is None or path.read_bytes() == content


def test_metrics_that_are_not_a_file_are_refused_and_never_waited_for(path):
    os.mkfifo(path)
    for use in (lambda: read_metrics(path), lambda: cut_metrics(path, 10, CHECKSUM)):
        with pytest.raises(ValueError, match=r"metrics\.jsonl must be a file, got a named pipe; remove it"):
            use()
