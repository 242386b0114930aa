"""TRL's asynchronous trainer with an allocator on the CPU, and runs of it on several ranks.

    python -m torch.distributed.run --standalone --nproc_per_node 2 -m tests.trl.scripts.streamed FOLDER

Each rank writes what it saw to ``FOLDER``: a run, and one whose sampling process is killed.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import PrinterCallback, TrainerCallback
from trl.experimental.async_grpo import AsyncGRPOConfig, async_grpo_trainer, packing

from apportion import Uniform
from apportion.trl import AllocatedAsyncGRPOTrainer
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
        tiny.make_questions(questions) if dataset is None else dataset,
        **{"allocator": Uniform(4)} | given,
    )
    built.remove_callback(PrinterCallback)
    return built


class Seen(TrainerCallback):
    """The rows of this rank by step; the process that samples is killed after the step ``kills``."""

    def __init__(self, trainer, kills=0):
        self.trainer, self.kills, self.rows = trainer, kills, []
        trainer.add_callback(self)
        compute = trainer.compute_loss
        trainer.compute_loss = lambda model, inputs, *rest, **named: (
            self.take(inputs),
            compute(model, inputs, *rest, **named),
        )[1]

    def on_step_begin(self, *args, **settings):
        self.rows.append([])

    def take(self, inputs):
        first = inputs["token_index"][inputs["token_index"] >= 0]
        owner = inputs["segment_id"][: len(first)]
        for i in range(int(owner.max()) + 1):
            self.rows[-1].append(inputs["old_log_probs"][: len(first)][owner == i].tolist())

    def on_step_end(self, args, state, control, **settings):
        if state.global_step == self.kills and self.trainer.accelerator.is_main_process:
            os.kill(self.trainer._worker._process.pid, signal.SIGKILL)


def main(folder):
    without_gpu()
    rank, policy = int(os.environ["RANK"]), folder / f"policy-{os.environ['RANK']}"
    tiny.make_policy().save_pretrained(policy)
    tiny.make_tokenizer().save_pretrained(policy)
    trainer = make(str(policy), folder / "run", per_device_train_batch_size=4, max_steps=3)
    total = [float(weight.double().sum()) for weight in trainer.model.parameters()]
    seen = Seen(trainer)
    trainer.train()
    found = {"before": total, "weights": [float(weight.double().sum()) for weight in trainer.model.parameters()]}
    killed = make(str(policy), folder / "killed", per_device_train_batch_size=4, max_steps=50)
    Seen(killed, kills=2)
    try:
        killed.train()
    except RuntimeError as error:
        found["ended"] = str(error)
    (folder / f"rank-{rank}.json").write_text(json.dumps(found | {"rows": seen.rows}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
