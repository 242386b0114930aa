"""verl's trainers, which also write down every row that they are about to train on, and the keys of all others."""

import json
import os
from pathlib import Path

import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

FIELDS = (
    "uid",
    "index",
    "prompts",
    "responses",
    "response_mask",
    "advantages",
    "rm_scores",
    "rollout_log_probs",
    "old_log_probs",
    "num_turns",
    "extra_fields",
)
OURS = ("apportion",)
"""Where rows have them."""


def plain(value):
    """A field of a row as verl's queue returns it, as numbers, lists and dictionaries."""
    value = value if hasattr(value, "tolist") else getattr(value, "data", value)
    return value.tolist() if hasattr(value, "tolist") else value


def rows_of(batch):
    """The rows of a batch, a dictionary each, in the batch's order."""
    fields = [*FIELDS, *(name for name in OURS if name in batch.fields)]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    columns = {name: [plain(value) for value in data[name]] for name in fields}
    return [
        {"key": key, "padding": bool(tag.get("is_padding"))} | {name: columns[name][i] for name in fields}
        for i, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True))
    ]


def register(trainer, mode="sync"):
    """Replace ``trainer`` in verl's registry by a subclass that records. A step may have several updates."""

    class Recorded(trainer):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            Path(os.environ["VERL_TEST_RECORDS"], "trainer").write_text(str(os.getpid()))

        def _update_actor(self, batch, metrics):
            others = [key for keys in tq.kv_list().values() for key in keys if key not in set(batch.keys)]
            Path(os.environ["VERL_TEST_RECORDS"], f"others_{self.global_steps}.json").write_text(json.dumps(others))
            lines = [
                json.dumps(row | {"update": self.local_trigger_step}, default=str) + "\n" for row in rows_of(batch)
            ]
            path = Path(os.environ["VERL_TEST_RECORDS"], f"rows_{self.global_steps}.jsonl")
            with path.open("a" if self.local_trigger_step else "w", encoding="utf-8") as file:
                file.writelines(lines)
            return super()._update_actor(batch, metrics)

    TRAINER_REGISTRY[mode] = Recorded
