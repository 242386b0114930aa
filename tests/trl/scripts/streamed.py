"""TRL's asynchronous trainer with an allocator on the CPU."""

from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import PrinterCallback
from trl.experimental.async_grpo import AsyncGRPOConfig, async_grpo_trainer, packing

from apportion import Uniform
from apportion.trl import AllocatedAsyncGRPOTrainer
from tests.cases import settings_of
from tests.trl import tiny


def attention(query, key, value, starts, starts_k, longest, longest_k, softmax_scale, causal, window_size):
    """Return what the kernel of TRL's trainer, which needs a GPU, returns: attention within each segment."""
    found, bounds = [], (starts.tolist(), starts_k.tolist())
    for first, last, first_k, last_k in zip(bounds[0][:-1], bounds[0][1:], bounds[1][:-1], bounds[1][1:], strict=True):
        parts = query[first:last], key[first_k:last_k], value[first_k:last_k]
        seen = torch.ones(last - first, last_k - first_k, dtype=torch.bool).tril(last_k - first_k - last + first)
        own, keys, values = (each.transpose(0, 1) for each in parts)
        out = scaled_dot_product_attention(own, keys, values, seen, scale=softmax_scale, enable_gqa=True)
        found.append(out.transpose(0, 1))
    return torch.cat(found)


def without_gpu(put=setattr):
    """Put in place what TRL's trainer needs a GPU for: the kernel of its attention, and the name of the device."""
    put(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attention))
    put(async_grpo_trainer, "get_peak_flops_per_device", lambda *device: None)


def judge(completions, k, **columns):
    return [tiny.mark(text, each) for text, each in zip(completions, k, strict=True)]


def make(policy, folder, questions=12, reward=judge, dataset=None, **given):
    """Return a trainer of updates of 16 rows, four prompts of four rollouts each, on the CPU."""
    settings = settings_of(
        f"per_device_train_batch_size = 8, gradient_accumulation_steps = 2, num_generations = 4, max_steps = 4,"
        f"max_completion_length = {tiny.LENGTH}, learning_rate = 1e-3, report_to = [], use_cpu = true, bf16 = false,"
        f'gradient_checkpointing = false, save_strategy = "no", disable_tqdm = true, seed = 0, max_staleness = 1,'
        f"heartbeat_stale_after_s = 20.0"
    )
    own = {name: given.pop(name) for name in list(given) if name in AsyncGRPOConfig.__dataclass_fields__}
    built = AllocatedAsyncGRPOTrainer(
        policy,
        reward,
        AsyncGRPOConfig(str(folder), **settings | own),
        tiny.make_questions(questions) if dataset is None else dataset,
        **{"allocator": Uniform(4)} | given,
    )
    built.remove_callback(PrinterCallback)
    return built
