"""The plan of a training job, in lines: what it will do, and how many rollouts and tokens that takes."""

from typing import Any

from apportion.allocators import Size
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
        f"allocator    {prepared.allocation.allocator}",
        *([] if job.selection is None else [f"selection    {job.selection}"]),
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


def _model(prepared: Prepared) -> str:
    parts = [prepared.job.model]
    if prepared.lab_model is not None:
        parts.append(prepared.lab_model.description)
    if prepared.lora is not None:
        parts.append(f"LoRA of rank {prepared.lora.r}")
    return ", ".join(parts)


def _verifier(prepared: Prepared) -> str:
    job = prepared.job
    if job.judge is None:
        return "none; rewards come from votes"
    return f"{job.judge}{'; only reported, because rewards come from votes' * job.allocation.label_free}"


def _algorithm(prepared: Prepared) -> str:
    job = prepared.job
    parts = [job.algorithm, f"every {job.allocation.loss_weighting} counts the same"]
    if job.estimator is not None:
        parts.append(f"estimator {job.estimator}")
    if job.baseline is not None:
        parts.append(f"baseline {job.baseline}")
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
