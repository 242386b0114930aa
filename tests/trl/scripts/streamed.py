"""TRL's asynchronous trainer with an allocator on the CPU, and a policy that chats in characters.

``python -m tests.trl.scripts.streamed POLICY URL FOLDER STEP`` trains, writes the prompts of each step to
FOLDER/prompts.json, and is killed at STEP.
"""

import functools
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import AddedToken
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, TrainerCallback
from trl.chat_template_utils import qwen3_chat_template
from trl.experimental.async_grpo import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    async_rollout_worker,
    packing,
)

from apportion import Uniform
from apportion.trl import AllocatedAsyncGRPOTrainer
from tests.cases import settings_of
from tests.trl.tiny import tokenizer_of

LENGTH = 4
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<unk>")
CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]


def save_policy(folder):
    """Save a policy and its tokenizer, which vLLM can serve and TRL can parse, to ``folder``."""
    vocabulary = (*SPECIAL, *CHARACTERS)
    tokenizer = tokenizer_of(vocabulary, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.add_tokens([AddedToken("<tool_call>"), AddedToken("</tool_call>")])
    tokenizer.chat_template = qwen3_chat_template
    torch.manual_seed(0)
    sizes = settings_of(
        "hidden_size = 64, intermediate_size = 64, num_hidden_layers = 2, num_attention_heads = 2,"
        "num_key_value_heads = 1, max_position_embeddings = 1024, tie_word_embeddings = true, pad_token_id = 0"
    )
    ends = tokenizer.eos_token_id
    policy = LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), eos_token_id=ends, bos_token_id=None, **sizes))
    policy.generation_config.eos_token_id, policy.generation_config.pad_token_id = ends, 0
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
    """Put in place what TRL needs a GPU for: the kernel of its attention, the name of the device, vLLM's package."""
    put(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attention))
    put(async_grpo_trainer, "get_peak_flops_per_device", lambda *device: None)
    put(async_rollout_worker, "is_vllm_available", lambda: True)


def preloaded(put, method="forkserver"):
    """Start TRL's processes from one that has imported what they need, which takes seconds."""
    context = multiprocessing.get_context(method)
    multiprocessing.set_forkserver_preload(["apportion.trl.stream_loop", "tests.trl.scripts.streamed"])
    put(async_rollout_worker, "mp", SimpleNamespace(get_context=lambda kind: context))


@functools.cache
def make_questions(count):
    """Return ``count`` questions. A completion is correct if its first character is among the first ``k``."""
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"{i:03d}{'+' * (i % 3)}"}], "k": 12 * (i % 8)} for i in range(count)]
    )


def mark(completion, k):
    text = completion[0]["content"] if completion else ""
    return float(text[:1] != "" and text[0] in CHARACTERS[:k])


def judge(completions, k, **columns):
    return [mark(each, own) for each, own in zip(completions, k, strict=True)]


def text_of(messages):
    return messages[-1]["content"]


def make(policy, url, folder, questions=12, reward=judge, dataset=None, stock=False, **given):
    """Return a trainer of updates of 16 rows, four prompts of four rollouts each, of an adapter on the CPU."""
    settings = settings_of(
        f"per_device_train_batch_size = 8, gradient_accumulation_steps = 2, num_generations = 4, max_steps = 4,"
        f"max_completion_length = {LENGTH}, learning_rate = 1e-2, report_to = [], use_cpu = true, bf16 = false,"
        f'gradient_checkpointing = false, save_strategy = "no", disable_tqdm = true, seed = 0, max_staleness = 1,'
        f"token_budget = 0, heartbeat_stale_after_s = 20.0"
    )
    own = {name: given.pop(name) for name in list(given) if name in AsyncGRPOConfig.__dataclass_fields__}
    built = (AsyncGRPOTrainer if stock else AllocatedAsyncGRPOTrainer)(
        policy,
        reward,
        AsyncGRPOConfig(str(folder), vllm_server_base_url=url, **settings | own),
        make_questions(questions) if dataset is None else dataset,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"]),
        **({} if stock else {"allocator": Uniform(4)}) | given,
    )
    built.remove_callback(PrinterCallback)
    return built


class Killed(TrainerCallback):
    """Write down what each step trained on, and the process that samples; kill the trainer at a step."""

    def __init__(self, trainer, file, at):
        self.trainer, self.file, self.at, self.given = trainer, file, at, []
        worker, give = trainer.rollout_worker, trainer.rollout_worker._give
        worker._give = lambda update: (self.given.append([group.prompt.text for group in update.groups]), give(update))

    def on_step_end(self, args, state, control, **settings):
        found = {"child": self.trainer.rollout_worker._process.pid, "prompts": self.given[: state.global_step]}
        self.file.write_text(json.dumps(found))
        if state.global_step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


RESUMED = {"estimator": "reinforce", "baseline": "spo", "max_steps": 9, "save_strategy": "steps", "save_steps": 3}
"""Settings of runs that are killed and resumed: three epochs of twelve prompts."""


def main():
    policy, url, folder, step = sys.argv[1:]
    without_gpu()
    preloaded(setattr, "fork")
    trainer = make(policy, url, folder, **RESUMED)
    trainer.add_callback(Killed(trainer, Path(folder) / "prompts.json", int(step)))
    trainer.train()


if __name__ == "__main__":
    main()
