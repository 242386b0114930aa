"""tinker-cookbook's own training loop, on a service in this process."""

import pytest

pytest.importorskip("tinker_cookbook", reason="tinker-cookbook is not installed")

import asyncio
import json
import logging

import torch
from tinker_cookbook.rl import train
from tinker_cookbook.tokenizer_utils import register_tokenizer

from apportion.lab.world.tokenizer import ledger_tokenizer
from tests.tinker.problems import QuestionsBuilder
from tests.tinker.service import Service

MODEL = "tests/ledger"

torch.set_num_threads(1)
register_tokenizer(MODEL, ledger_tokenizer)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """The loop looks up prices in the net, and sets up logging for the whole process."""
    monkeypatch.setattr(train, "fetch_model_pricing", lambda model: None)
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers = handlers


@pytest.fixture
def service(monkeypatch):
    service = Service()
    monkeypatch.setattr(train.tinker, "ServiceClient", service)
    return service


@pytest.fixture
def configured(tmp_path):
    """Return a function that makes a configuration: problems, then settings of the loop."""

    def make(problems=None, **settings):
        given = {
            "dataset_builder": QuestionsBuilder(**problems or {}),
            "learning_rate": 1e-3,
            "model_name": MODEL,
            "recipe_name": "test",
            "max_tokens": 2,
            "log_path": str(tmp_path / "run"),
            "eval_every": 0,
            "save_every": 0,
            "num_groups_to_log": 0,
        }
        return train.Config(**given | settings)

    return make


@pytest.fixture
def run(service):
    """Return a function that trains to the end, within two minutes, and returns the log."""

    def train_to_the_end(config, **arguments):
        async def bounded():
            await asyncio.wait_for(train.main(config, **arguments), 120)

        asyncio.run(bounded())
        with open(f"{config.log_path}/metrics.jsonl") as log:
            return [json.loads(line) for line in log]

    return train_to_the_end
