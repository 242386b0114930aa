"""The choices of a selector: rows for the trainer's data loader, and extra prompts for allocators that draw them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apportion.engines.metrics import SELECTION_PREFIX
from apportion.predictors import Predictor
from apportion.predictors.saved import SavedValues
from apportion.runs.declared_types import fits
from apportion.selection import Selector
from apportion.types import Prompt
from apportion.untrusted import shown

logger = logging.getLogger(__name__)


@dataclass
class PromptSelection:
    """Chooses the rows of the training data with ``selector``, which is prepared with ``prompts`` [Q], one for a row.

    The trainer numbers its choices from 0. So a repeated request gets the same answer, and a loader at another choice
    is refused. ``prompt_at`` returns the prompt of a row, whose ``data`` is the row for the worker.

    Raises ValueError if the prompts are too few for batches of ``batch_size``.
    """

    selector: Selector
    prompts: Sequence[Prompt]
    prompt_at: Callable[[int], Prompt]
    batch_size: int
    seed: int = 0
    predictor: Predictor | None = None
    choices: int = 0
    _latest: list[int] = field(default_factory=list)
    _follows: bool = False

    def __post_init__(self) -> None:
        self._ids = {prompt.id for prompt in self.prompts}
        if len(self._ids) < self.batch_size:
            raise ValueError(
                f"data.train_batch_size must be at most the number of distinct prompts with a selection, "
                f"{len(self._ids)}, got {self.batch_size}; lower it, or use a larger data set"
            )
        self.selector.prepare(self.prompts, self.seed, self.predictor)

    def follow_loader(self) -> None:
        """Take the number of the next request as that of the next choice, after a state that may be an older one's."""
        self._follows = True

    def check(self, number: int, rows: int) -> None:
        """Raise ValueError if choice ``number`` of a data set of so many ``rows`` does not continue those so far."""
        if rows != len(self.prompts):
            raise ValueError(
                f"the trainer must load the data set that prompts are chosen from, of {len(self.prompts)} rows, got "
                f"{rows} rows; set data.seed, and do not change data.train_files during a run"
            )
        follows, self._follows = self._follows, False
        if follows and number not in (self.choices, self.choices - 1):
            logger.warning(
                "The data loader asks for choice %d of prompts, but the state of the selection is that of choice %d; "
                "it continues at the loader's",
                number,
                self.choices,
            )
            self.choices = number
        if number not in (self.choices, self.choices - 1):
            raise ValueError(
                f"the data loader must ask for choice {self.choices} of prompts, got {number}; data.pt and "
                "allocation.pt must be of the same checkpoint, so resume from one that has both"
            )

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError if the trainer requests a prompt that is not in the data set."""
        for prompt in prompts:
            if prompt.id not in self._ids:
                raise ValueError(
                    f"prompts must be in the data set that they are chosen from, got {shown(prompt.text)}; use a data "
                    "set that gives the same rows whenever it is loaded"
                )

    def choose(self, number: int) -> list[int]:
        """Return the rows of choice ``number``, which is the latest one or the next."""
        if number == self.choices:
            self._latest = self.selector.choose(self.batch_size)
            self.choices += 1
        return list(self._latest)

    def draw(self, count: int, held: set[str]) -> list[Prompt]:
        """Return ``count`` prompts whose ids are not in ``held``, and whose ``data`` is their row."""
        return [self.prompt_at(row) for row in self.selector.choose(count, held)]

    def metrics(self) -> dict[str, float]:
        """Return the coverage so far, with its prefix."""
        return {SELECTION_PREFIX + name: value for name, value in self.selector.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what was chosen and learned."""
        return {"selector": self.selector.state_dict(), "choices": self.choices, "latest": list(self._latest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned. Raises ValueError for anything else."""
        saved = SavedValues(state, "the selection", ["selector", "choices", "latest"])
        latest = saved.values["latest"]
        if not fits(latest, list[int]) or min(latest, default=0) < 0:
            raise saved.refusal("latest", "a list of rows")
        choices = saved.count("choices")
        self.selector.load_state_dict(saved.state("selector"))
        self.choices, self._latest = choices, list(latest)
