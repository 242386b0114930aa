"""verl's single-turn agent loop with faults on demand: a test puts their names in the folder ``faults`` of its records.

A file ``{fault}_{index}`` is for every rollout of the question with that index, ``{fault}_{index}@{step}`` for those of
one step. With ``.{number}`` at its end it is for one rollout only, which takes it away. Faults are methods of
``Faults``.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import ray
import transfer_queue as tq
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from tests.verl.cpu.fault_files import asked


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

    async def stops_worker_writing(self):
        """Its rows are written, and nobody is told."""
        write = tq.async_kv_batch_put

        async def written(**settings):
            found = await write(**settings)
            os.kill(os.getpid(), signal.SIGSTOP)
            return found

        tq.async_kv_batch_put = written

    async def ends_worker(self):
        """Ray does not restart it."""
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
        await asyncio.sleep(10_000)

    async def kills_trainer(self):
        records = Path(os.environ["VERL_TEST_RECORDS"])
        (records / "trainer_killed").touch()
        os.kill(int((records / "trainer").read_text()), signal.SIGKILL)
        await asyncio.sleep(10_000)


class FaultyAgentLoop(SingleTurnAgentLoop):
    """Suffers the faults asked for, then does as verl's."""

    async def run(self, sampling_params, **kwargs):
        for fault in vars(Faults):
            if not fault.startswith("_") and asked(fault, int(kwargs["index"]), int(kwargs["global_steps"])):
                await getattr(Faults(sampling_params), fault)()
        return await super().run(sampling_params, **kwargs)
