"""Tests that every arm of the label-free benchmark is a valid training."""

import pytest

pytest.importorskip("torch")

from apportion.lab.study.design import read_study
from benchmarks.label_free import config_of

NAMES = ["label_free", *(f"label_free_{part}" for part in ("rates", "votes", "settings", "drift"))]


def test_every_arm_of_a_study_is_a_valid_training():
    for name in NAMES:
        study = read_study(config_of(name), [], None, resume=False)
        assert study.name == name and len(study.seeds) == len(set(study.seeds))
        assert all(study.training_of(arm).labels == "none" for arm in study.allocators)
