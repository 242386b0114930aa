"""Small jobs: a file of questions for the policy of ``tiny``, a verifier, and a job that uses both."""

from apportion.config import to_toml
from apportion.trl.jobs.command import run_job
from apportion.trl.jobs.job import read_job
from apportion.trl.jobs.prepared import prepare
from tests.builders import write_jsonl
from tests.trl.tiny import make_questions

VERIFIER = """
import os, signal
from pathlib import Path

CHARACTERS = "0123456789abcdefghij:=+ "
calls = 0


def judged(completion, gold):
    global calls
    calls += 1
    if Path("stop").exists() and calls > int(Path("stop").read_text().split()[0]):
        os.kill(os.getpid(), getattr(signal, Path("stop").read_text().split()[1]))
    return completion[:1] != "" and completion[:1] in CHARACTERS[: int(gold)]


def first(completion):
    return completion[:1] or None
"""
TRAINING = {
    "learning_rate": 1e-3,
    "max_steps": 4,
    "max_completion_length": 5,
    "num_generations": 8,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "save_steps": 2,
    "disable_tqdm": True,
    "use_cpu": True,
}
HELD_OUT = {"path": "questions.jsonl", "limit": 8}


def make_files(folder):
    """Write the questions and the verifier to ``folder``, where the job is run."""
    rows = [{"prompt": row["prompt"], "answer": str(row["k"])} for row in make_questions()]
    write_jsonl(folder / "questions.jsonl", rows)
    (folder / "verifier.py").write_text(VERIFIER)


def make_job(folder, policy, training=None, **settings):
    """Write the file of a job that takes a second, with these ``settings``; None leaves one out. Return its path."""
    table = {
        "model": policy,
        "data": {"path": "questions.jsonl", "template": "plain"},
        "verifier": {"name": "function", "function": "verifier.py:judged"},
        "allocator": {"name": "hora", "pre_rollouts": 3, "rollouts_per_prompt": 8, "high": 16},
        "training": TRAINING | (training or {}),
    }
    made = {key: value for key, value in (table | settings).items() if value is not None}
    made["training"] = {key: value for key, value in made["training"].items() if value is not None}
    (folder / "job.toml").write_text(to_toml(made))
    return folder / "job.toml"


def job_of(config):
    """Return the job in the file ``config``."""
    return read_job(config, [], None, False)[0]


def prepared(folder, policy, **settings):
    """Return a small job with these ``settings``, ready to be trained."""
    return prepare(job_of(make_job(folder, policy, **settings)))


def train(config, *overrides, name=None, resume=False, dry_run=False):
    """Run the job in the file ``config`` as ``apportion trl`` does, and return its exit code."""
    return run_job(*read_job(config, overrides, name, resume), resume, dry_run)
