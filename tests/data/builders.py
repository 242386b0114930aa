"""Files in the layouts of their publishers, with made-up problems."""

import csv
import json

import pytest

from apportion.data.templates import REMINDER, STEPS
from tests.builders import write_jsonl


def wrapped(question):
    """Return a prompt in the form of DAPO's file."""
    return [{"role": "user", "content": f"{STEPS}\n\n{question}\n\n{REMINDER}"}]


def dapo(question, answer):
    """Return a row of DAPO's file."""
    return {
        "data_source": "math_dapo",
        "prompt": wrapped(question),
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    }


def gpqa(question, right, *wrong):
    """Return a row of GPQA's file, with some of its other columns."""
    return {
        "Pre-Revision Question": "Which, then?",
        "Question": question,
        "Correct Answer": right,
        **{f"Incorrect Answer {number}": text for number, text in enumerate(wrong, start=1)},
        "Explanation": "Because, so.\nAnd thus.",
        "Record ID": "rec06pnAkLOr2t2mp",
    }


def write(path, rows):
    """Write ``rows`` in the format of the suffix, in a CSV with lists and objects as JSON."""
    if path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            for row in rows:
                writer.writerow({k: json.dumps(v) if isinstance(v, (list, dict)) else v for k, v in row.items()})
    else:
        write_jsonl(path, rows)
    return path
