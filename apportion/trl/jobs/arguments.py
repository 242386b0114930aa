"""TRL's settings for a job: those of the file, checked by name and type, over defaults that suit allocation better."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf, lcm
from typing import TYPE_CHECKING, Any

import torch
from trl import GRPOConfig, RLOOConfig

from apportion.allocators import Size
from apportion.config import ConfigError, build
from apportion.trl.jobs.job import CHECKPOINTS, Job

if TYPE_CHECKING:
    from apportion.lab.policy.job_source import LabModel

CONFIGS: dict[str, type[Any]] = {"grpo": GRPOConfig, "rloo": RLOOConfig}
PROMPTS = 32
"""Prompts of a generation batch if the file does not give its size. With few there is little to allocate."""

PER_DEVICE = 8
GENERATIONS = 8
MIN_GENERATIONS = 2
"""The smallest ``num_generations`` that TRL allows."""

COMPLETION_TOKENS = 2048
BATCH_SETTINGS = ("generation_batch_size", "steps_per_generation", "gradient_accumulation_steps")
SET_BY_JOB = {
    "output_dir": "results go to runs/NAME, so give --name",
    "resume_from_checkpoint": "give --resume",
    "do_train": "the job trains",
    "do_eval": "add a table [evaluation]",
    "do_predict": "add a table [evaluation]",
}
"""Settings of TRL that a file must not set, each with its remedy."""

MAY_BE_INFINITE = ("max_grad_norm",)
"""Settings of TRL that mean something if they are infinite: no clipping of gradients."""


@dataclass(frozen=True)
class Default:
    """A setting for files that leave it out, and the reason for it."""

    value: Any
    reason: str


def check_names(job: Job) -> None:
    """Raise ConfigError for an infinite setting of ``training``, or one that the job sets. Cheap, so it comes first."""
    for key, remedy in SET_BY_JOB.items():
        if key in job.training:
            raise ConfigError(f"training.{key} is set by the job, got {job.training[key]!r}; leave it out: {remedy}")
    for key, value in job.training.items():
        if isinstance(value, float) and isinf(value) and key not in MAY_BE_INFINITE:
            raise ConfigError(f"training.{key} must be finite, got {value}; write a number")


def make_arguments(job: Job, model: LabModel | None, questions: int, processes: int) -> tuple[Any, dict[str, Default]]:
    """Return TRL's configuration for this number of ``questions``, and those of its settings that are defaults of ours.

    ``model`` is the job's if it is of the lab. Raises ConfigError for an unknown setting, a wrong type, and what TRL
    refuses.
    """
    defaults = _defaults(job, model) | _sizes(job, questions, processes) | _evaluation_size(job, processes)
    used = {key: default for key, default in defaults.items() if key not in job.training}
    table = {key: default.value for key, default in used.items()} | job.training
    output_dir = str(job.directory / CHECKPOINTS)
    return build(CONFIGS[job.algorithm], table | {"output_dir": output_dir}, "training"), used


def make_lora(job: Job) -> Any:
    """Return the configuration of peft, or None to train the whole model. Raises ConfigError as ``make_arguments``."""
    return None if job.lora is None else build(_lora_config(), {"task_type": "CAUSAL_LM"} | job.lora, "lora")


def _lora_config() -> type[Any]:
    try:
        from peft import LoraConfig  # noqa: PLC0415 - an optional extra of TRL's
    except ImportError as error:
        raise ConfigError("lora needs peft, which is not installed; pip install peft, or leave lora out") from error
    return LoraConfig


def _defaults(job: Job, model: LabModel | None) -> dict[str, Default]:
    found = {
        "max_completion_length": Default(COMPLETION_TOKENS, "TRL's cuts reasoning off")
        if model is None
        else Default(model.max_new_tokens, "the longest right completion has room"),
        "logging_steps": Default(1, "a step is long"),
        "save_steps": Default(0.1, "TRL's 500 steps may be the whole run"),
        "save_total_limit": Default(2, "a checkpoint takes several times the model's size"),
    }
    if job.evaluation is not None:
        found["eval_strategy"] = Default("steps", "there is an evaluation")
        found["eval_steps"] = Default(0.1, "as often as checkpoints")
        found["num_generations_eval"] = Default(1, "one completion a question is the cheapest measure")
    if job.training.get("use_cpu") or not torch.accelerator.is_available():
        found |= {
            "use_cpu": Default(True, "there is no accelerator"),
            "bf16": Default(False, "a processor is slower with it"),
            "gradient_checkpointing": Default(False, "memory is not short"),
            "dataloader_pin_memory": Default(False, "there is no accelerator"),
        }
    return found


def _evaluation_size(job: Job, processes: int) -> dict[str, Default]:
    """Return the size of a batch of the evaluation if TRL's does not hold whole groups of completions."""
    each = job.training.get("num_generations_eval")
    if job.evaluation is None or type(each) is not int or each < 1 or PER_DEVICE * processes % each == 0:
        return {}
    return {"per_device_eval_batch_size": Default(lcm(PER_DEVICE, each), "whole groups of num_generations_eval")}


def _sizes(job: Job, questions: int, processes: int) -> dict[str, Default]:
    """Return the average number of rollouts a prompt, and the size of a generation batch if the file leaves it open.

    A setting of a wrong type is left for TRL's configuration to refuse.
    """
    given = {key: job.training.get(key) for key in ("num_generations", "per_device_train_batch_size", *BATCH_SETTINGS)}
    if any(value is not None and (type(value) is not int or value < 1) for value in given.values()):
        return {}
    step = (given["per_device_train_batch_size"] or PER_DEVICE) * processes
    rows = given["generation_batch_size"]
    if rows is None and any(given[key] for key in BATCH_SETTINGS):
        rows = step * (given["steps_per_generation"] or given["gradient_accumulation_steps"] or 1)
    try:
        if rows is not None:
            only = _rollouts_each(job, rows)
            return {} if only is None else {"num_generations": only}
        prompts = min(PROMPTS, questions)
        size = job.allocator.size(prompts)
    except ValueError as error:
        raise ConfigError(f"allocator: {error}") from error
    kept = size.kept // prompts if size.kept else GENERATIONS
    each = given["num_generations"] or max(MIN_GENERATIONS, kept)
    room = 1 if kept == 1 and size.exact else each
    unit = lcm(step, each) // room
    prompts = max(unit, prompts // unit * unit)
    return {
        "num_generations": Default(each, _reason(job, size)),
        "gradient_accumulation_steps": Default(prompts * room // step, f"a batch of {prompts} prompts"),
    }


def _rollouts_each(job: Job, rows: int) -> Default | None:
    """Return the number of rollouts a prompt with which the allocator trains on ``rows``; None unless just one fits.

    At least 2, because TRL's configuration takes no less. Single rollouts fill a batch whatever it says.
    """
    sizes = {each: _size(job, rows // each) for each in range(1, rows + 1) if rows % each == 0}
    fits = [(each, size) for each, size in sizes.items() if size is not None and size.kept == rows]
    return Default(max(MIN_GENERATIONS, fits[0][0]), _reason(job, fits[0][1])) if len(fits) == 1 else None


def _size(job: Job, prompts: int) -> Size | None:
    try:
        return job.allocator.size(prompts)
    except ValueError:  # the allocator cannot plan for this number of prompts
        return None


def _reason(job: Job, size: Size) -> str:
    return f"what {job.allocator.name} trains on of a prompt" + ("" if size.exact else ", at most")
