"""The training data as the coordinator reads it, compared with verl's own trainer and workers."""

import asyncio
from types import SimpleNamespace

import pandas
import pytest
import torch
from hydra import compose, initialize_config_module
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from apportion.verl import AllocatedAgentLoopManager
from apportion.verl.dataset import TrainingPrompts, prompt_of
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


def received(config, batch, workers=1):
    return [row for chunk in batch.chunk(workers) for row in asyncio.run(Receiver(config).take(chunk))]


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


@pytest.mark.parametrize("workers", [1, 4])
def test_a_row_that_is_drawn_is_what_verl_would_dispatch(configured, workers):
    """From the file through its loader and its workers; the one is not the other's epoch, so rows are matched."""
    config = configured(unlike())
    requested = [row for batch in batches(config, 2) for row in received(config, batch, workers)]
    drawn = {prompt.id: prompt.data for prompt in TrainingPrompts(config, None).draw(8, set())}
    assert len(requested) == len(drawn) == 8 and not any(row["uid"].startswith("row") for row in requested)
    for row in requested:
        data = drawn[prompt_of(row).id]
        assert row.keys() >= OF_A_DISPATCH and data.keys() == row.keys() - OF_A_DISPATCH - PLACEHOLDER
        for key, value in data.items():
            assert type(value) is type(row[key])
            assert torch.equal(value, row[key]) if isinstance(value, torch.Tensor) else value == row[key], key


@pytest.mark.parametrize("id_key", [None, "number"])
def test_prompts_of_a_dispatch_are_those_of_the_data(configured, id_key):
    config = configured(unlike())
    requested = [prompt for batch in batches(config, 2) for prompt in prompts_of(batch, id_key)]
    ours = TrainingPrompts(config, id_key).all()
    assert [(p.id, p.text) for p in requested] == [(p.id, p.text) for p in ours]
    assert [p.text for p in ours] == [row["prompt"][0]["content"] for row in unlike()]
    if id_key:
        assert [p.id for p in ours] == [str(10 + i) for i in range(8)]
    assert all(prompt.data.group == prompt.data.uid for prompt in requested)
    assert len({prompt.data.uid for prompt in requested}) == 8


def test_an_id_is_of_the_text_and_the_data_source():
    row = {"raw_prompt": [{"role": "user", "content": "6 x 7?"}], "data_source": "sums", "extra_info": {"index": 0}}
    again = row | {"extra_info": {"index": 5}, "uid": "b2f1"}
    others = (
        row | {"data_source": "products"},
        {"raw_prompt": row["raw_prompt"]},
        row | {"raw_prompt": [{"role": "system", "content": "Be brief."}, *row["raw_prompt"]]},
    )
    assert prompt_of(row) == prompt_of(again)
    assert len({prompt_of(each).id for each in (row, *others)}) == 4


def test_rows_without_a_text_are_told_apart_by_what_else_they_hold():
    """As where an environment asks."""
    rows = [{"raw_prompt": [{"role": "user", "content": ""}], "extra_info": {"seed": seed}} for seed in (1, 2, 1)]
    first, second, third = (prompt_of(row) for row in rows)
    assert first == third and first.id != second.id and "seed" in first.text


@pytest.mark.parametrize("extra", [{}, None, {"index": 3, "split": "train"}])
def test_an_id_key_that_is_not_there_is_an_error(extra):
    row = {"raw_prompt": [{"role": "user", "content": "6 x 7?"}], "extra_info": extra}
    has = "index, split" if extra else "none"
    with pytest.raises(ValueError, match=rf"^allocation\.id_key must .* which has {has}, got 'number'"):
        prompt_of(row, "number")


def test_rows_are_numbered_as_in_the_trainers_data_set(configured):
    """A selector chooses rows by number, of which some may hold the same prompt."""
    config = configured([*unlike(), *unlike()[:4]])
    rows, requested = TrainingPrompts(config, None), [row for batch in batches(config, 3) for row in prompts_of(batch)]
    assert [prompt.id for prompt in rows.in_order()] == [prompt.id for prompt in requested]
    assert [rows.at(row).id for row in range(12)] == [prompt.id for prompt in requested]
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


