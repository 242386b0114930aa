import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.config import ConfigError, load, to_toml
from apportion.toml import check_folder_name
from apportion.untrusted import CONFIG_BYTES
from tests.cases import check_all, check_refused, lines
from tests.test_untrusted import ENDLESS

scalars = st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_any_table_survives_a_round_trip_through_toml(table):
    assert tomllib.loads(to_toml(table)) == table


def test_none_is_left_out_of_tables_and_refused_in_lists():
    assert tomllib.loads(to_toml({"a": None, "b": [{"c": None}]})) == {"b": [{}]}
    with pytest.raises(ConfigError, match="got None"):
        to_toml({"a": [None]})


def test_overrides():
    table = """
        a=3            => {"a": 3}
        a = 0.5        => {"a": 0.5}
        a=true         => {"a": true}
        a=dr_grpo      => {"a": "dr_grpo"}
        a=runs/x y     => {"a": "runs/x y"}
        a=x=y          => {"a": "x=y"}
        a=""           => {"a": ""}
        a=[1, 2]       => {"a": [1, 2]}
        a={b = 1}      => {"a": {"b": 1}}
        a.b.c=1 && a.b.d=2 => {"a": {"b": {"c": 1, "d": 2}}}
        "x.y".z=1      => {"x.y": {"z": 1}}
        a=1 && a=2     => {"a": 2}
        a=gp && a={name = 'gp'} && a.clip=0.1 => {"a": {"name": "gp", "clip": 0.1}}
    """
    for overrides, expected in lines(table):
        assert load(None, overrides.split(" && ")) == json.loads(expected)
    assert load(None, ["a=1\nb=2"]) == {"a": "1\nb=2"}


def test_overrides_replace_values_of_the_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('steps = 3\n[arms.main]\nname = "vip"\n')
    assert load(path, ["steps=4", "arms.main.low=5"]) == {"steps": 4, "arms": {"main": {"name": "vip", "low": 5}}}
    assert load(path)["steps"] == 3


def refused(overrides):
    with pytest.raises(ConfigError) as caught:
        load(None, overrides)
    told = str(caught.value)
    assert "; " in told and len(told) < 500
    return told


def test_an_invalid_or_hostile_override_is_one_short_config_error():
    table = """
        a        => must be key=value, got 'a'
        a=       => must be key=value
        =        => must be key=value
        =3       => must be key=value
        a..b=3   => must be key=value
        a b=3    => must be key=value
        a=[1     => must be TOML, got 'a=[1': Unclosed
        a='b     => must be TOML
        a.b=1 && a=3   => a is a table, got 3 to replace it
        a=3 && a.b.c=1 => a must be a table to set a.b.c, got 3
    """

    def check(overrides, problem):
        assert problem in refused(overrides.split(" && "))

    check_all(check, lines(table))
    hostile = [".".join(["a"] * 10_000) + "=1", "x=" + "[" * 5000, "x=" + "9" * 5000, "k" * 100_000, "a\nb=1"]
    check_all(lambda override: refused([override]), [(override,) for override in hostile])


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"missing.toml \(No such file"):
        load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path)
    path = tmp_path / "bad.toml"
    path.write_text("a = 1\nb = \n")
    with pytest.raises(ConfigError, match=r"bad.toml: .*line 2"):
        load(path)
    path.write_bytes(b"a = '\xff'\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(path)


def test_a_hostile_file_is_one_config_error(tmp_path):
    path = tmp_path / "a.toml"

    def check(content, problem):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=problem) as refused:
            load(path)
        assert len(str(refused.value)) < 500

    cases = [
        (b"x = " + b"[" * 5000 + b"]" * 5000, "more than 64 levels of nesting"),
        (b"x = " + b"{a = " * 5000 + b"1" + b"}" * 5000, "more than 64 levels of nesting"),
        (b".".join([b"a"] * 100_000) + b" = 1", "a key of more than 64 parts"),
        (b"[" + b' . "a.b"' * 100 + b"]", "a key of more than 64 parts|Invalid"),
        (b"x = " + b"9" * 5000, "an integer of thousands of digits"),
        (b"x = 1\nx = 2", "overwrite"),
        (b'x = "\x00"', "must be TOML"),
        (b'x = "\xff"', "must be UTF-8"),
        ("x = 1".encode("utf-16"), "must be UTF-8"),
        (b"#" * (CONFIG_BYTES + 1), "it has 1,048,577 bytes, and at most 1,048,576 are read"),
    ]
    check_all(check, cases)
    path.unlink()
    for make in ENDLESS.values():  # pipes and devices, which are no files
        make(path)
        with pytest.raises(ConfigError, match=r"cannot be read, got .* give a TOML file"):
            load(path)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 2\r\n")
    assert load(tmp_path / "a.toml") == {"x": 1, "y": 2}


def test_dots_in_text_and_numbers_are_no_long_key(tmp_path):
    (tmp_path / "a.toml").write_text(
        f'x = "{"a." * 500}"\ny = {[0.5] * 500}\n# {"a." * 500}\nz = """\n{"a." * 500}"""\n'
    )
    assert load(tmp_path / "a.toml")["y"] == [0.5] * 500


def test_a_name_that_is_no_plain_folder_is_refused():
    told = r"plain folder name of at most 200 bytes, got .*; results go to"
    names = ["", ".", "..", "a/b", "/", "n" * 300, "a\x1b[31m", "a\0b"]
    check_refused(ConfigError, lambda name: check_folder_name(name, Path("runs")), [(name, told) for name in names])
