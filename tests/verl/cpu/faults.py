"""verl's single-turn agent loop with faults on demand: a test puts their names in the folder ``faults`` of its records.

A file ``{fault}_{index}`` is for every rollout of the question with that index, ``{fault}_{index}@{step}`` for those of
one step, and ``{fault}_{index}.{number}`` for one rollout only, which takes it away. Faults are methods of ``Faults``.
"""

import asyncio
import contextlib
import os
from pathlib import Path

import ray
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class Faults:
    """What may happen to a rollout before it is sampled with ``_params``."""

    def __init__(self, params):
        self._params = params

    async def fails(self):
        raise RuntimeError("this rollout fails")

    async def hangs(self):
        await asyncio.sleep(10_000)

    async def clings(self):
        """It ignores its first cancellation, and writes down that it ends at the second."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10_000)
        try:
            await asyncio.sleep(10_000)
        finally:
            Path(os.environ["VERL_TEST_RECORDS"], "clung").touch()

    async def stalls(self):
        """Its server generates until the request is aborted."""
        self._params["stalled"] = True

    async def kills_worker(self):
        os._exit(1)

    async def kills_coordinator(self):
        ray.kill(_coordinator(), no_restart=False)

    async def ends_coordinator(self):
        ray.kill(_coordinator(), no_restart=True)


class FaultyAgentLoop(SingleTurnAgentLoop):
    """Suffers the faults asked for, then does as verl's."""

    async def run(self, sampling_params, **kwargs):
        for fault in vars(Faults):
            if not fault.startswith("_") and _asked(fault, int(kwargs["index"]), int(kwargs["global_steps"])):
                await getattr(Faults(sampling_params), fault)()
        return await super().run(sampling_params, **kwargs)


def _coordinator():
    (name,) = [name for name in ray.util.list_named_actors() if name.startswith("apportion_")]
    return ray.get_actor(name)


def _asked(fault, index, step):
    """Whether the folder asks for ``fault``; of those for one rollout one is taken away."""
    folder = Path(os.environ["VERL_TEST_RECORDS"], "faults")
    if (folder / f"{fault}_{index}").exists() or (folder / f"{fault}_{index}@{step}").exists():
        return True
    for path in sorted(folder.glob(f"{fault}_{index}.*")):
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        return True
    return False
