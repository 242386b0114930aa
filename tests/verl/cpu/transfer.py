"""A checkpoint engine of verl that sends weights over gloo, from training workers to rollout workers without a GPU.

verl has engines for NCCL, HCCL, NIXL and others, all of which need a device. It finds this one by its own setting
``actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module``.
"""

import pickle
from datetime import timedelta

import ray
import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

BACKEND = "gloo"
TIMEOUT = timedelta(seconds=60)


@CheckpointEngineRegistry.register(BACKEND)
class GlooCheckpointEngine(CheckpointEngine):
    """Broadcasts from training rank 0 to all rollout workers. The other training ranks only gather."""

    def __init__(self, bucket_size, is_master=False):
        self.is_master = is_master
        self.rank, self.store, self.group = -1, None, None

    def prepare(self):
        if not self.is_master:
            return None
        host = ray.util.get_node_ip_address()
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        return host, self.store.port

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        def settings(ranks):
            return {"rank": ranks, "size": [1 + rollout_world_size] * len(ranks), "master": [metadata[0]] * len(ranks)}

        actors = [0] + [-1] * (actor_wg_world_size - 1)
        return settings(actors), settings(list(range(1, 1 + rollout_world_size)))

    def init_process_group(self, rank, size, master):
        self.rank = rank
        if rank >= 0:
            self.store = self.store or TCPStore(*master, is_master=False, timeout=TIMEOUT)
            self.group = ProcessGroupGloo(self.store, rank, size, TIMEOUT)

    def finalize(self):
        self.group = self.store = None

    async def send_weights(self, weights, global_steps=None):
        found = [(name, weight.detach().cpu().contiguous()) for name, weight in weights]  # each gathered from all ranks
        if self.rank == 0:
            described = [(name, weight.shape, weight.dtype) for name, weight in found]
            self.store.set("weights", pickle.dumps(described))
            for _, weight in found:
                self._broadcast(weight)

    async def receive_weights(self, global_steps=None):
        for name, shape, dtype in pickle.loads(self.store.get("weights")):
            weight = torch.empty(shape, dtype=dtype)
            self._broadcast(weight)
            yield name, weight

    def _broadcast(self, weight):
        options = BroadcastOptions()
        options.rootRank = 0
        self.group.broadcast([weight], options).wait()
