"""AReaL: which prompt, how many rollouts, which baseline, in the place of a workflow. Its executor calls it.

An episode of AReaL is a group here. The workflow made by ``allocated`` ignores the row that the data loader offers. It
takes the prompt that is chosen, and runs your workflow as often as is decided. So the data loader sets only the pace.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion.engines.contract import EngineGroups
from apportion.engines.prompts import distinct_prompts
from apportion.engines.saved_state import save_state
from apportion.scheduler.decisions import TrainerAllocation
from apportion.types import Rollout

FILE, KIND = "apportion.safetensors", "AReaL run"
READ = ("rewards", "loss_mask", "logprobs")
"""The fields that are read of a trajectory."""


def allocated(
    workflow: Any,
    rows: Sequence[Mapping[str, Any]],
    allocation: TrainerAllocation,
    *,
    prompt_key: str = "messages",
    seed: int = 0,
    lost_after: int = 4096,
) -> Any:
    """Return a ``RolloutWorkflow`` whose episodes are groups of ``workflow``, on the prompts of ``rows``.

    Use it with ``group_size=1``. With an ``estimator`` the rewards of a trajectory become its advantages, so leave
    AReaL's normalisation of rewards and advantages out. A trajectory may have a ``verdict`` [1], above 0 if it is
    correct, beside its rewards. ``save`` and ``load`` belong beside AReaL's own checkpoint.
    Raises ValueError for an allocation that cannot be followed, and for rows without ``prompt_key``.
    """
    from areal.api import RolloutWorkflow  # noqa: PLC0415 - the engine
    from areal.utils.data import concat_padded_tensors  # noqa: PLC0415 - the engine

    if missing := [place for place, row in enumerate(rows) if prompt_key not in row]:
        raise ValueError(
            f"rows must have {prompt_key!r}, row {missing[0]} has none; name the column of the prompt as prompt_key"
        )
    prompts = distinct_prompts(rows, lambda row: {**row, "prompt": row[prompt_key]})

    class Allocated(RolloutWorkflow):  # type: ignore[misc]
        def __init__(self) -> None:
            self.groups = EngineGroups(allocation, prompts, seed=seed, lost_after=lost_after)

        async def arun_episode(self, engine: Any, data: Any) -> Any:
            """Return the trajectories of the next group; None if all of them failed."""
            opened = self.groups.next()
            more, found, rollouts = opened.count, [], list[Rollout]()
            try:
                while more:
                    calls = [workflow.arun_episode(engine, dict(opened.prompt.data)) for _ in range(more)]
                    results = await asyncio.gather(*calls)
                    read = [None if one is None else _rollout(one, self.groups) for one in results]
                    more = self.groups.observe(opened.key, read)
                    found += [one for one, rollout in zip(results, read, strict=True) if rollout is not None]
                    rollouts += [rollout for rollout in read if rollout is not None]
            except BaseException:
                while self.groups.observe(opened.key, []):  # all its rounds have failed
                    continue
                raise
            if not found:
                return None
            if allocation.estimator is not None:
                for one, value in zip(found, self.groups.advantages([opened.key] * len(found), rollouts), strict=True):
                    one["rewards"] = one["rewards"].new_full(one["rewards"].shape, float(value))
            return concat_padded_tensors(found)

        def informative(self, trajectory: Mapping[str, Any]) -> bool:
            """Return whether a group has a gradient: a ``should_accept_fn``."""
            return self.groups.teaches(trajectory.get("verdict", trajectory["rewards"]).flatten().tolist())

        def save(self, folder: str | Path) -> None:
            """Save the groups in ``folder``, that of AReaL's checkpoint."""
            save_state(Path(folder) / FILE, KIND, self.groups.state_dict())

        def load(self, folder: str | Path) -> None:
            """Restore what ``save`` wrote. Raise SavedStateError for anything else."""
            self.groups.load(Path(folder) / FILE, KIND)

    return Allocated()


def _rollout(trajectory: Mapping[str, Any], groups: EngineGroups) -> Rollout | None:
    """Return the rollout of a trajectory of batch size 1. Raise ValueError for anything else."""
    missing = [name for name in READ if name not in trajectory]
    if missing or trajectory["rewards"].shape[:1] != (1,):
        got = f"no {missing[0]}" if missing else f"rewards of shape {list(trajectory['rewards'].shape)}"
        raise ValueError(
            f"an episode of the workflow must be one trajectory with {', '.join(READ)}, got {got}; let it sample once, "
            "as with n_samples=1, and return tensors of batch size 1"
        )
    sampled = trajectory["loss_mask"].bool()
    return groups.rollout(
        trajectory["rewards"].sum().item(),
        int(sampled.sum()),
        trajectory["logprobs"][sampled].double(),
        trajectory.get("verdict"),
    )
