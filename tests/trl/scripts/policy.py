"""What scripts need beside ``tiny``: settings for several ranks, and a policy that samples the same on any number.

Scripts run in processes of their own, because pytest cannot launch several ranks.
"""

import hashlib
import os
from collections import Counter

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import Qwen2ForCausalLM

from tests.trl import tiny

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
LENGTH = 4
"""Maximum tokens of a completion."""


class Scripted(Qwen2ForCausalLM):
    """A policy whose completions do not depend on its weights.

    The n-th completion of a prompt in a round is the same on any number of ranks.
    """

    rounds = 0

    def generate(self, input_ids, attention_mask, **settings):
        own = [tuple(row[mask.bool()].tolist()) for row, mask in zip(input_ids, attention_mask, strict=True)]
        met, written = Counter(), []
        for ids in gather_object(own):  # in the order of the round
            written.append(torch.tensor(_written(self.rounds, met[ids], ids)))
            met[ids] += 1
        self.rounds += 1
        mine = written[RANK * len(own) : (RANK + 1) * len(own)]
        completions = torch.nn.utils.rnn.pad_sequence(mine, batch_first=True, padding_value=tiny.PAD)
        return torch.cat([input_ids, completions], dim=1)


def _written(number, place, prompt):
    draw = np.random.default_rng([number, place, *prompt])
    ids = (draw.integers(len(tiny.CHARACTERS), size=draw.integers(1, LENGTH + 1)) + len(tiny.SPECIAL)).tolist()
    return ids if len(ids) == LENGTH else [*ids, tiny.EOS]


def saved(folder, kind=Qwen2ForCausalLM):
    """Return the tiny policy, loaded from a folder of this rank, because TRL loads a reference only from a path."""
    path = folder / f"policy-{RANK}"
    tiny.make_policy().save_pretrained(path)
    return kind.from_pretrained(path)


def answer(text):
    """Return one of four answers; None for an empty text."""
    return str(tiny.CHARACTERS.index(text[0]) // 6) if text else None


def right(completions, k, **columns):
    """A reward function without memory."""
    return [tiny.mark(text, each) for text, each in zip(completions, k, strict=True)]


def make_trainer(kind, folder, model=None, allocator=None, **given):
    """Return a trainer with batches of 4 prompts x 4 rollouts over all ranks, by default one optimizer step each."""
    shape = {"per_device_train_batch_size": 8 // RANKS, "gradient_accumulation_steps": 2, "num_generations": 4}
    backend = {} if RANKS == 1 else {"ddp_backend": "gloo"}
    if allocator is not None:
        given |= {"allocator": allocator, "extract": answer}
    if allocator is not None and not allocator.needs.labels:
        given["reward_funcs"] = []  # it has no labels
    config = shape | backend | {"learning_rate": 1e-2} | given.pop("config", {})
    given = {"reward_funcs": [right]} | given
    return tiny.made(kind, tiny.make_policy() if model is None else model, folder, config=config, **given)


def history(trainer):
    """Return what was logged at each step, without timings."""
    steps = [step for step in trainer.state.log_history if "loss" in step]
    return [{name: value for name, value in step.items() if not _timed(name)} for step in steps]


def _timed(name):
    parts = ("profiling/", "seconds", *tiny.TIMES)
    return any(part in name for part in parts)


def digest(model):
    """Return a hash of all weights."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().numpy().tobytes())
    return found.hexdigest()