def test_a_rate_key_that_is_not_there_and_a_rate_that_is_none_are_errors():
    row = {"raw_prompt": [{"role": "user", "content": "6 x 7?"}], "extra_info": {"pass_rate": 7}}
    with pytest.raises(
        ValueError, match=r"^allocation\.rate_key must be a key of extra_info, which has pass_rate, got 'rate'"
    ):
        prompt_of(row, rate_key="rate")
    with pytest.raises(
        ValueError, match=r"^allocation\.rate_key must .* rate of a prompt must be a number between 0 and 1, got 7"
    ):
        prompt_of(row, rate_key="pass_rate")


def test_prompts_that_are_there_more_than_once_count_once(configured):
    questions = make_questions(4)
    rows = TrainingPrompts(configured([*questions, *questions[:2]]), None)
    assert len(rows.all()) == 4 and (rows.distinct(3), rows.distinct(9)) == (3, 4)
    drawn = rows.draw(4, set())
    assert {prompt.id for prompt in drawn} == {prompt.id for prompt in rows.all()} and len(drawn) == 4


def test_what_is_held_is_never_drawn(configured):
    rows = TrainingPrompts(configured(make_questions(8)), None)
    everything = [prompt.id for prompt in rows.all()]
    for start in range(8):
        held = set((everything * 2)[start : start + 5])
        assert {prompt.id for prompt in rows.draw(3, held)} == set(everything) - held
    with pytest.raises(ValueError, match="must have 4 more prompts than the 5 of this batch, got 3"):
        rows.draw(4, held)


def test_drawing_goes_through_all_prompts_before_one_comes_again_and_in_another_order(configured):
    rows = TrainingPrompts(configured(make_questions(16)), None)
    first, second = ([prompt.id for prompt in rows.draw(16, set())] for _ in range(2))
    assert set(first) == set(second) and first != second
    assert rows.drawn == 32


@pytest.mark.parametrize("before", [7, 21])
@pytest.mark.parametrize("made", [True, False], ids=["data set made", "not yet"])
def test_it_goes_on_where_it_was(configured, before, made):
    config = configured(make_questions(8))

    def drawn(rows, count):
        return [prompt.id for _ in range(count) for prompt in rows.draw(1, set())]

    whole = drawn(TrainingPrompts(config, None), before + 10)
    rows, later = TrainingPrompts(config, None), TrainingPrompts(config, None)
    assert rows.drawn == 0 and drawn(rows, before) == whole[:before]
    if made:
        later.all()
    later.drawn = rows.drawn
    assert later.drawn == before
    assert drawn(later, 10) == whole[before:]


def test_the_seed_of_the_data_decides_the_order(configured):
    def order(*overrides):
        rows = TrainingPrompts(configured(make_questions(16), *overrides), None)
        return [prompt.id for prompt in rows.draw(16, set())]

    assert order() == order("data.seed=0") == order("data.seed=0") != order("data.seed=1")


def test_only_the_part_that_verl_trains_on_is_drawn_from(configured):
    config = configured(make_questions(16), "data.train_max_samples=5")
    assert [p.id for p in TrainingPrompts(config, None).all()] == [
        prompt_of({"raw_prompt": row["prompt"], "data_source": "toy"}).id for row in make_questions(5)
    ]


@pytest.mark.parametrize("seed", [3, None])
def test_a_part_that_verl_takes_at_random_is_the_same_here(configured, seed):
    """Without a seed it would be another one each time that the data set is made."""
    seed_given = [] if seed is None else [f"data.seed={seed}"]
    config = configured(make_questions(16), "data.train_max_samples=4", "data.shuffle=True", *seed_given)
    rows = TrainingPrompts(config, None)
    if seed is None:
        with pytest.raises(ValueError, match=r"data\.seed must be a number"):
            rows.all()
        return
    assert {p.id for p in rows.all()} == {p.id for p in prompts_of(batches(config)[0])}
