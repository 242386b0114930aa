from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apportion.tables import TableError, read_columns, write_counts

ROWS = [{"id": "a", "success": 0.5, "trials": 4}, {"id": "b", "success": 0.25, "trials": 2}]


def write(folder: Path, suffix: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    path = folder / f"prompts{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    texts = {
        ".csv": "id, success, trials\n" + "".join(f"{r['id']}, {r['success']}, {r['trials']}\n" for r in rows),
        ".jsonl": "".join(f"{r}\n".replace("'", '"') for r in rows),
    }
    path.write_text(texts[suffix])
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_columns(tmp_path: Path, suffix: str) -> None:
    table = read_columns(write(tmp_path, suffix), ["success"], ["id", "absent"])
    assert table.numbers("success").tolist() == [0.5, 0.25]
    assert table.cells.keys() == {"id", "success"} and table.cells["id"] == ("a", "b") and len(table) == 2


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(TableError, match="must have a column rate, got id") as caught:
        read_columns(write(tmp_path, suffix), ["rate"])
    assert suffix == ".parquet" or "success, trials" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "success\n0.5\nhalf\n", "got 'half' in .*a.csv line 3"),
        ("a.csv", "success\n0.5\n\nnan\n", "got 'nan' in .*a.csv line 4"),
        ("a.csv", "id,success\na,\n", "got nothing in .*a.csv line 2"),
        ("a.csv", "success\ninf\n", "got 'inf'"),
        ("a.jsonl", '{"success": 0.5}\n{"success": true}\n', "got True in .*a.jsonl line 2"),
        ("a.jsonl", '{"success": 0.5}\n{"id": 3}\n', "got nothing in .*a.jsonl line 2"),
        ("a.jsonl", '{"success": [0.5]}\n', "got \\[0.5\\]"),
        ("a.jsonl", '{"success": NaN}\n', "got nan"),
        ("a.jsonl", f'{{"success": 1{"0" * 400}}}\n', "must be a finite number"),
    ],
)
def test_a_cell_that_is_no_number_is_named_with_its_line(tmp_path: Path, name: str, content: str, problem: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TableError, match=problem):
        read_columns(tmp_path / name, ["success"]).numbers("success")


def test_a_null_in_parquet_is_named_with_its_row(tmp_path: Path) -> None:
    table = read_columns(write(tmp_path, ".parquet", [{"success": 0.5}, {"success": None}]), ["success"])
    with pytest.raises(TableError, match=r"got nothing in .* row 2"):
        table.numbers("success")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", b"", "at least one row, got none"),
        ("a.csv", b"success\n", "at least one row, got none"),
        ("a.jsonl", b"\n\n", "at least one row, got none"),
        ("a.csv", b"id;success\na;0.5\n", "must have a column success, got id;success"),
        ("a.csv", b"success,id\n0.5\n", "must have 2 cells as the header, got 1 in .* line 2"),
        ("a.csv", b"success,success\n0.5,1\n", "must have different names"),
        ("a.csv", b'success\n"0.5\n', "must be CSV"),
        ("a.csv", b"success\n\xff\n", "must be UTF-8"),
        ("a.jsonl", b'{"success": 0.5}\n{"success": \n', "must be JSON lines, got Expecting value in line 2"),
        ("a.jsonl", b"0.5\n", "must be a JSON object, got 0.5 in .* line 1"),
        ("a.parquet", b"no parquet at all", "must be Parquet"),
        ("a.parquet", b"", "must be Parquet"),
        ("a.xlsx", b"", "must end in .csv, .jsonl, .parquet, got '.*a.xlsx'"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match=problem) as caught:
        read_columns(tmp_path / name, ["success"])
    assert "; " in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_missing_file_is_refused(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    with pytest.raises(TableError, match="must be readable"):
        read_columns(tmp_path / f"absent{suffix}", ["success"])


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(TableError, match=r"pip install 'apportion\[report\]'"):
        read_columns(tmp_path / "a.parquet", ["success"])


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfsuccess\r\n0.5\r\n")
    assert read_columns(tmp_path / "a.csv", ["success"]).numbers("success").tolist() == [0.5]


def test_written_counts_are_read_back(tmp_path: Path) -> None:
    write_counts(tmp_path / "a.csv", np.array([3, 5]), ["x, y", "z"])
    table = read_columns(tmp_path / "a.csv", ["id", "count"])
    assert table.cells["id"] == ("x, y", "z") and table.numbers("count").tolist() == [3, 5]
    write_counts(tmp_path / "b.csv", np.array([3]))
    assert (tmp_path / "b.csv").read_text().splitlines() == ["prompt,count", "0,3"]


def test_counts_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"written as .csv"):
        write_counts(tmp_path / "a.json", np.array([3]))
    with pytest.raises(TableError, match="cannot be written"):
        write_counts(tmp_path / "absent" / "a.csv", np.array([3]))
