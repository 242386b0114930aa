"""One tiny policy in a folder for all tests of the TRL trainers. Nothing is downloaded."""

import functools
import os

import pytest

pytest.importorskip("trl")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers.utils import logging as transformers_logging

from tests.trl import tiny

torch.set_num_threads(1)
transformers_logging.disable_progress_bar()


def pytest_configure(config):
    # early versions of TRL take the standard deviation of a round's rewards even if the round has one row
    config.addinivalue_line("filterwarnings", r"ignore:std\(\). degrees of freedom is <= 0:UserWarning:trl\.trainer")


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """The folder of a saved policy with its tokenizer, because TRL loads a reference model only from a path."""
    folder = tmp_path_factory.mktemp("policy")
    tiny.make_policy().save_pretrained(folder)
    tiny.make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def make(policy, tmp_path):
    """Return a function that makes a trainer, see ``tiny.made``."""
    return functools.partial(tiny.made, policy=policy, folder=tmp_path)


@pytest.fixture
def run(make):
    """Return a function that trains, see ``tiny.run``."""
    return functools.partial(tiny.run, make)
