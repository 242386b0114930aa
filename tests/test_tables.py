import json
import sys

import numpy as np
import pytest

from apportion.rows import TableError
from apportion.tables import read_columns
from tests.cases import check_all, lines
from tests.test_untrusted import ENDLESS, make_sparse

ROWS = [{"id": "a", "success": 0.5, "trials": 4}, {"id": "b", "success": 0.25, "trials": 2}]


def arrow():
    return pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet").write_table


def write(folder, suffix, rows=ROWS):
    path = folder / f"prompts{suffix}"
    if suffix == ".parquet":
        pyarrow, write_table = arrow()
        write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    texts = {
        ".csv": "id, success, trials\n" + "".join(f"{r['id']}, {r['success']}, {r['trials']}\n" for r in rows),
        ".jsonl": "".join(f"{r}\n".replace("'", '"') for r in rows),
    }
    path.write_text(texts[suffix])
    return path


def refused(path, problem, columns=("success",)):
    """Check that reading the numbers of ``path`` is refused with this problem, in one line; return it."""
    with pytest.raises(TableError, match=problem) as caught:
        read_columns(path, columns).numbers(columns[0])
    assert "; " in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def refuse_all(folder, cases):
    """Check that each file, given by its name and content, is refused with its problem."""

    def check(name, content, problem):
        (folder / name).write_bytes(content)
        refused(folder / name, problem)

    check_all(check, cases)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_columns_and_names_what_is_missing(tmp_path, suffix):
    path = write(tmp_path, suffix)
    table = read_columns(path, ["success"], ["id", "absent"])
    assert table.numbers("success").tolist() == [0.5, 0.25]
    assert table.cells.keys() == {"id", "success"} and table.cells["id"] == ("a", "b") and len(table) == 2
    told = refused(path, "must have a column rate, got id", ["rate"])
    assert suffix == ".parquet" or "success, trials" in told
    refused(tmp_path / f"absent{suffix}", "must be readable")


def test_a_cell_that_is_no_number_and_a_text_that_is_no_table_are_refused_with_their_line(tmp_path):
    cases = """
        a.csv   => success\\n0.5\\nhalf\\n => got 'half' in .*a.csv line 3
        a.csv   => success\\n0.5\\n\\nnan\\n => got 'nan' in .*a.csv line 4
        a.csv   => id,success\\na,\\n => got nothing in .*a.csv line 2
        a.csv   => success\\ninf\\n => got 'inf'
        a.csv   => success\\n1_0\\n => must be a finite number, got .* in .*a.csv line 2
        a.csv   => success\\n\uff11\\n => must be a finite number
        a.csv   => success\\n\u0663\\n => must be a finite number
        a.csv   => success\\n0.\u0665\\n => must be a finite number
        a.jsonl => {"success": 0.5}\\n{"success": true}\\n => got True in .*a.jsonl line 2
        a.jsonl => {"success": 0.5}\\n{"id": 3}\\n => got nothing in .*a.jsonl line 2
        a.jsonl => {"success": [0.5]}\\n => got \\[0.5\\]
        a.csv   => => at least one row, got none
        a.csv   => success\\n => at least one row, got none
        a.jsonl => \\n\\n => at least one row, got none
        a.csv   => id;success\\na;0.5\\n => must have commas between its cells, got id;success
        a.csv   => success,id\\n0.5\\n => must have 2 cells as the header, got 1 in .* line 2
        a.csv   => success,success\\n0.5,1\\n => must have different names
        a.csv   => success\\n"0.5\\n => must be CSV
        a.jsonl => {"success": 0.5}\\n{"success": \\n => must be JSON, got Expecting value in .* line 2
        a.jsonl => 0.5\\n => must be a JSON object, got 0.5 in .* line 1
        a.xlsx  => => must end in .csv, .jsonl, .parquet, got '.*a.xlsx'
        a.jsonl => {"success": 0.1, "success": 0.9} => the key 'success' twice in .* line 1
        a.jsonl => {"success": 0.5, "id": "\\ud800"} => half of a surrogate pair
        a.jsonl => {"success": NaN}\\n => must be JSON, got NaN, which is not JSON in .* line 1
    """
    refuse_all(tmp_path, [(name, text.replace("\\n", "\n").encode(), said) for name, text, said in lines(cases)])
    for cell in (10**400, "x" * 10**6, [[]] * 10**5, "\x1b[31m"):
        (tmp_path / "a.jsonl").write_text(json.dumps({"success": cell}))
        told = refused(tmp_path / "a.jsonl", "must be a finite number")
        assert len(told) < 500 and told.isprintable()
    refused(write(tmp_path, ".parquet", [{"success": 0.5}, {"success": None}]), "got nothing in .* row 2")


