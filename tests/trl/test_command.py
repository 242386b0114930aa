"""``python -m apportion.trl``: TRL's own script with an allocator, on a tiny model and local files."""

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from apportion.presets import PRESETS
from apportion.records import read_log
from apportion.trl.command import JobArguments, run
from apportion.trl.settings import TRLAllocation
from tests.builders import write_jsonl
from tests.cases import lines
from tests.processes import Command
from tests.trl.tiny import make_questions, make_tokenizer

ROOT = Path(__file__).parents[2]
REWARDS = """
import os, signal
from pathlib import Path

CHARACTERS = "0123456789abcdefghij:=+ "
calls = 0


def right(completions, answer, **columns):
    global calls
    calls += len(completions)
    if Path("stop").exists() and calls > int(Path("stop").read_text().split()[0]):
        os.kill(os.getpid(), getattr(signal, Path("stop").read_text().split()[1]))
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [float(text[:1] != "" and text[:1] in CHARACTERS[: int(each)]) for text, each in zip(texts, answer)]


def silent(completions, **columns):
    return [None] * len(completions)
"""
FILE = {"path": "json", "data_files": "questions.jsonl"}
JOB = """
datasets: [{path: json, data_files: questions.jsonl}]
reward_funcs: [small_rewards.right]
allocator: {name: hora, pre_rollouts: 3, rollouts_per_prompt: 8, high: 16}
rollout_log: out/rollouts
output_dir: out
max_steps: 4
max_completion_length: 5
num_generations: 8
per_device_train_batch_size: 16
gradient_accumulation_steps: 2
learning_rate: 1.0e-3
logging_steps: 1
save_steps: 2
temperature: 1.0
report_to: none
use_cpu: true
bf16: false
gradient_checkpointing: false
disable_tqdm: true
"""
KEPT = ("step", "prompt_id", "asked", "index", "round", "correct", "reward", "completion", "advantage")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with questions and a reward function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    make_files(tmp_path)
    return tmp_path


def make_files(folder):
    write_jsonl(folder / "questions.jsonl", [{"prompt": row["prompt"], "answer": row["k"]} for row in make_questions()])
    (folder / "small_rewards.py").write_text(REWARDS)


