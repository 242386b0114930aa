import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from apportion.config import build, dump, to_toml
from apportion.data import NAMED, TEMPLATES, Data
from apportion.verifiers import VERIFIERS, Choice, Exact, Math, Verifier


@dataclass(frozen=True)
class Job:
    data: Data
    verifier: Verifier | None = None


def job(table):
    return build(Job, tomllib.loads(table))


def test_a_job_gives_its_data_and_its_verifier_in_toml():
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
def test_a_verifier_is_chosen_by_name(name):
    if name == "math":
        pytest.importorskip("math_verify")
    settings = {"function": "operator:contains"} if name == "function" else {}
    assert build(Verifier, {"name": name, **settings}) == VERIFIERS[name](**settings)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_set_comes_with_a_verifier_that_reads_what_its_template_asks_for(name):
    if NAMED[name].verifier == "math":
        pytest.importorskip("math_verify")
    data = Data(name=name)
    verifier = data.make_verifier()
    assert data.chosen_template is TEMPLATES[NAMED[name].template] and verifier.name == NAMED[name].verifier
    if isinstance(verifier, Math):
        assert verifier.extract == data.chosen_template.extractor
    verifier.close()


def test_the_template_decides_how_answers_are_read_unless_the_user_does():
    pytest.importorskip("math_verify")
    data = Data(name="math500", template="answer")
    assert data.make_verifier() == Math(extract="answer_line")
    assert data.make_verifier(Exact()) == Exact(extract="answer_line")
    assert data.make_verifier(Exact(extract="boxed")) == Exact(extract="boxed")
    assert data.make_verifier(Choice()) == Choice()
    assert Data(hub="a/b").make_verifier() == Math(extract="boxed")
