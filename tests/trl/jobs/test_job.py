"""``apportion trl``: which jobs are refused, and jobs of every kind from the file to the model."""

import json
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from apportion.allocators import Allocator
from apportion.config import ConfigError, build, load
from apportion.data import load_questions
from apportion.lab.policy.base import trained_policy
from apportion.lab.policy.exact import exact_success
from apportion.lab.policy.recipes import RECIPES, Recipe, Stage
from apportion.lab.world.demonstrator import EASY
from apportion.lab.world.task import Problem
from apportion.predictors import SentenceTransformerEmbedder
from apportion.presets import PRESETS
from apportion.records import read_log
from apportion.runs.folder import hold_lock
from apportion.trl.jobs.command import make_trainer, reward_of
from apportion.trl.jobs.plan import plan_lines
from apportion.trl.jobs.prepared import prepare
from apportion.verifiers import EM
from tests import warm
from tests.builders import write_jsonl
from tests.commands import invoke, refused
from tests.processes import Command
from tests.trl import test_tools
from tests.trl.jobs.small import HELD_OUT, job_of, make_job, prepared, train
from tests.trl.tiny import make_tokenizer, mark

ROOT = Path(__file__).parents[3]
KEPT = ("step", "prompt_id", "predicted", "asked", "index", "round", "correct", "reward", "completion", "advantage")


def rollouts(folder):
    return read_log(folder / "rollouts").select(KEPT).to_pylist()


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


REFUSED = {
    "has no key 'modle'; did you mean 'model'?": {"modle": "x"},
    "must have data, got .*; add data": {"data": None},
    r"training \(GRPOConfig\) has no key 'lerning_rate'; did you mean 'learning_rate'\?$": {
        "training": {"lerning_rate": 1e-3}
    },
    r"training \(RLOOConfig\) has no key 'scale_rewards'; ": {
        "algorithm": "rloo",
        "training": {"scale_rewards": "group"},
    },
    "training.learning_rate must be a number, got 'fast'; write learning_rate = 1.0": {
        "training": {"learning_rate": "fast"}
    },
    "training.num_train_epochs must be finite, got inf; write a number": {
        "training": {"num_train_epochs": float("inf")}
    },
    "training.generation_batch_size .* must be divisible by num_generations": {"training": {"num_generations": 7}},
    "training.output_dir is set by the job, got 'x'; leave": {"training": {"output_dir": "x"}},
    r"lora \(LoraConfig\) has no key 'rank'; ": {"lora": {"rank": 4}},
    "tools are for grpo, got math:sqrt with rloo, whose trainer in TRL has none; set algorithm": {
        "tools": ["math:sqrt"],
        "algorithm": "rloo",
    },
    "function must be in its module, got 'math:squirt'": {"tools": ["math:squirt"]},
    "hora must train on no more than TRL's batches hold, 32 rollouts of 8 prompts, got 64": {
        "training": {"num_generations": 4}
    },
    "allocator must be left out beside a preset whose own is vip, got 'hora'; leave out the preset": {
        "preset": "vip_as_printed"
    },
    "data: questions.jsonl must have a column rate, got prompt, answer; name another": {
        "data": {"path": "questions.jsonl", "template": "plain", "rate_column": "rate"}
    },
    "data.template must be a name or a text with .*, got 'boxd'; did you mean 'boxed'?": {
        "data": {"path": "questions.jsonl", "template": "boxd"}
    },
    "data: .* got nothing.jsonl": {"data": {"path": "nothing.jsonl"}},
    "data: each gold answer must be there, got None for ": {"data": {"path": "open.jsonl"}},
    "data: each gold answer must be a number, words or LaTeX .* got None for ": {
        "data": {"path": "open.jsonl"},
        "verifier": "math",
    },
    "base must be easy, medium, .*, got 'mediun'": {"model": "lab:mediun"},
    "data: split must be one of train, test, got 'dev'": {"data": {"name": "lab:medium", "split": "dev"}},
    "model must be an id .*, got 'no/such-model' ": {"model": "no/such-model"},
    "data must ask what lab:medium can read: text must be made of ledger tokens, got 'P": {
        "model": "lab:medium",
        "data": {"name": "lab:medium", "template": "boxed"},
    },
    "a prompt and its completion must fit the 128 tokens of .*, got 6 and 128; lower": {
        "training": {"max_completion_length": 128}
    },
    "data must have the 4 prompts of a generation batch, got 3": {
        "data": {"path": "questions.jsonl", "template": "plain", "limit": 3}
    },
    "one verifier must read answers to both templates, got 'boxed' to train and 'answer' to evaluate": {
        "verifier": "exact",
        "data": {"path": "questions.jsonl", "template": "boxed"},
        "evaluation": {"path": "questions.jsonl", "template": "answer"},
    },
    "an evaluation needs a verifier, got none with optpo": {
        "allocator": "optpo",
        "verifier": None,
        "evaluation": {"path": "questions.jsonl"},
    },
    "name must be a plain folder name of at most 200 bytes, got 'a/b'": {"name": "a/b"},
}


