"""What a run of the lab left, to be compared with another one's."""

import json

import torch

from tests import warm
from tests.builders import write_jsonl
from tests.processes import Command

STUDY = """
name = "quick"
baseline = "uniform"
seeds = [0]

[training]
base = "{base}"
problems = 32
prompts_per_step = 8
rollouts = 320
evaluate_every = 160
checkpoint_every = 2
held_out = 20

[allocators]
uniform = {{ name = "uniform", rollouts_per_prompt = 4 }}
vip = {{ name = "vip", rollouts_per_prompt = 4, high = 12, predictor = "counts" }}
"""
"""A study of two runs on the small base, whose folder is to be filled in."""


def trained(folder, *arguments):
    """Run ``apportion lab`` in ``folder`` to its end. Return what it said."""
    with Command(folder, "lab", *arguments, program=warm.python()) as command:
        code, said, errors = command.ended()
        assert (code, errors) == (0, "")
    return said


def curve(directory, without=()):
    """Return the metrics without their times."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in each.items() if key not in ("cpu_seconds", *without)} for each in records]


def curves(directory, without=()):
    """Return the metrics of each run of a study."""
    return {run.name: curve(run, without) for run in sorted(directory.glob("*-seed*"))}


def remembered(trainer):
    """Return everything that the rest of a run depends on."""
    parts = (trainer.learner, trainer.sampler, trainer.slots or trainer.allocator, trainer.selector)
    return [part.state_dict() for part in parts] + [trainer.steps, trainer.asked]


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def write_prompts(path, problems, answers=None):
    """Write a file of prompts with these right ``answers``, some maybe None; without any there is no such column."""
    gold = [{}] * len(problems) if answers is None else [{"answer": answer} for answer in answers]
    rows = [{"prompt": problem.text, **answer} for problem, answer in zip(problems, gold, strict=True)]
    return write_jsonl(path, rows)


class Killed(BaseException):
    """The end of a process that saves nothing."""