def test_bytes_that_are_not_a_table_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    cases = [
        ("a.csv", b"success\n\xff\n", "must be UTF-8"),
        ("a.parquet", b"no parquet at all", "must be Parquet"),
        ("a.parquet", b"", "must be Parquet"),
        ("a.jsonl", b"\0\0", "must be JSON, got Expecting value"),
        ("a.jsonl", '{"success": 0.5}'.encode("utf-16"), "must be UTF-8"),
    ]
    refuse_all(tmp_path, cases)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").touch()
    refused(tmp_path / "a.parquet", r"pip install 'apportion\[report\]'")


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfsuccess\r\n0.5\r\n")
    assert read_columns(tmp_path / "a.csv", ["success"]).numbers("success").tolist() == [0.5]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_is_a_file_and_no_pipe_device_or_endless_line(tmp_path, suffix):
    for name, make in ENDLESS.items():
        make(tmp_path / f"{name}{suffix}")
        refused(tmp_path / f"{name}{suffix}", r"a file must be readable, got .*; check its path")
    if suffix != ".parquet":
        make_sparse(tmp_path / f"a{suffix}")
        refused(tmp_path / f"a{suffix}", r"a line of 16,777,216 (characters|bytes) or more")


def varint(number):
    low, rest = number % 128, number // 128
    return bytes([low + 128]) + varint(rest) if rest else bytes([low])


def test_parquet_that_claims_a_trillion_rows_is_refused(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write(tmp_path, ".parquet", [{"success": 0.5}] * 77)
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - size : -8].replace(b"\x16" + varint(2 * 77), b"\x16" + varint(2 * 10**12))
    path.write_bytes(content[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert parquet.read_metadata(path).num_rows == 10**12
    refused(path, "at most 100,000,000 rows, got 1,000,000,000,000")


def test_parquet_that_unpacks_to_far_more_is_refused(tmp_path):
    pyarrow, write_table = arrow()
    once = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 10_000, pyarrow.int32()), ["x" * 1_000_000])
    write_table(pyarrow.table({"id": once}), tmp_path / "a.parquet", store_schema=False)
    with pytest.raises(TableError, match="at most 2,147,483,648 bytes when it is unpacked"):
        read_columns(tmp_path / "a.parquet", ["id"])


def test_parquet_of_another_type_is_refused(tmp_path):
    pyarrow, write_table = arrow()
    cells = [(pyarrow.timestamp("us"), 2**62), (pyarrow.binary(), b"\xff"), (pyarrow.list_(pyarrow.int64()), [1])]
    for kind, cell in cells:
        write_table(pyarrow.table({"success": pyarrow.array([cell], kind)}), tmp_path / "a.parquet")
        refused(tmp_path / "a.parquet", r"out of range|must be a finite number")


def test_a_parquet_table_whose_pages_do_not_match_their_checksums_is_refused(tmp_path):
    pyarrow, write_table = arrow()
    path = tmp_path / "table.parquet"
    numbers = [0.125, 0.25, 0.5]
    write_table(pyarrow.table({"p": numbers}), path, write_page_checksum=True, use_dictionary=False, compression="none")
    assert read_columns(path, ["p"]).numbers("p").tolist() == numbers
    whole, place = path.read_bytes(), path.read_bytes().index(np.array(numbers).tobytes())
    path.write_bytes(whole[: place + 5] + bytes([whole[place + 5] ^ 1]) + whole[place + 6 :])
    with pytest.raises(TableError, match=r"table\.parquet .*checksum"):
        read_columns(path, ["p"])


def test_a_small_file_that_unpacks_to_many_rows_is_refused_within_its_bound(tmp_path, monkeypatch):
    """The bound counts the objects of Python, which are many times the bytes of Arrow."""
    pyarrow, write_table = arrow()
    monkeypatch.setattr("apportion.rows.UNPACKED_BYTES", 2**22)
    path = tmp_path / "many.parquet"
    write_table(pyarrow.table({"success": [0.0] * 20_000}), path, compression="zstd")
    refused(path, "must need at most 4,194,304 bytes when it is unpacked, got more")
    assert path.stat().st_size < 20_000
    names = [f"column {place}" for place in range(200)]  # many cells in few rows
    write_table(pyarrow.table({name: [0.0] * 1000 for name in names}), path, compression="zstd")
    with pytest.raises(TableError, match="must need at most 4,194,304 bytes"):
        read_columns(path, names)


def test_columns_of_one_name_and_missing_ones_are_refused_before_rows_are_read(tmp_path):
    pyarrow, write_table = arrow()
    path = tmp_path / "twice.parquet"
    write_table(pyarrow.Table.from_arrays([[1.0], [2.0]], names=["success", "success"]), path)
    refused(path, "columns must have different names, got equal ones in")
    write_table(pyarrow.table({"other": [0.0] * 20_000}), path)
    refused(path, "must have a column success, got other")
