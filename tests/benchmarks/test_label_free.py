"""Tests that every arm of the label-free benchmark is a valid training."""

import pytest

pytest.importorskip("torch")

from apportion.lab.study.design import read_study
from benchmarks.label_free import RULES, UPDATES, config_of

NAMES = ["label_free", *(f"label_free_{part}" for part in ("rates", "votes", "settings", "drift"))]
STUDIES = {name: read_study(config_of(name), [], None, resume=False) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_of_a_study_is_a_valid_training(name):
    study = STUDIES[name]
    assert study.name == name and len(study.seeds) == len(set(study.seeds))
    assert all(study.training_of(arm).labels == "none" for arm in study.allocators)


def test_the_arms_are_every_update_under_every_rule():
    assert list(STUDIES["label_free"].allocators) == [f"{update}-{rule}" for update in UPDATES for rule in RULES]
    assert list(STUDIES["label_free_rates"].allocators) == list(UPDATES)


def test_the_seeds_of_the_votes_study_are_used_nowhere_else():
    others = [seed for name, study in STUDIES.items() if name != "label_free_votes" for seed in study.seeds]
    assert not {*others} & {*STUDIES["label_free_votes"].seeds}
