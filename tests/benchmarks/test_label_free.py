"""Tests that every arm of the label-free benchmark is a valid training."""

import pytest

pytest.importorskip("torch")

from apportion.lab.study.design import read_study
from benchmarks import label_free
from benchmarks.label_free_runs import SEEDS, configured, plain_arms

STUDIES = {
    "rates": (label_free.rate_arms(), label_free.SWEEP_SEEDS, {}),
    "main": (label_free.main_arms(dict.fromkeys(label_free.UPDATES, 3e-4)), SEEDS, {}),
    "votes": (plain_arms(label_free.VOTES), label_free.VOTE_SEEDS, label_free.GRPO),
    "settings": (plain_arms(label_free.SETTINGS), SEEDS, label_free.GRPO),
    "drift": (label_free.drift_arms(), SEEDS, label_free.STREAM),
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_of_a_study_is_a_valid_training(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    arms, seeds, training = STUDIES[name]
    study = read_study(configured(name, arms, seeds, **training), [], None, resume=False)
    assert list(study.allocators) == list(arms) and study.seeds == seeds and len(seeds) == len(set(seeds))
    assert all(study.training_of(arm).labels == "none" for arm in arms)
    for arm, given in arms.items():
        assert all(getattr(study.training_of(arm), key) == value for key, value in given.training.items())


def test_the_seeds_of_the_votes_study_are_used_nowhere_else():
    assert not {*SEEDS, *label_free.SWEEP_SEEDS} & {*label_free.VOTE_SEEDS}
