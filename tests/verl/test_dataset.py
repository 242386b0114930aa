"""The training data as the coordinator reads it, compared with verl's own trainer and workers."""

import asyncio
from types import SimpleNamespace

import pandas
import pytest
import torch
import yaml
from hydra import compose, initialize_config_module
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from apportion import DAPO
from apportion.verl import AllocatedAgentLoopManager, VerlAllocation
from apportion.verl.building import coordinator_of
from apportion.verl.dataset import TrainingPrompts, prompt_of
from tests.cases import refuse_lines
from tests.verl.cpu.assets import make_questions

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # verl's loader, of torchdata

OF_A_DISPATCH = {"uid", "global_steps", "agent_name"}
"""The columns that verl adds to a row for an agent loop."""

PLACEHOLDER = {"dummy_tensor"}
"""A column that verl gives every row so that a batch has a tensor. No agent loop reads it."""


@pytest.fixture
def configured(assets, tmp_path, monkeypatch):
    """``configured(questions, *overrides)``: verl's own configuration, with these rows to train on."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def made(questions, *overrides):
        path = tmp_path / "train.parquet"
        pandas.DataFrame(questions).to_parquet(path)
        given = [
            f"data.train_files={path}",
            f"data.val_files={assets}/val.parquet",
            f"actor_rollout_ref.model.path={assets}/policy",
            "data.train_batch_size=4",
            "data.dataloader_num_workers=0",
            "data.shuffle=False",
        ]
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", [*given, *overrides])

    return made


def batches(config, count=1):
    """What verl's trainer requests in its first steps."""
    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.trainer_mode, trainer.parameter_sync_step, trainer.global_steps = config, "sync", 1, 1
    trainer._init_tokenizer()
    trainer._init_dataloader()
    return [trainer._next_train_batch() for _ in range(count)]


def prompts_of(batch, id_key=None, rate_key=None):
    """Return the prompts of a batch as our manager reads them."""
    manager = SimpleNamespace(allocation=SimpleNamespace(id_key=id_key, rate_key=rate_key))
    return AllocatedAgentLoopManager._prompts(manager, batch)


class Receiver(AgentLoopWorkerTQ.__ray_actor_class__):
    """verl's worker, which records the rows that it would run agent loops on."""

    def __init__(self, config):
        self.config, self.background_tasks, self.received = config, set(), []

    async def _run_prompt(self, prompt, sampling_params, trajectory, trace=False):
        self.received.append(prompt)

    async def take(self, batch):
        await self.generate_sequences(batch)
        await asyncio.gather(*self.background_tasks)
        return self.received


def received(config, batch):
    return [row for chunk in batch.chunk(4) for row in asyncio.run(Receiver(config).take(chunk))]


def unlike():
    """Return rows with different contents: lists and dictionaries of several lengths, numbers, None.

    They also have columns that the trainer replaces by its own.
    """
    questions = make_questions(8)
    for i, question in enumerate(questions):
        question["uid"], question["global_steps"] = f"row {i}", i
        question["tools"] = ["add"] * i
        question["weight"] = i / 2
        question["note"] = None if i % 2 else "see below"
        question["extra_info"] |= {"tools_kwargs": {"add": {"create_kwargs": {"n": i}}}, "number": 10 + i}
    return questions


def test_a_row_that_is_drawn_is_what_verl_would_dispatch(configured):
    """From the file through its loader and its workers; the one is not the other's epoch, so rows are matched."""
    config = configured(unlike())
    requested = [row for batch in batches(config, 2) for row in received(config, batch)]
    drawn = {prompt.id: prompt.data for prompt in TrainingPrompts(config, None).draw(8, set())}
    assert len(requested) == len(drawn) == 8 and not any(row["uid"].startswith("row") for row in requested)
    for row in requested:
        data = drawn[prompt_of(row).id]
        assert row.keys() >= OF_A_DISPATCH and data.keys() == row.keys() - OF_A_DISPATCH - PLACEHOLDER
        for key, value in data.items():
            assert type(value) is type(row[key])
            assert torch.equal(value, row[key]) if isinstance(value, torch.Tensor) else value == row[key], key


def row(content, **more):
    return {"raw_prompt": [{"role": "user", "content": content}], **more}


def test_an_id_is_of_the_text_and_the_data_source_and_without_a_text_of_what_else_a_row_holds():
    """The latter as where an environment asks."""
    one = row("6 x 7?", data_source="sums", extra_info={"index": 0})
    others = (
        one | {"data_source": "products"},
        row("6 x 7?"),
        one | {"raw_prompt": [{"role": "system", "content": "Be brief."}, *one["raw_prompt"]]},
    )
    assert prompt_of(one) == prompt_of(one | {"extra_info": {"index": 5}, "uid": "b2f1"})
    assert len({prompt_of(each).id for each in (one, *others)}) == 4
    first, second, third = (prompt_of(row("", extra_info={"seed": seed})) for seed in (1, 2, 1))
    assert first == third and first.id != second.id and "seed" in first.text


