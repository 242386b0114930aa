"""axolotl's YAML names the allocator: the plugin on a stand-in."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from trl import GRPOConfig, GRPOTrainer

from apportion import HORA
from apportion.config import ConfigError
from apportion.selection import Mixed
from apportion.trl.axolotl.section import TRAINER, read_allocation, with_trainer
from tests.cases import lines, settings_of
from tests.trl import axolotl_stand_in
from tests.trl.tiny import Judge, configured, make_questions, make_tokenizer, trained

HORA_SECTION = {"allocator": {"name": "hora", "pre_rollouts": 4, "rollouts_per_prompt": 8}}


def config(**changed):
    return {"rl": "grpo", "trl": {"num_generations": 8}, "apportion": HORA_SECTION} | changed


def test_the_section_is_read_as_the_toml_of_a_job():
    found = read_allocation(
        {**HORA_SECTION, "selection": "mixed", "weighting": "prompt", "rollout_log": "out/rollouts"}
    )
    assert found.allocator == HORA(pre_rollouts=4, rollouts_per_prompt=8)
    assert isinstance(found.selection, Mixed) and found.rollout_log == Path("out/rollouts")


REFUSED = """
apportion = {} => apportion.allocator must be given, or a preset, which has one, got neither
apportion = {allocator = "horra"} => must have a known name, got 'horra'; did you mean 'hora'?
apportion = {allocator = "hora", selektion = "mixed"} => has no key 'selektion'; did you mean 'selection'?
rl = "dpo" => rl must be one of grpo, gdpo under an allocator, got dpo
context_parallel_size = 2 => context_parallel_size must be 1 under an allocator, got 2
trl = {async_prefetch = true} => trl.async_prefetch must be false under an allocator
trl = {use_data_producer = true} => trl.use_data_producer must be false under an allocator
trainer_cls = "mine.Trainer" => trainer_cls must be left out under an allocator, got 'mine.Trainer'
"""


def test_what_cannot_work_is_refused_when_the_file_is_read():
    for changed, message in lines(REFUSED):
        with pytest.raises(ConfigError, match=re.escape(message)):
            with_trainer(config(**settings_of(changed)))
    with pytest.raises(ConfigError, match="apportion must have an allocator, got no section"):
        with_trainer(config(apportion=None))
    once = with_trainer(config())
    assert once["trainer_cls"] == TRAINER and with_trainer(once) == once  # it may be checked again


def through_the_plugin(monkeypatch, section, policy, folder):
    axolotl_stand_in.install(monkeypatch)
    plugin = axolotl_stand_in.imported("apportion.trl.axolotl.plugin.AllocationPlugin")()
    checked = axolotl_stand_in.checked(plugin, config(apportion=section))
    settings = {
        field.name: getattr(configured(folder, GRPOTrainer), field.name) for field in fields(GRPOConfig) if field.init
    }
    settings |= {"generation_batch_size": None}  # TRL sets it and steps_per_generation, and takes one of them
    given = {"train_dataset": make_questions(), "processing_class": make_tokenizer()}
    return axolotl_stand_in.build(plugin, checked, settings, policy, [Judge()], **given)


def test_the_plugin_trains_with_the_allocator_of_the_file(monkeypatch, policy, tmp_path):
    built = through_the_plugin(monkeypatch, HORA_SECTION | {"rollout_log": str(tmp_path / "log")}, policy, tmp_path)
    assert isinstance(built, axolotl_stand_in.AxolotlGRPOTrainer)
    assert built.args.apportion["allocator"]["name"] == "hora"
    history = trained(built)[:-1]
    assert {(logged["allocation/rollouts"], logged["allocation/rounds"]) for logged in history} == {(32.0, 2.0)}
    assert len(list((tmp_path / "log").glob("*.parquet"))) == 3
