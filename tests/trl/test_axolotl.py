"""axolotl's YAML names the allocator: the plugin on a stand-in, and with axolotl itself where it is installed."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from trl import GRPOConfig, GRPOTrainer

from apportion import HORA
from apportion.config import ConfigError
from apportion.selection import Mixed
from apportion.trl.axolotl.section import TRAINER, read_allocation, with_trainer
from tests.cases import lines, settings_of
from tests.trl import axolotl_stand_in
from tests.trl.test_parity import assert_same
from tests.trl.tiny import Judge, configured, make_questions, make_tokenizer, trained

ROOT = Path(__file__).parents[2]
UNIFORM = {"allocator": {"name": "uniform", "rollouts_per_prompt": 8}}
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


installed = pytest.mark.skipif(find_spec("axolotl") is None, reason="axolotl is not installed")

FILE = """
base_model: model
rl: grpo
trl:
  beta: 0.0
  max_completion_length: 4
  num_generations: 8
  temperature: 1.0
  reward_funcs: [rewards.judge]
datasets: [{path: data.jsonl, ds_type: json, split: train, type: rewards.rows}]
skip_prepare_dataset: true
sequence_len: 64
micro_batch_size: 8
gradient_accumulation_steps: 4
max_steps: 3
learning_rate: 0.001
lr_scheduler: constant
optimizer: adamw_torch
logging_steps: 1
save_steps: 2
seed: 0
bf16: false
tf32: false
gradient_checkpointing: false
use_cpu: true
dataloader_pin_memory: false
special_tokens: {pad_token: <pad>}
"""
REWARDS = """
from tests.trl.tiny import mark

def judge(prompts, completions, k, **columns):
    return [mark(text, each) for text, each in zip(completions, k)]

def rows(cfg, *args, **kwargs):
    return lambda example, tokenizer=None: {"prompt": example["prompt"], "k": example["k"]}, {}
"""


def run_axolotl(folder, name, **changed):
    """Run ``axolotl train``, and return its process and the history of its last checkpoint."""
    import yaml  # noqa: PLC0415 - comes with axolotl

    from tests.trl import tiny  # noqa: PLC0415

    if not (folder / "model").exists():
        tiny.make_policy().save_pretrained(folder / "model")
        tiny.make_tokenizer().save_pretrained(folder / "model")
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tiny.make_questions()))
        (folder / "rewards.py").write_text(REWARDS)
    whole = yaml.safe_load(FILE) | {"output_dir": name, "dataset_prepared_path": f"{name}-data"} | changed
    if "apportion" in whole:
        whole["plugins"] = ["apportion.trl.axolotl.plugin.AllocationPlugin"]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(whole))
    own = {"PYTHONPATH": os.pathsep.join([str(ROOT), "."]), "AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(Path(sys.executable).parent / "axolotl"), "train", f"{name}.yaml", "--launcher", "python"]
    ran = subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True)
    states = sorted((folder / name).glob("checkpoint-*/trainer_state.json"))
    return ran, json.loads(states[-1].read_text())["log_history"] if states else []


def weights(folder):
    from safetensors.torch import load_file  # noqa: PLC0415

    return load_file(folder / "model.safetensors")


@pytest.mark.slow
@installed
def test_axolotl_itself(tmp_path):
    stock, theirs = run_axolotl(tmp_path, "stock")
    assert stock.returncode == 0, stock.stderr[-3000:]
    equal, ours = run_axolotl(tmp_path, "uniform", apportion=UNIFORM)
    assert equal.returncode == 0, equal.stderr[-3000:]
    assert_same((ours, weights(tmp_path / "uniform")), (theirs, weights(tmp_path / "stock")))
    ran, history = run_axolotl(tmp_path, "hora", apportion=HORA_SECTION)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert {(each["allocation/rollouts"], each["allocation/rounds"]) for each in history} == {(32.0, 2.0)}
    assert max(each["allocation/n_max"] for each in history) > 8
    checkpoint = str(tmp_path / "hora" / "checkpoint-2")
    again, resumed = run_axolotl(tmp_path, "resumed", apportion=HORA_SECTION, resume_from_checkpoint=checkpoint)
    assert again.returncode == 0, again.stderr[-3000:]
    assert_same((resumed, weights(tmp_path / "resumed")), (history, weights(tmp_path / "hora")))
    ran, _ = run_axolotl(tmp_path, "wrong", apportion={"allocator": {"name": "horra"}})
    assert ran.returncode != 0 and "must have a known name, got 'horra'; did you mean 'hora'?" in ran.stderr
