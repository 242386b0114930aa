from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from apportion.config import ConfigError, build, dump, to_toml
from apportion.data import NAMED, TEMPLATES, Data
from apportion.verifiers import VERIFIERS, Choice, Exact, Math, Verifier


@dataclass(frozen=True)
class Job:
    data: Data
    verifier: Verifier | None = None


def job(table: str) -> Job:
    return build(Job, tomllib.loads(table))


def test_a_job_gives_its_data_and_its_verifier_in_toml() -> None:
    pytest.importorskip("math_verify")
    table = """
    verifier = { name = "math", extract = "boxed", timeout_seconds = 2 }
    [data]
    path = "folder/sums.jsonl"
    prompt_column = "text"
    template = "Q: {question}"
    limit = 5
    seed = 0
    """
    data = Data(path=Path("folder/sums.jsonl"), prompt_column="text", template="Q: {question}", limit=5, seed=0)
    assert job(table) == Job(data, Math(extract="boxed", timeout_seconds=2.0))
    assert build(Job, tomllib.loads(to_toml(dump(job(table))))) == job(table)


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_a_verifier_is_chosen_by_name(name: str) -> None:
    if name == "math":
        pytest.importorskip("math_verify")
    settings = {"function": "operator:contains"} if name == "function" else {}
    assert build(Verifier, {"name": name, **settings}) == VERIFIERS[name](**settings)  # type: ignore[type-abstract]


@pytest.mark.parametrize("name", NAMED)
def test_a_named_set_comes_with_a_verifier_that_reads_what_its_template_asks_for(name: str) -> None:
    if NAMED[name].verifier == "math":
        pytest.importorskip("math_verify")
    data = Data(name=name)
    verifier = data.make_verifier()
    assert data.chosen_template is TEMPLATES[NAMED[name].template] and verifier.name == NAMED[name].verifier
    if isinstance(verifier, Math):
        assert verifier.extract == data.chosen_template.extractor
    verifier.close()


def test_the_template_decides_how_answers_are_read_unless_the_user_does() -> None:
    pytest.importorskip("math_verify")
    data = Data(name="math500", template="answer")
    assert data.make_verifier() == Math(extract="answer_line")
    assert data.make_verifier(Exact()) == Exact(extract="answer_line")
    assert data.make_verifier(Exact(extract="boxed")) == Exact(extract="boxed")
    assert data.make_verifier(Choice()) == Choice()
    assert Data(hub="a/b").make_verifier() == Math(extract="boxed")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "data must have one of name, path and hub, got none; give one"),
        ({"name": "aime24", "hub": "a/b"}, "got name and hub; give one"),
        ({"path": "a.csv", "hub": "a/b"}, "got path and hub; give one"),
        ({"name": "aime24", "path": "a.csv", "hub": "a/b"}, "got name and path and hub; give one"),
        ({"name": "math_500"}, "name must be a known set, got 'math_500'; did you mean 'math500'?"),
        ({"path": "a.txt"}, "path must end in .csv, .jsonl, .parquet, got 'a.txt'; correct it, or give it as hub"),
        ({"hub": "data/a.jsonl"}, "hub must not be a file, got 'data/a.jsonl'; correct it, or give it as path"),
        ({"path": "a.csv", "split": "test"}, "subset and split are for the hub, got them with the file a.csv"),
        ({"name": "aime24", "path": "a.csv", "subset": "x"}, "subset and split are for the hub"),
        ({"name": "aime24", "limit": 0}, "limit must be at least 1, got 0; leave it out"),
        ({"name": "aime24", "template": "Just answer."}, "template must be a name or a text with {question}"),
        ({"name": "aime24", "templat": "boxed"}, "has no key 'templat'; did you mean 'template'?"),
    ],
)
def test_an_invalid_source_is_refused_in_one_line(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Job, {"data": settings})
    assert problem in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("data")
