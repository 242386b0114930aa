"""The plan of a training job, in lines: what it will do, and how many rollouts and tokens that takes."""

from collections.abc import Mapping
from typing import Any

from apportion.allocators import Size
from apportion.config import dump
from apportion.data import describe
from apportion.trl.jobs.prepared import Prepared


def plan_lines(prepared: Prepared) -> list[str]:
    """Return a line for each thing that a person would ask before paying for the job."""
    job, arguments, batches = prepared.job, prepared.arguments, prepared.batches
    size, longest = prepared.allocation.allocator.size(prepared.prompts), int(arguments.max_completion_length)
    in_all = "" if size.asked is None else f", {size.asked * batches * longest:,} in all"
    lines = [
        f"job          {job.name}, under {job.directory}",
        f"model        {_model(prepared)}",
        f"prompts      {describe(job.data, prepared.training)}",
        f"             As {'messages' if prepared.conversational else 'text'}, because the model has "
        f"{'a' if prepared.conversational else 'no'} chat template; {prepared.longest:,} tokens at most.",
    ]
    if prepared.evaluation is not None:
        lines.append(f"evaluation   {describe(job.evaluation_data, prepared.evaluation)}")
    lines += [
        f"verifier     {_verifier(prepared)}",
        *([f"tools        {', '.join(job.tools)}"] if job.tools else []),
        f"allocator    {settings_text(dump(prepared.allocation.allocator))}",
        *([] if job.selection is None else [f"selection    {settings_text(dump(job.selection))}"]),
        f"algorithm    {_algorithm(prepared)}",
        f"a batch      {prepared.prompts:,} prompts, {_drawn(size, 1)}",
        f"a run        {batches:,} batches, {prepared.optimizer_steps:,} optimizer steps",
        f"rollouts     {_drawn(size, batches)}; {longest:,} tokens each at most{in_all}",
        f"processes    {arguments.world_size}",
        f"checkpoints  {_checkpoints(arguments)}",
    ]
    if prepared.defaults:
        lines.append("defaults     in place of TRL's, for settings that the file leaves out:")
        lines += [
            f"             {key} = {default.value} ({default.reason})" for key, default in prepared.defaults.items()
        ]
    return lines


def settings_text(table: Mapping[str, Any]) -> str:
    """Return the name of a registered thing and its settings, nested ones in brackets.

    >>> settings_text({"name": "vip", "low": 3, "predictor": {"name": "gp"}, "exact": True})
    'vip: low 3, predictor gp, exact true'
    """
    name = table.get("name", "")
    parts = [f"{key} {_value(value)}" for key, value in table.items() if key != "name" and value is not None]
    return f"{name}: {', '.join(parts)}" if parts else str(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, Mapping):
        return str(value)
    text = settings_text(value)
    return text if ": " not in text else f"({text})"


def _model(prepared: Prepared) -> str:
    parts = [prepared.job.model]
    if prepared.source_model is not None:
        parts.append(prepared.source_model.description)
    if prepared.lora is not None:
        parts.append(f"LoRA of rank {prepared.lora.r}")
    return ", ".join(parts)


def _verifier(prepared: Prepared) -> str:
    job = prepared.job
    if job.judge is None:
        return "none; rewards come from votes"
    text = settings_text(dump(job.judge))
    return f"{text}; only reported, because rewards come from votes" if job.allocation.label_free else text


def _algorithm(prepared: Prepared) -> str:
    job = prepared.job
    parts = [job.algorithm, f"every {job.allocation.loss_weighting} counts the same"]
    if job.estimator is not None:
        parts.append(f"estimator {job.estimator}")
    if job.baseline is not None:
        parts.append(f"baseline {settings_text(dump(job.baseline))}")
    if job.allocation.label_free:
        parts.append(f"answers read by {job.extract or job.data.chosen_template.extractor}, equal by {job.equivalence}")
    return ", ".join(parts)


def _drawn(size: Size, batches: int) -> str:
    if size.asked is None:
        return "as many rollouts as the allocator asks for"
    return ("" if size.exact else "at most ") + f"{size.asked * batches:,} rollouts"


def _checkpoints(arguments: Any) -> str:
    strategy, steps = arguments.save_strategy, arguments.save_steps
    share = f"every {steps:.0%} of the run" if steps < 1 else f"every {steps:g} steps"
    how = {"steps": share, "epoch": "every epoch"}.get(str(getattr(strategy, "value", strategy)))
    if how is None:
        return "none, so a run that is stopped cannot be resumed"
    kept = "" if arguments.save_total_limit is None else f", of which the last {arguments.save_total_limit} are kept"
    return f"{how}{kept}"
