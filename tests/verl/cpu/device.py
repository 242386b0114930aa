"""The platform "cpu" of verl: a device whose memory, streams and caches need no care."""

import contextlib
import types

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NOTHING = (
    "empty_cache",
    "synchronize",
    "set_device",
    "manual_seed",
    "manual_seed_all",
    "ipc_collect",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
)
ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
MEMORY = 1 << 34


def _nothing(*args, **settings):
    return None


def _zero(*args, **settings):
    return 0


def device_module():
    """What ``torch.cuda`` is to a GPU."""
    module = types.ModuleType("cpu_device")
    vars(module).update(dict.fromkeys(NOTHING, _nothing) | dict.fromkeys(ZERO, _zero))
    module.current_device = lambda: torch.device("cpu")
    module.device_count = lambda: 1
    module.is_available = lambda: True
    module.mem_get_info = lambda *args: (MEMORY, MEMORY)
    module.get_rng_state, module.set_rng_state = torch.get_rng_state, torch.set_rng_state
    module.get_device_name = lambda *args: "cpu"
    module.Stream = torch.Stream
    module.is_bf16_supported = lambda *args: True
    return module


class CPU(PlatformBase):
    """Ray counts logical GPUs: verl places its workers by them alone."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "generic")
    device_module = property(lambda self: _MODULE)
    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = _nothing
    cudart = _nothing

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False


_MODULE = device_module()


def register():
    PlatformRegistry.register(platform="cpu")(CPU)
