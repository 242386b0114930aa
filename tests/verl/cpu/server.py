"""A rollout server of verl: one process that holds the policy and samples from it, for all training workers.

It counts the requests that are cancelled, and writes down what is left when it is put to sleep, into
``sleeps_{rank}.jsonl`` of the records. A request with ``stalled`` among its sampling parameters never ends by itself.
With a file ``stops_server_sleeping`` in the folder ``faults`` of the records it stops when it is put to sleep.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path

import ray
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from tests.verl.cpu.sampling import Request, sample, seed_of
from tests.verl.cpu.script import script

GATHERS = 0.02
"""Seconds that requests wait for others to share a batch with."""


class Server:
    """Tokens in, tokens out. A rollout is fixed by its prompt, the weights' step and how often it was asked for."""

    def __init__(self, policy, tokens, seed):
        torch.set_num_threads(1)
        self.policy = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy)).double().eval()
        self.tokenizer = AutoTokenizer.from_pretrained(policy)
        self.tokens, self.seed = tokens, seed
        self.global_steps, self.asked = None, Counter()
        self.waiting, self.task = [], None
        self.live, self.stalled, self.cancelled = {}, set(), 0

    async def load(self, weights, global_steps=None):
        self.policy.load_state_dict(weights)
        if global_steps is not None:
            self.global_steps = global_steps
        self.asked.clear()

    async def generate(self, request_id, prompt_ids, sampling_params, **rest):
        prompt, temperature = tuple(prompt_ids), sampling_params.get("temperature", 1.0)
        number = self.asked[prompt, temperature]  # apart for validation, which leaves training as it is
        self.asked[prompt, temperature] += 1
        scripted = self.tokenizer.encode(script(self.tokenizer.decode(prompt), number))
        request = Request(
            prompt=prompt,
            # requests of one prompt differ by nothing but their number
            seed=seed_of(self.seed, self.global_steps, prompt, number),
            temperature=temperature,
            tokens=sampling_params.get("max_tokens") or self.tokens,
            stops=frozenset([self.tokenizer.eos_token_id, *(sampling_params.get("stop_token_ids") or ())]),
            forced=tuple(scripted),
        )
        found = asyncio.get_running_loop().create_future()
        self.live[request_id] = found
        found.add_done_callback(lambda _: self.live.pop(request_id))
        if sampling_params.get("stalled"):
            self.stalled.add(request_id)
        else:
            self.waiting.append((request, found))
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._serve())
        extra = {"global_steps": self.global_steps}
        try:
            rollout = await found
        except asyncio.CancelledError:  # vLLM too aborts a request whose call is cancelled
            self.cancelled += 1
            raise
        if rollout is None:
            return TokenOutput(token_ids=[], log_probs=None, stop_reason="aborted", extra_fields=extra)
        ids, log_probs = rollout
        return TokenOutput(token_ids=ids, log_probs=log_probs, stop_reason="completed", extra_fields=extra)

    async def _serve(self):
        await asyncio.sleep(GATHERS)
        while self.waiting:
            batch, self.waiting = self.waiting, []
            requests = [request for request, _ in batch]
            rollouts = await asyncio.to_thread(sample, self.policy, requests, self.tokenizer.pad_token_id)
            for (_, found), rollout in zip(batch, rollouts, strict=True):
                if not found.done():
                    found.set_result(rollout)

    async def abort_all_requests(self, reject_request=False):
        """End all requests that do not end by themselves."""
        for request_id in self.stalled & self.live.keys():
            self.live[request_id].set_result(None)

    async def sleep(self):
        """Wait, as vLLM's replica does, until nothing is generated any more."""
        folder = os.environ.get("VERL_TEST_RECORDS")
        if folder:
            if self.global_steps is not None and Path(folder, "faults", "stops_server_sleeping").exists():
                os.kill(os.getpid(), signal.SIGSTOP)
            with Path(folder, f"sleeps_{self.seed[1]}.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"live": len(self.live), "cancelled": self.cancelled}) + "\n")
        while self.live:
            await asyncio.sleep(GATHERS)

    async def count_live(self):
        return len(self.live)

    async def _nothing(self, *args, **settings):
        return None

    wake_up = resume_generation = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


def server_name(replica_rank):
    return f"tiny_server_{replica_rank}"


class Replica(RolloutReplica):
    """verl's handle of the server, in the trainer's process."""

    async def launch_servers(self):
        server = (
            ray.remote(num_cpus=0.1)(Server)
            .options(name=server_name(self.replica_rank), max_concurrency=1000)
            .remote(self.model_config.path, self.config.response_length, (self.config.seed, self.replica_rank))
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(self.replica_rank)


class Adapter(BaseRollout):
    """Sends the weights to the server, from the training workers; keeps a copy of them where a test asks for it."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        world = config.tensor_model_parallel_size * config.data_parallel_size
        self.replica_rank = rank // world if replica_rank == -1 else replica_rank
        self.rollout_rank = rank % world

    async def resume(self, tags):
        return None

    async def release(self):
        return None

    async def update_weights(self, weights, global_steps=None, **rest):
        # every rank must go through them: each is gathered from all ranks
        full = {name: weight.detach().cpu().clone() async for name, weight in ensure_async_iterator(weights)}
        if self.rollout_rank == 0:
            await ray.get_actor(server_name(self.replica_rank)).load.remote(full, global_steps)
            folder = os.environ.get("VERL_TEST_RECORDS")
            if folder and self.replica_rank == 0:
                torch.save(full, Path(folder) / f"weights_{global_steps}.pt")