WRONG_ROWS = r"""
    {}; id_key: number => ^allocation\.id_key must .* which has none, got 'number'
    null; id_key: number => ^allocation\.id_key must .* which has none, got 'number'
    {index: 3, split: 0}; id_key: number => ^allocation\.id_key must .* which has index, split, got 'number'
    {number: null}; id_key: number => ^allocation\.id_key must .* a value in every row, got None for 'number' of '6 x
    {number: .nan}; id_key: number => a value in every row, got nan
    {rate: 7}; rate_key: pass => ^allocation\.rate_key must be a key of .* which has rate, got 'pass'
    {rate: 7}; rate_key: rate => ^allocation\.rate_key must .* must be a number between 0 and 1, got 7
"""


def test_a_key_that_is_not_there_an_id_without_a_value_and_a_rate_that_is_none_are_errors():
    def read(text):
        extra, keys = map(yaml.safe_load, text.split("; "))
        return prompt_of(row("6 x 7?", extra_info=extra), **keys)

    refuse_lines(read, WRONG_ROWS)


def test_rows_are_numbered_as_in_the_trainers_data_set(configured):
    """A selector chooses rows by number, of which some may hold the same prompt."""
    config = configured([*unlike(), *unlike()[:4]])
    for id_key in (None, "number"):
        rows = TrainingPrompts(config, id_key)
        requested = [prompt for batch in batches(config, 3) for prompt in prompts_of(batch, id_key)]
        assert [(p.id, p.text) for p in rows.in_order()] == [(p.id, p.text) for p in requested]
        assert [rows.at(row).id for row in range(12)] == [prompt.id for prompt in requested]
        assert all(prompt.data.group == prompt.data.uid for prompt in requested)
        assert len({prompt.data.uid for prompt in requested}) == 12
        assert (rows.distinct(3), rows.distinct(9), len(rows.all())) == (3, 8, 8)
    assert [prompt.id for prompt in rows.all()] == [str(10 + i) for i in range(8)]
    assert rows.at(3).data["note"] is None and rows.at(3).data["raw_prompt"] == unlike()[3]["prompt"]


def test_known_rates_come_with_the_prompts_of_the_trainer_and_of_the_data(configured):
    questions = make_questions(4)
    for i, question in enumerate(questions):
        question["extra_info"]["pass_rate"] = None if i == 2 else i / 4
    config = configured(questions)
    rows = TrainingPrompts(config, None, "pass_rate")
    for found in (rows.in_order(), rows.all(), [rows.at(row) for row in range(4)], rows.draw(4, set())):
        assert {prompt.text: prompt.rate for prompt in found} == RATES
    assert {prompt.text: prompt.rate for prompt in prompts_of(batches(config)[0], rate_key="pass_rate")} == RATES


RATES = dict(zip((row["prompt"][0]["content"] for row in make_questions(4)), (0.0, 0.25, None, 0.75), strict=True))


def test_it_goes_on_where_it_was(configured):
    config = configured(make_questions(8))
    rows, later = TrainingPrompts(config, None), TrainingPrompts(config, None)
    first = rows.draw(5, set())
    later.drawn = rows.drawn
    assert later.draw(3, set()) == rows.draw(3, set()) and later.drawn == rows.drawn == 8
    assert not {prompt.id for prompt in first} & {prompt.id for prompt in later.draw(3, {p.id for p in first})}


def test_the_seed_of_the_data_decides_the_order_and_the_part_that_verl_takes_at_random(configured):
    """Without a seed that would be another one each time that the data set is made."""

    def order(*overrides):
        rows = TrainingPrompts(configured(make_questions(16), *overrides), None)
        return [prompt.id for prompt in rows.draw(16, set())]

    assert order("data.shuffle=True") == order("data.shuffle=True", "data.seed=0")
    assert order("data.shuffle=True", "data.seed=0") != order("data.shuffle=True", "data.seed=1")
    in_order = [prompt.id for prompt in TrainingPrompts(configured(make_questions(16)), None).in_order()]
    assert order("data.shuffle=False", "data.seed=1") == in_order
    some = ("data.train_max_samples=4", "data.shuffle=True")
    config = configured(make_questions(16), *some, "data.seed=3")
    assert {p.id for p in TrainingPrompts(config, None).all()} == {p.id for p in prompts_of(batches(config)[0])}
    with pytest.raises(ValueError, match=r"data\.seed must be a number"):
        TrainingPrompts(configured(make_questions(16), *some), None).all()


def test_a_rule_that_may_draw_more_prompts_than_there_are_is_refused_before_the_first_step(configured):
    config, draws = (
        configured(make_questions(9)),
        lambda most: VerlAllocation(allocator=DAPO(rollouts_per_prompt=2, max_draws=most)),
    )
    with pytest.raises(ValueError, match=r"must have 12 distinct prompts, the 4 .* the 8 that dapo may draw .*got 9"):
        coordinator_of(config, draws(3))
    assert coordinator_of(config, draws(2)).extra_prompts.drawn == 0
