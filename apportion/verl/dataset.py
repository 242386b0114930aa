"""The training data as prompts: those that the trainer requests, and extra ones that an allocator draws."""

import json
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.config import omega_conf_to_dataclass

from apportion.engines.fresh_rows import FreshRows, draw_distinct
from apportion.engines.prompts import text_of
from apportion.types import Prompt, prompt_id
from apportion.untrusted import shown


def prompt_of(
    row: Mapping[str, Any], id_key: str | None = None, data: Any = None, rate_key: str | None = None
) -> Prompt:
    """Return the prompt of a row of verl's data set: its text, and an id that is the same in every epoch and run.

    The id is ``extra_info[id_key]``, or a hash of the text and the data source. The hash does not distinguish prompts
    that differ only in their images. verl's own ``index`` cannot serve, because it is 0 if a data set has none.

    Its known success rate is ``extra_info[rate_key]``, which may be None.

    Raises ValueError if ``extra_info`` lacks ``id_key`` or ``rate_key``, for an id that is None or NaN, and for a rate
    outside [0, 1].

    >>> row = {"raw_prompt": [{"role": "user", "content": "6 x 7?"}], "extra_info": {"number": 3}}
    >>> prompt_of(row).text, prompt_of(row, "number").id
    ('6 x 7?', '3')
    """
    extra = row.get("extra_info") or {}
    for setting, key, without in (("id_key", id_key, "to use hashes"), ("rate_key", rate_key, "if no rates are known")):
        if key is not None and key not in extra:
            raise ValueError(
                f"allocation.{setting} must be a key of extra_info, which has {', '.join(extra) or 'none'}, got "
                f"{key!r}; leave it out {without}"
            )
    text = text_of(row["raw_prompt"]) or json.dumps(row.get("extra_info"), sort_keys=True, default=str)
    id = prompt_id(text, str(row.get("data_source", ""))) if id_key is None else str(extra[id_key])
    if id in ("None", "nan"):
        raise ValueError(
            f"allocation.id_key must be a key of extra_info with a value in every row, got {id} for {id_key!r} of "
            f"{shown(text)}; rows without one would count as one prompt, so leave it out to use hashes"
        )
    try:
        return Prompt(text, id=id, data=data, rate=extra.get(rate_key))
    except ValueError as error:
        raise ValueError(
            f"allocation.rate_key must be a key of success rates, got {rate_key!r}, and in row {id}: {error}"
        ) from error


class TrainingPrompts:
    """The prompts of the training data set, which is loaded as verl loads it when it is first needed.

    Extra prompts come in an order of their own, which the trainer does not know, or in that of the data under
    ``data.shuffle=False``. A prompt may come from both in one epoch, but never twice in one round. ``drawn`` is the
    number of rows drawn since the first.
    """

    def __init__(self, config: DictConfig, id_key: str | None, rate_key: str | None = None) -> None:
        self._config, self._id_key, self._rate_key = config, id_key, rate_key
        self._fresh: FreshRows | None = None
        self._ordered: list[Prompt] | None = None
        self.drawn = 0

    def all(self) -> list[Prompt]:
        """Return all prompts, each once."""
        return list({prompt.id: prompt for prompt in self.in_order()}.values())

    def distinct(self, most: int) -> int:
        """Return the number of distinct prompts, counted up to ``most``."""
        found, rows = set[str](), self._rows().dataset
        for place in range(len(rows)):
            found.add(self._prompt(rows[place]).id)
            if len(found) == most:
                break
        return len(found)

    def in_order(self) -> list[Prompt]:
        """Return the prompt of every row, in the order of the trainer's data set. The rows are read once."""
        if self._ordered is None:
            rows = self._rows().dataset
            self._ordered = [self._prompt(rows[i]) for i in range(len(rows))]
        return self._ordered

    def at(self, row: int) -> Prompt:
        """Return the prompt of a row. Its ``data`` is the row for the worker."""
        return self._drawn_prompt(self._rows().dataset[row])

    def draw(self, count: int, held: set[str]) -> list[Prompt]:
        """Return the next ``count`` prompts with ids not in ``held``. Their ``data`` is the row for the worker."""
        rows = self._rows()
        rows.restore(self.drawn)
        found = draw_distinct(rows, count, held, lambda row: self._prompt(row).id)
        self.drawn = rows.drawn
        return [self._drawn_prompt(row) for row in found]

    def _drawn_prompt(self, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of ``row``, with what an agent loop gets: no columns that the trainer or verl replaces."""
        replaced = ("uid", "global_steps", "dummy_tensor")
        return self._prompt(row, {key: value for key, value in row.items() if key not in replaced})

    def _prompt(self, row: Mapping[str, Any], data: Any = None) -> Prompt:
        return prompt_of(row, self._id_key, data, self._rate_key)

    def _rows(self) -> FreshRows:
        if self._fresh is None:
            data = self._config.data
            model = omega_conf_to_dataclass(self._config.actor_rollout_ref.model)
            most = data.get("train_max_samples", -1)
            if most > 0 and data.get("shuffle") and data.get("seed") is None:
                raise ValueError(
                    "data.seed must be a number if data.train_max_samples takes a random part of the data, got None, "
                    "with which the trainer would take another part; set it, or data.shuffle=False"
                )
            dataset = create_rl_dataset(
                data.train_files, data, model.tokenizer, model.processor, is_train=True, max_samples=most
            )
            self._fresh = FreshRows(dataset, int(data.get("seed") or 0) if data.get("shuffle", True) else None)
        return self._fresh