def test_a_wrong_job_is_refused_in_one_line_before_its_folder_is_made(folder, policy):
    (folder / "open.jsonl").write_text('{"prompt": "1"}\n{"prompt": "2"}\n')
    for message, settings in REFUSED.items():
        with pytest.raises(ConfigError, match=message) as caught:
            train(make_job(folder, policy, **settings))
        assert "\n" not in str(caught.value) and not (folder / "runs").exists()


def test_of_several_processes_the_first_of_a_machine_says_what_is_wrong(folder, policy, monkeypatch):
    config = make_job(folder, policy)
    (folder / "questions.jsonl").write_text('{"prompt": "000:", "answ')
    assert "a line must be JSON" in refused("trl", config, "--dry-run")
    monkeypatch.setenv("LOCAL_RANK", "1")
    ended = invoke("trl", config, "--dry-run")
    assert (ended.exit_code, ended.output) == (2, "")


def test_a_dry_run_prints_the_plan_and_needs_no_weights(folder, policy, capsys):
    shutil.copytree(policy, folder / "empty")
    (folder / "empty" / "model.safetensors").unlink()
    config = make_job(folder, "empty")
    assert train(config, dry_run=True) == 0
    assert "a run        4 batches, 4 optimizer steps" in capsys.readouterr().out
    assert not (folder / "runs").exists()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        train(config)


