"""The lab as a source of models and problems for training jobs."""

import pytest

from apportion.lab.policy.export import problems_file
from apportion.lab.policy.job_source import LabSource
from apportion.trl.jobs.sources import ModelSource, find_source

SOURCES = {"lab:": LabSource}


def test_names_of_the_lab_are_told_from_others():
    source, name = find_source("lab:forks", SOURCES)
    assert isinstance(source, LabSource) and name == "forks"
    assert find_source("./medium", SOURCES) is None and find_source(None, SOURCES) is None


def test_a_base_that_the_lab_does_not_have_is_refused():
    source: ModelSource = LabSource()
    for ask in (source.model, lambda name: source.data(name, {})):
        with pytest.raises(ValueError, match=r"base must be easy, medium, hard, forks, or a folder .*, got 'mediun'"):
            ask("mediun")


def test_a_model_is_known_before_it_is_trained(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = LabSource().model("medium")
    assert model.description == "of the lab, trained first, then cached"
    assert (model.max_new_tokens, model.max_positions) == (14, 128)
    assert (
        model.lengths(["7 a+3 =", "7 ="])
        == [4, 2]
        == [len(model.tokenizer().encode(text)) for text in ("7 a+3 =", "7 =")]
    )


def test_problems_take_the_place_of_a_data_set(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = LabSource().data("medium", {"split": "test", "limit": 5})
    assert data == {"template": "plain", "path": str(problems_file("medium", held_out=True)), "limit": 5}
    with pytest.raises(ValueError, match="split must be one of train, test for the lab, got 'dev'"):
        LabSource().data("medium", {"split": "dev"})
