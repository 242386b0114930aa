"""The rollout log: every rollout of every step with its reward and its use in training. One Parquet file a step.

A log is a folder of files such as ``step-000012.parquet``. Each file is written whole: if the process is killed, the
finished steps remain, and a step that is run again replaces its file. So a log can be read while it is written.
``COLUMNS`` lists the columns. The rows are:

- one for every rollout drawn in the step. A failed rollout has no row; ``asked`` counts it.
- one for every reused rollout of an earlier step, with ``reused_step`` and its ``index`` in the group. The rollout that
  it replaced has its own row, which was not kept.
- one without ``index`` for every prompt without a rollout, so that no prompt of the batch is missing.

A file ``run.txt`` holds the id of the run that the steps are of, so that two runs are never mixed in one folder. A file
``run.json`` describes a run that was not logged while it trained.

It needs pyarrow, which is in the extra ``report``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyarrow import Schema

VERSION = 2
"""The version of the columns and their meaning. Logs of other versions are refused."""
COLUMNS = {
    "step": "int64",  # step of training
    "place": "int64",  # index of the prompt in its batch, from 0; tells repeated prompts apart
    "prompt_id": "string",
    "prompt": "string",
    "predicted": "double",  # mean of the belief about its success before the step
    "asked": "int64",  # rollouts of the prompt asked for in the step
    "index": "int64",  # index of the rollout among those of its prompt, from 0
    "round": "int64",
    "correct": "bool",  # the verifier's verdict
    "answer": "string",
    "reward": "double",  # as measured; without labels, training takes rewards from the answers
    "tokens": "int64",
    "score_norm": "double",
    "truncated": "bool",  # whether it was cut at a limit of tokens
    "completion": "string",
    "kept": "bool",  # whether it entered the loss
    "advantage": "double",  # before weights, of every rollout of a group, kept or not
    "weight": "double",
    "reused_step": "int64",  # the step of sampling, if that was an earlier one
    "written": "double",  # when the step was finished, in seconds since 1970
}
"""Columns and their Parquet types. Columns that are not in ``ALWAYS`` may be null."""

ALWAYS = frozenset({"step", "place", "prompt_id", "asked", "kept"})
"""Columns that are never null."""

LATER = "truncated"
"""The column that logs of earlier versions lack."""

LogText = Literal["full", "hashes"]
"""Whether a log has prompts, answers and completions as text, or only ids of prompts and hashes of the others."""

ROLLOUTS = "rollouts"
"""The folder of the rollout log in the folder of a run."""

MARK = b"apportion.rollouts"
"""The key of the version in the metadata of a file."""


class RecordError(ValueError):
    """The error for a rollout log that cannot be written or read: problem, location and remedy in one line."""


def schema() -> Schema:
    """Return the schema of a log. Raise RecordError if pyarrow is missing."""
    try:
        import pyarrow  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise RecordError(
            "a rollout log needs pyarrow, which cannot be imported; pip install 'apportion[report]', or log none"
        ) from error
    kinds = {name: pyarrow.type_for_alias(kind) for name, kind in COLUMNS.items()}
    fields = [pyarrow.field(name, kind, nullable=name not in ALWAYS) for name, kind in kinds.items()]
    return pyarrow.schema(fields, metadata={MARK: str(VERSION)})