def job(folder, policy, **settings):
    """Write the file of a job that takes a second, and return the words that name it. None leaves a setting out."""
    given = yaml.safe_load(JOB) | {"model_name_or_path": policy} | settings
    given = {key: value for key, value in given.items() if value is not None}
    (folder / "job.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    return ["--config", "job.yaml"]


def dry_run(algorithm, words, capsys):
    """Return what a dry run prints."""
    with pytest.raises(SystemExit) as ended:
        run(algorithm, [*words, "--dry-run"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def rollouts(folder):
    return read_log(folder / "rollouts").select(KEPT).to_pylist()


def history(folder, step):
    return json.loads((folder / f"checkpoint-{step}/trainer_state.json").read_text())["log_history"]


def test_ours_are_the_settings_of_the_trainer_and_three_more():
    ours, theirs = ({each.name for each in fields(kind) if each.init} for kind in (JobArguments, TRLAllocation))
    assert ours == theirs | {"template", "evaluation", "dry_run"}


def test_a_dry_run_prints_the_plan_and_needs_no_weights(folder, policy, capsys):
    shutil.copytree(policy, folder / "empty")
    (folder / "empty" / "model.safetensors").unlink()
    words = job(folder, "empty", eval_strategy="steps", evaluation={"easy": FILE, "hard": FILE}, allocator="hora")
    said = dry_run("grpo", words, capsys)
    assert (
        re.sub(r"HORA.*", "HORA", said)
        == """\
model      empty
rows       48 to train on; to evaluate: easy 48, hard 48
rewards    right
allocator  HORA
estimator  TRL's
batch      a batch of 4 prompts samples 32 rollouts in at most 2 rounds, and trains on at most 32 (without it: 32)
steps      4 of the optimizer, 1 processes, results in out
"""
    )
    assert not (folder / "out").exists()


def test_a_name_on_the_command_line_takes_the_place_of_the_file_s(folder, policy, capsys):
    said = dry_run("rloo", [*job(folder, policy), "--allocator", "uniform", "--num_generations", "4"], capsys)
    assert "allocator  Uniform(rollouts_per_prompt=4)" in said and "8 prompts samples 32 rollouts" in said


def test_a_dry_run_counts_the_steps_of_its_epochs(folder, policy, capsys):
    """48 questions are 6 batches of 8, each trained on twice in two steps."""
    words = job(folder, policy, max_steps=-1, num_train_epochs=1.5, num_iterations=2, steps_per_generation=4)
    assert "steps      36 of the optimizer" in dry_run("grpo", words, capsys)


REFUSED = """
lerning_rate: 0.1 => an argument must be TRL's or the allocation's, got '--lerning_rate'; did you mean 'learning_rate'?
learning_rate: fast => argument --learning_rate/--learning-rate: invalid float value: 'fast'; see --help
allocator: horra => allocator (allocator) must have a known name, got 'horra'; did you mean 'hora'?
num_generations: 7 => generation_batch_size (32) must be divisible by num_generations (7)
verdict: left => verdict must be one of the reward functions, right, got 'left'
reward_funcs: null => reward_funcs must be given with hora, got none
reward_funcs: [no_such_module.right] => No module named 'no_such_module'
template: "Q:" => template must contain {question}, got 'Q:'
{template: "{question}", datasets: [{path: json, data_files: texts.jsonl}]} => the data must have a column prompt or
datasets: [{path: json, data_files: nothing.jsonl}] => Unable to find
evaluation: {test: {pth: x}} => evaluation.test (DatasetConfig) has no key 'pth'; did you mean 'path'?
evaluation: {test: {path: json}} => eval_strategy must be steps or epoch with an evaluation, got no
eval_strategy: steps => the data must have the split 'test'
model_name_or_path: no/such-model => model_name_or_path must be a folder, or an id of the hub that can be loaded, got
"""


def test_a_wrong_job_is_refused_in_one_line_before_weights_are_loaded(folder, policy, capsys):
    (folder / "texts.jsonl").write_text('{"text": "1"}\n')
    for settings, message in lines(REFUSED):
        assert run("grpo", [*job(folder, policy, **yaml.safe_load(settings)), "--dry-run"]) == 2, message
        said = capsys.readouterr().err.splitlines()[-1]
        assert message in said and said.startswith("error: ") and not (folder / "out").exists()


def test_of_several_processes_the_first_of_a_machine_says_what_is_wrong(folder, policy, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert run("grpo", [*job(folder, policy), "--allocator", "horra"]) == 2
    assert "error" not in capsys.readouterr().err


def test_a_run_has_two_evaluation_sets_and_leaves_its_log_and_its_model(folder, policy, capsys):
    sets = {"all": FILE, "few": FILE | {"split": "train[:8]"}}
    settings = {"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 4, "evaluation": sets}
    assert run("grpo", job(folder, policy, per_device_eval_batch_size=8, **settings)) == 0
    log = rollouts(folder / "out")
    assert len(log) == 4 * 32 and {row["round"] for row in log} == {0, 1}
    logged = history(folder / "out", 4)
    for name in sets:
        scores = [entry[f"eval_{name}_mean_at_4"] for entry in logged if f"eval_{name}_mean_at_4" in entry]
        assert len(scores) == 2 and all(0 < score < 1 for score in scores)
        assert sum(f"eval_{name}_maj_at_4" in entry for entry in logged) == 2
    assert (folder / "out/model.safetensors").exists()
    assert run("grpo", job(folder, policy, **settings)) == 1
    assert "a new run needs a rollout log without steps" in capsys.readouterr().err


def test_a_template_makes_messages_for_a_model_with_a_chat_template(folder, policy):
    shutil.copytree(policy, folder / "chat")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}="
    tokenizer.save_pretrained(folder / "chat")
    for model in (policy, "chat"):
        settings = {"template": "{question}+", "output_dir": model, "rollout_log": f"{Path(model).name}-log"}
        assert run("rloo", job(folder, model, max_steps=1, save_strategy="no", **settings | {"output_dir": "out"})) == 0
        asked = {row["prompt"] for row in read_log(folder / f"{Path(model).name}-log").to_pylist()}
        assert all("+" in text for text in asked) and asked


EXAMPLES = [*sorted((ROOT / "examples/papers").glob("*.yaml")), ROOT / "examples/trl.yaml"]
ALGORITHMS = {"vip": "rloo"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_plan_with_another_model_and_other_data(path, folder, policy, capsys):
    """With smaller batches. The sets of its evaluation are on the hub, so they are replaced too."""
    given = yaml.safe_load(path.read_text())
    assert given.get("preset", "fixed_baseline") in PRESETS
    sets = {name: FILE | {"split": "train[:8]"} for name in given.pop("evaluation", {})}
    for key in ("dataset_name", "dataset_config"):
        given.pop(key, None)
    job_of_tests = yaml.safe_load(JOB)
    kept = ("datasets", "reward_funcs", "use_cpu", "bf16", "disable_tqdm", "report_to")
    small = {key: job_of_tests[key] for key in kept}
    rows = given["num_generations"] * 2
    small |= {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    small |= {"max_steps": 1, "max_completion_length": 5, "output_dir": "out", "rollout_log": "out/rollouts"}
    small |= {"gradient_checkpointing": False}
    given |= small | {"evaluation": sets, "model_name_or_path": policy}
    words, algorithm = job(folder, policy, **dict.fromkeys(job_of_tests) | given), ALGORITHMS.get(path.stem, "grpo")
    said = dry_run(algorithm, words, capsys)
    assert f"rows       48 to train on; to evaluate: {', '.join(f'{name} 8' for name in sets)}" in said


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_a_stopped_job_goes_on_to_the_same_results(folder, policy):
    """A whole run in this process, one that gets a SIGTERM in its own, and the rest of that in this process again."""
    words, ends = job(folder, policy), []
    for name in ("whole", "stopped"):
        if name == "stopped":
            (folder / "stop").write_text("90 SIGTERM")
            with Command(folder, "grpo", *words, python=("-m", "apportion.trl"), HF_HUB_OFFLINE="1") as command:
                code, _, errors = command.ended()
                assert code == 143 and command.nothing_left()
            said = "Stopped in step 3. To continue from the last checkpoint: --resume_from_checkpoint true"
            assert said in errors and "Traceback" not in errors
            (folder / "stop").unlink()
        assert run("grpo", [*words, "--resume_from_checkpoint", "true"]) == 0
        ends.append((rollouts(folder / "out"), load_file(folder / "out" / "model.safetensors")))
        shutil.rmtree(folder / "out")
    (log, weights), (other_log, other_weights) = ends
    assert log == other_log and all(torch.equal(weights[key], other_weights[key]) for key in weights)
