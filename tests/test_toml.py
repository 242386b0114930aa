from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.config import ConfigError, load, to_toml

scalars = st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_any_table_survives_a_round_trip_through_toml(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_settings_after_a_table_stay_at_their_level() -> None:
    table = {"inner": {"a": 1}, "outer": 2}
    assert tomllib.loads(to_toml(table)) == table


def test_none_is_left_out_of_tables_and_refused_in_lists() -> None:
    assert tomllib.loads(to_toml({"a": None, "b": [{"c": None}]})) == {"b": [{}]}
    with pytest.raises(ConfigError, match="got None"):
        to_toml({"a": [None]})


@pytest.mark.parametrize(
    ("overrides", "table"),
    [
        (["a=3"], {"a": 3}),
        (["a = 0.5"], {"a": 0.5}),
        (["a=true"], {"a": True}),
        (["a=dr_grpo"], {"a": "dr_grpo"}),
        (["a=runs/x y"], {"a": "runs/x y"}),
        (["a=x=y"], {"a": "x=y"}),
        (['a=""'], {"a": ""}),
        (["a=[1, 2]"], {"a": [1, 2]}),
        (["a={b = 1}"], {"a": {"b": 1}}),
        (["a.b.c=1", "a.b.d=2"], {"a": {"b": {"c": 1, "d": 2}}}),
        (['"x.y".z=1'], {"x.y": {"z": 1}}),
        (["a=1", "a=2"], {"a": 2}),
        (["a=gp", "a={name = 'gp'}", "a.clip=0.1"], {"a": {"name": "gp", "clip": 0.1}}),
        (["a=1\nb=2"], {"a": "1\nb=2"}),
    ],
)
def test_overrides(overrides: list[str], table: dict[str, Any]) -> None:
    assert load(None, overrides) == table


def test_overrides_replace_values_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('steps = 3\n[arms.main]\nname = "vip"\n')
    assert load(path, ["steps=4", "arms.main.low=5"]) == {"steps": 4, "arms": {"main": {"name": "vip", "low": 5}}}
    assert load(path)["steps"] == 3


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["a"], "must be key=value, got 'a'"),
        (["a="], "must be key=value"),
        (["=3"], "must be key=value"),
        (["a..b=3"], "must be key=value"),
        (["a b=3"], "must be key=value"),
        (["a\nb=3"], "must be key=value"),
        (["a=[1"], "must be TOML, got 'a=\\[1': Unclosed"),
        (["a='b"], "must be TOML"),
        (["a.b=1", "a=3"], "a is a table, got 3 to replace it"),
        (["a=3", "a.b.c=1"], "a must be a table to set a.b.c, got 3"),
    ],
)
def test_an_invalid_override_is_refused(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load(None, overrides)
    assert "; " in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
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
