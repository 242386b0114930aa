"""verl on a CPU: loaded in every process by VERL_USE_EXTERNAL_MODULES=tests.verl.cpu.plugin.

Beside it go VERL_PLATFORM=cpu, and VERL_ENGINE_DEVICE=cuda, under which verl's registry finds its FSDP engine (no CUDA
is used). All is done by verl's own registries, but for what verl or torch refuses on a CPU; each place says what.
"""

import torch.distributed
import verl.utils.import_utils
import wrapt

from tests.verl.cpu import device

ROLLOUT = "tiny"
"""The rollout engine's name in ``actor_rollout_ref.rollout.name``."""

device.register()

# Every worker imports a class from the PPO trainer that TRL has dropped, where TRL is installed at all.
verl.utils.import_utils.is_trl_available = lambda: False

_init_process_group = torch.distributed.init_process_group


def init_process_group(backend=None, *args, **settings):
    """verl asks for a backend of the CPU and one of its device: here that is the same twice, which torch refuses."""
    return _init_process_group("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **settings)


torch.distributed.init_process_group = init_process_group


def _replica():
    from tests.verl.cpu.server import Replica  # noqa: PLC0415 - verl is still being imported here

    return Replica


@wrapt.when_imported("verl.workers.rollout.base")
def _register_adapter(module):
    module._ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "tests.verl.cpu.server.Adapter"


@wrapt.when_imported("verl.workers.rollout.replica")
def _register_replica(module):
    module.RolloutReplicaRegistry.register(ROLLOUT, _replica)


@wrapt.when_imported("verl.trainer.ppo.v1.trainer_sync")
def _register_recorder(module):
    from tests.verl.cpu.recorder import register  # noqa: PLC0415 - as above

    register(module.PPOTrainerSync)


@wrapt.when_imported("verl.trainer.ppo.v1.trainer_separate_async")
def _register_separate_recorder(module):
    from tests.verl.cpu.recorder import register  # noqa: PLC0415 - as above

    register(module.PPOTrainerSeparateAsync, "separate_async")


@wrapt.when_imported("verl.utils.model")
def _load_critic_without_flash_attention(module):
    """verl loads every critic with an attention that there is on GPUs alone."""
    from transformers import AutoModelForTokenClassification  # noqa: PLC0415 - as above

    load = AutoModelForTokenClassification.from_pretrained

    def from_pretrained(*args, attn_implementation, **settings):
        return load(*args, attn_implementation="sdpa", **settings)

    AutoModelForTokenClassification.from_pretrained = from_pretrained


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def _offload_to_unpinned_memory(module):
    """verl keeps the reference in memory that is pinned for a GPU."""
    policy = module.CPUOffloadPolicy
    module.CPUOffloadPolicy = lambda pin_memory: policy(pin_memory=False)