def test_a_run_leaves_its_job_its_rollouts_its_checkpoints_and_a_model(whole, policy):
    assert {path.name for path in (whole / "checkpoints").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    tuned, before = weights(whole / "model"), weights(policy)
    assert any(not torch.equal(tuned[name], before[name]) for name in before)
    assert AutoTokenizer.from_pretrained(whole / "model")("012")["input_ids"] == make_tokenizer()("012")["input_ids"]
    job = tomllib.loads((whole / "job.toml").read_text())
    assert job["allocator"]["pre_rollouts"] == 3 and "weighting" not in job and job["training"]["max_steps"] == 4
    log = rollouts(whole)
    questions = (whole.parents[1] / "questions.jsonl").read_text().splitlines()
    gold = {row["prompt"]: int(row["answer"]) for row in map(json.loads, questions)}
    asked = {row["prompt_id"]: row["prompt"] for row in read_log(whole / "rollouts").to_pylist()}
    assert len(log) == 4 * 32
    for row in log:
        assert row["correct"] == bool(mark(row["completion"], gold[asked[row["prompt_id"]]]))
    history = json.loads((whole / "checkpoints/checkpoint-4/trainer_state.json").read_text())["log_history"]
    assert sum("eval_rewards/function/mean" in entry for entry in history) == 10 * 4 // 10
    assert sum("rewards/function/mean" in entry for entry in history) == 4


def test_a_folder_is_for_one_job(whole, policy, tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    shutil.copytree(whole.parents[1], folder)
    monkeypatch.chdir(folder)
    evaluation = {"evaluation": HELD_OUT}
    begun = r"was started with {} = {}, got {}"
    for change, message in (
        (
            {"training": {"seed": 5}},
            begun.format("training.seed", "nothing", "5; change it back, or choose another --n"),
        ),
        ({"allocator": {"name": "uniform", "rollouts_per_prompt": 8}}, r"allocator.* and \d more; change it back"),
        (
            {"data": {"path": "questions.jsonl", "template": "plain", "limit": 40}},
            begun.format("data.limit", "nothing", 40),
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            train(make_job(folder, policy, **evaluation | change), resume=True)
    config = make_job(folder, policy, **evaluation)
    with pytest.raises(ConfigError, match=r"runs/job must not exist, got the folder of a run; continue with --resume"):
        train(config)
    questions = folder / "questions.jsonl"
    questions.write_text(questions.read_text().replace("010", "910"))
    with pytest.raises(ConfigError, match=r"was started with questions = .*; restore the data"):
        train(config, resume=True)


def test_a_job_that_another_process_starts_is_not_written_to(folder, policy):
    """The lock is taken first, so two processes that start one job cannot both write its settings."""
    lock = folder / "runs" / "job" / "lock"
    lock.parent.mkdir(parents=True)
    with hold_lock(lock), pytest.raises(ConfigError, match="one process trains a job at a time, got runs/job"):
        train(make_job(folder, policy))
    assert [path.name for path in lock.parent.iterdir()] == ["lock"]


def test_a_finished_job_is_not_trained_again_and_its_logging_may_change(whole, monkeypatch, capsys):
    monkeypatch.chdir(whole.parents[1])
    before = (whole / "model" / "model.safetensors").stat().st_mtime_ns
    assert train(None, "training.logging_steps=3", name="job", resume=True) == 0
    assert "Finished already; the model is in runs/job/model." in capsys.readouterr().out
    assert (whole / "model" / "model.safetensors").stat().st_mtime_ns == before


def test_an_interrupted_run_resumes_with_the_same_results(whole, folder, policy, capsys):
    config = make_job(folder, policy, evaluation=HELD_OUT)
    for resume, calls, said in (  # 40 of them a step, with those of its evaluation
        (False, 50, "Stopped in step 2. To continue from the beginning: apportion trl --name job "),
        (True, 130, "Stopped in step 4. To continue from step 2: apportion trl --name job "),
    ):
        (folder / "stop").write_text(f"{calls} SIGINT")
        assert train(config, resume=resume) == 130
        assert said in capsys.readouterr().out
    (folder / "stop").unlink()
    half = folder / "runs/job/checkpoints/checkpoint-3"
    half.mkdir()  # as a kill in the middle of writing leaves it
    shutil.copy(folder / "runs/job/checkpoints/checkpoint-2/apportion.pt", half)
    assert train(None, name="job", resume=True) == 0
    assert "Continuing from runs/job/checkpoints/checkpoint-2." in capsys.readouterr().out
    assert rollouts(folder / "runs/job") == rollouts(whole)
    went_on, at_once = weights(folder / "runs/job/model"), weights(whole / "model")
    assert all(torch.equal(went_on[name], at_once[name]) for name in at_once)


def test_a_job_with_a_selection_begins_with_the_prompts_whose_rates_are_known_to_be_mixed(folder, policy):
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    write_jsonl(folder / "rated.jsonl", [row | {"rate": int(row["answer"]) / 24} for row in rows])
    given = {
        "data": {"path": "rated.jsonl", "template": "plain", "rate_column": "rate"},
        "allocator": {"name": "vip", "rollouts_per_prompt": 8, "predictor": "empirical_bayes"},
        "selection": "mixed",
    }
    assert train(make_job(folder, policy, training={"max_steps": 1, "save_strategy": "no"}, **given)) == 0
    hard = {row["prompt_id"] for row in rollouts(folder / "runs/job") if not 0.05 < row["predicted"] < 0.95}
    assert len(hard) <= 1  # the place for exploration may be one that nothing is learned from


def test_a_job_with_lora_trains_an_adapter_alone(folder, policy):
    lora = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
    assert train(make_job(folder, policy, lora=lora, training={"max_steps": 1, "save_steps": 1})) == 0
    saved = json.loads((folder / "runs/job/model/adapter_config.json").read_text())
    assert saved["r"] == 4 and saved["task_type"] == "CAUSAL_LM"
    assert not (folder / "runs/job/model/model.safetensors").exists()


TOOL = '''
def guess(number: int) -> str:
    """Says whether a number is right.

    Args:
        number: the guess.
    """
    return "right"
'''


def test_a_job_with_tools_has_the_model_call_them(folder, monkeypatch, capsys):
    """The model finds the tool's name in the chat template, and TRL gets the function itself."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    test_tools.make_policy().save_pretrained("talker")
    test_tools.make_tokenizer().save_pretrained("talker")
    (folder / "tool.py").write_text(TOOL)
    job = make_job(folder, "talker", tools=["tool.py:guess"], training={"max_steps": 1, "save_steps": 1})
    found = prepare(job_of(job))
    without = prepared(folder, "talker")
    assert found.longest > without.longest
    assert "tools        tool.py:guess" in plan_lines(found)
    trainer = make_trainer(found, "talker")
    assert [tool.__name__ for tool in trainer.tools] == ["guess"]
    trainer.train()
    assert trainer.state.log_history[0]["tools/call_frequency"] >= 0


@pytest.mark.parametrize("watched", [False, True])
def test_a_job_without_labels_needs_no_gold_and_reports_its_verifier(folder, policy, watched):
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    if not watched:
        rows = [{"prompt": row["prompt"]} for row in rows]
    write_jsonl(folder / "votes.jsonl", rows)
    settings = {} if watched else {"verifier": None}
    settings |= {"extract": "verifier.py:first", "data": {"path": "votes.jsonl", "template": "plain"}}
    settings |= {"allocator": {"name": "ttrl", "max_samples": 12, "min_samples": 8}}
    assert train(make_job(folder, policy, training={"max_steps": 1, "save_steps": 1}, **settings)) == 0
    log = read_log(folder / "runs/job/rollouts").to_pylist()
    assert len(log) == 4 * 12 and sum(row["kept"] for row in log) <= 32
    assert all(row["answer"] == (row["completion"][:1] or None) for row in log)
    history = json.loads((folder / "runs/job/checkpoints/checkpoint-1/trainer_state.json").read_text())["log_history"]
    assert ("rewards/function/mean" in history[0]) == watched


def test_prompts_are_messages_if_the_model_has_a_chat_template(folder, policy):
    shutil.copytree(policy, folder / "chat")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}="
    tokenizer.save_pretrained(folder / "chat")
    rows = {}
    for model in (policy, "chat"):
        found = prepared(folder, model)
        rows[found.conversational] = found.training_rows()[0]
        assert found.longest == 6 + found.conversational
    assert rows[True]["prompt"] == [{"role": "user", "content": rows[False]["prompt"]}]
    assert train(make_job(folder, "chat", training={"max_steps": 1, "save_strategy": "no"})) == 0
    assert len(rollouts(folder / "runs/job")) == 32


def test_any_of_several_right_answers_is_rewarded(folder, policy):
    rows = [{"prompt": f"{n:03d}:", "answer": "Seine", "aliases": ["River Seine"]} for n in range(8)]
    write_jsonl(folder / "rivers.jsonl", [*rows, {"prompt": "9:", "answer": "7"}])
    config = make_job(folder, policy, data={"path": "rivers.jsonl", "template": "plain"}, verifier="em")
    plan = prepare(job_of(config))
    golds = plan.training_rows()["gold"]
    assert golds == [["Seine", "River Seine"]] * 8 + [["7"]]
    texts = ["The answer is river Seine.", *["The answer is Rhine."] * 7, "The answer is 7."]
    assert reward_of(plan.job.judge)(completions=texts, gold=golds) == [1.0, *[0.0] * 7, 1.0]


def test_the_tool_task_of_vip_by_the_names_of_its_data_sets(folder, policy):
    row = {"question": "Which river?", "answer": "Seine", "answer_aliases": ["River Seine"]}
    (folder / "musique.jsonl").write_text(json.dumps(row))
    (folder / "bamboogle.jsonl").write_text(json.dumps({"Question": "Which?", "Answer": "Rhine"}))
    data, evaluation = ({"name": name, "path": f"{name}.jsonl"} for name in ("musique", "bamboogle"))
    job = job_of(make_job(folder, policy, data=data, evaluation=evaluation, verifier=None))
    assert job.judge == EM(extract="boxed") and job.evaluation_data.chosen_template == job.data.chosen_template
    reward = reward_of(job.judge)
    (asked,), (held_out,) = load_questions(job.data), load_questions(job.evaluation_data)
    assert reward(completions=[r"\boxed{\text{the River Seine}}"], gold=[list(asked.golds)]) == [1.0]
    assert reward(completions=[r"\boxed{Rhine}"], gold=[held_out.gold]) == [1.0]


RECIPE = Recipe((Stage(EASY, steps=120, learning_rate=4e-3),), sequences=8_000, operation_weights=(4.0, 1.0))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def lab(cache, monkeypatch, tmp_path):
    """Replace the base "medium" by one that is trained in seconds, once for all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setitem(RECIPES, "medium", RECIPE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.xdist_group("lab jobs")  # one worker process, so that the base is trained once
def test_a_job_on_the_lab_has_its_exact_success_probability(lab, tmp_path, capsys):
    """Without learning, shares over hundreds of rollouts a prompt agree with the exact probabilities within noise."""
    config = tmp_path / "exact.toml"
    config.write_text(
        'model = "lab:medium"\ndata = {name = "lab:medium", limit = 12}\n'
        'allocator = {name = "uniform", rollouts_per_prompt = 200}\n'
        "[training]\nlearning_rate = 0.0\nmax_steps = 1\nper_device_train_batch_size = 2400\n"
        'gradient_accumulation_steps = 1\nsave_strategy = "no"\ndisable_tqdm = true\n'
    )
    assert train(config) == 0
    printed = capsys.readouterr().out
    assert "trained first, then cached" in printed and "12 prompts, 2,400 rollouts" in printed
    verdicts = {}
    for row in read_log(Path("runs/exact/rollouts")).to_pylist():
        verdicts.setdefault(row["prompt"], []).append(row["correct"])
    exact = exact_success(trained_policy(RECIPE), [Problem.parse(text) for text in verdicts])
    share = np.array([np.mean(each) for each in verdicts.values()])
    assert {len(each) for each in verdicts.values()} == {200} and exact.max() > 0.3
    assert (np.abs(share - exact) <= 5 * np.sqrt(exact * (1 - exact) / 200) + 2 / 200).all()


@pytest.mark.slow
@pytest.mark.xdist_group("lab jobs")
def test_the_example_jobs_can_be_trained(lab, capsys, caplog):
    """The batch of VIP's paper is 512 prompts with 8 rollouts each, and one update, here on one process and not 8."""
    assert train(ROOT / "examples/trl.toml", dry_run=True) == 0
    assert "10,240 rollouts; 14 tokens each at most, 143,360 in all" in capsys.readouterr().out
    assert train(ROOT / "examples/trl.toml", "training.max_steps=1") == 0
    assert len(read_log(Path("runs/trl/rollouts"))) == 256
    assert tomllib.loads(Path("runs/trl/job.toml").read_text())["data"]["name"] == "lab:medium"

    data = ["data.name=lab:medium", "data.template=plain", "evaluation.name=lab:medium", "evaluation.split=test"]
    small = ["model=lab:medium", *data, "training.max_completion_length=14", "training.per_device_train_batch_size=64"]
    assert train(ROOT / "examples/papers/vip.toml", *small, dry_run=True) == 0
    printed = capsys.readouterr().out
    assert "512 prompts, 4,096 rollouts" in printed and "2 batches, 2 optimizer steps" in printed
    assert "has no effect" not in caplog.text  # the files leave out what is read by nothing


PAPERS = {"vip": 32, "hora": 64, "ar3po": 32, "optpo": 64}
"""Each paper's job, and the rows of a small batch for it."""


@pytest.mark.parametrize("paper", PAPERS)
def test_the_job_of_a_paper_can_be_trained_and_its_folder_spells_the_preset_out(paper, folder, policy, monkeypatch):
    monkeypatch.setattr(SentenceTransformerEmbedder, "__call__", lambda _, prompts: np.eye(48, 8)[: len(prompts)])
    config, rows = ROOT / "examples" / "papers" / f"{paper}.toml", PAPERS[paper]
    questions, before = 'path = "questions.jsonl", template = "plain"', load(config)
    small = [f'model="{policy}"', f"data={{{questions}}}", 'extract="verifier.py:first"']
    small += ['verifier={name = "function", function = "verifier.py:judged"}']
    small += [f"evaluation={{{questions}, limit = 4}}"] if "evaluation" in before else []
    sizes = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    sizes |= {"max_steps": 1, "max_completion_length": 5}
    assert train(config, *small, *(f"training.{key}={value}" for key, value in sizes.items())) == 0
    log = read_log(Path("runs", paper, "rollouts")).to_pylist()
    assert 0 < sum(row["kept"] for row in log) <= rows
    written = tomllib.loads(Path("runs", paper, "job.toml").read_text(encoding="utf-8"))
    decided = PRESETS[before["preset"]]().arguments()
    assert "preset" not in written and written.get("estimator") == decided.get("estimator")
    assert build(Allocator, written["allocator"]) == decided["allocator"]
    assert train(None, name=paper, resume=True) == 0


@pytest.mark.slow
@pytest.mark.soak  # test_ranks has two processes
@pytest.mark.xdist_group("commands")
def test_only_the_first_of_two_processes_prints_and_writes(folder, policy):
    job = make_job(folder, policy, training={"max_steps": 2})
    two = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "apportion")
    with Command(folder, "trl", job.name, python=two, program=warm.python(), HF_HUB_OFFLINE="1") as command:
        code, said, errors = command.ended()
    assert code == 0, errors[-2000:]
    assert said.count("allocator    HORA(") == 1 and said.count("Finished.") == 1
    assert "processes    2" in said and "8 prompts, 64 rollouts" in said
    assert len(rollouts(folder / "runs/job")) == 2 * 64
    assert json.loads((folder / "runs/job/environment.json").read_text())["processes"] == 2


OPTIONS = {
    "No such option: --labels": ["--labels", "none"],
    "a job must be a TOML file, got none; give one, or --name and --resume for a started one": [],
    "there is nothing to resume: runs/x/job.toml does not exist; give the job's file": ["--resume", "--name", "x"],
}


def test_wrong_options_end_the_command_with_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for message, arguments in OPTIONS.items():
        assert refused("trl", *arguments).startswith(f"error: {message}")


def test_without_trl_one_line_says_what_to_install(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("apportion.trl")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "trl", None)
    shutil.copy(ROOT / "examples" / "trl.toml", tmp_path / "x.toml")
    said = refused("trl", tmp_path / "x.toml")
    assert said == "error: apportion trl needs trl, which is not installed; pip install 'apportion[trl]'\n"
