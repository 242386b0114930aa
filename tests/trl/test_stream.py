"""TRL's asynchronous trainer with an allocator: what it trains on, what a checkpoint keeps, and how a run ends."""

import os
import signal
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from transformers import PrinterCallback, TrainerCallback

pytest.importorskip("trl.experimental.async_grpo.packing", reason="an early version of TRL")

from trl.experimental.async_grpo import AsyncGRPOConfig, async_grpo_trainer, packing

from apportion import VIP, Uniform
from apportion.trl.stream import AllocatedAsyncGRPOTrainer, StreamWorkerError, micro_batches
from tests.trl import tiny


def attention(query, key, value, starts, starts_k, longest, longest_k, softmax_scale, causal, window_size):
    """Return what the kernel of TRL's trainer, which needs a GPU, returns: attention within each segment."""
    found, repeats = [], query.size(1) // key.size(1)
    bounds = (starts.tolist(), starts_k.tolist())
    for first, last, first_k, last_k in zip(
        bounds[0][:-1], bounds[0][1:], bounds[1][:-1], bounds[1][1:], strict=True
    ):
        own, seen, values = query[first:last], key[first_k:last_k], value[first_k:last_k]
        seen, values = (each.repeat_interleave(repeats, 1).transpose(0, 1) for each in (seen, values))
        later = torch.ones(len(own), seen.size(1), dtype=torch.bool).triu(1 + seen.size(1) - len(own))
        scores = (own.transpose(0, 1) @ seen.transpose(1, 2) * softmax_scale).masked_fill(later, -torch.inf)
        found.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(found)


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    """TRL's trainer needs a GPU in two places: the kernel of its attention, and the name of the device."""
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attention))
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *device: None)


def judge(completions, k, **columns):
    return [tiny.mark(text, each) for text, each in zip(completions, k, strict=True)]


class Audit(TrainerCallback):
    """What the trainer trained on, by step: the samples that TRL's collator got."""

    def __init__(self, trainer, monkeypatch):
        self.steps, self.given, self.worker = [], [], trainer._worker
        put = self.worker._give
        monkeypatch.setattr(self.worker, "_give", lambda update: (self.given.append(update), put(update)))
        iterate = packing.TreeRow.pack
        self.rows = []
        monkeypatch.setattr(packing.TreeRow, "pack", lambda row: (self.rows.extend(row.samples), iterate(row))[1])
        trainer.add_callback(self)

    def on_step_end(self, *args, **settings):
        self.steps.append(self.rows[:])
        self.rows.clear()


def make(policy, folder, questions=12, reward=judge, **given):
    settings = {
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4,
        "max_completion_length": tiny.LENGTH, "max_steps": 4, "learning_rate": 1e-3, "report_to": [], "use_cpu": True,
        "bf16": False, "gradient_checkpointing": False, "save_strategy": "no", "disable_tqdm": True, "seed": 0,
        "max_staleness": 1, "heartbeat_stale_after_s": 20.0,
    }  # fmt: skip
    own = {name: given.pop(name) for name in list(given) if name in AsyncGRPOConfig.__dataclass_fields__}
    built = AllocatedAsyncGRPOTrainer(
        policy,
        reward,
        AsyncGRPOConfig(str(folder), **settings | own),
        tiny.make_questions(questions),
        **{"allocator": Uniform(4)} | given,
    )
    built.remove_callback(PrinterCallback)
    return built


def test_uniform_at_age_0(policy, tmp_path, monkeypatch):
    trainer = make(policy, tmp_path, max_staleness=0, max_steps=3)
    audit = Audit(trainer, monkeypatch)
    history = tiny.trained(trainer)
    for step in history[:3]: print({k: v for k, v in step.items() if not k.startswith("perf")})
    for rows in audit.steps: print(len(rows), Counter(r["group_id"] for r in rows))
