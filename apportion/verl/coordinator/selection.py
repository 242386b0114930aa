"""The choices of a selector: rows for the trainer's data loader, and extra prompts for allocators that draw them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.engines.metrics import SELECTION_PREFIX
from apportion.predictors import Predictor
from apportion.predictors.saved import SavedValues
from apportion.selection import Selector
from apportion.types import Prompt
from apportion.untrusted import shown

UNREAD = ("choices", "latest")
"""Further keys in states of 0.3.0."""


@dataclass
class PromptSelection:
    """Chooses the rows of the training data with ``selector``, which is prepared with ``prompts`` [Q], one for a row.

    ``prompt_at`` returns the prompt of a row, whose ``data`` is the row for the worker.
    """

    selector: Selector
    prompts: Sequence[Prompt]
    prompt_at: Callable[[int], Prompt]
    batch_size: int
    seed: int = 0
    predictor: Predictor | None = None

    def __post_init__(self) -> None:
        self._ids = {prompt.id for prompt in self.prompts}
        self.selector.prepare(self.prompts, self.seed, self.predictor)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError if the trainer requests a prompt that is not in the data set."""
        for prompt in prompts:
            if prompt.id not in self._ids:
                raise ValueError(
                    f"prompts must be in the data set that they are chosen from, got {shown(prompt.text)}; use a data "
                    "set that gives the same rows whenever it is loaded"
                )

    def choose(self, rows: int) -> list[int]:
        """Return the rows of the next batch. Raises ValueError unless the trainer's data set has so many ``rows``."""
        if rows != len(self.prompts):
            raise ValueError(
                f"the trainer must load the data set that prompts are chosen from, of {len(self.prompts)} rows, got "
                f"{rows} rows; set data.seed, and do not change data.train_files during a run"
            )
        return self.selector.choose(self.batch_size)

    def draw(self, count: int, held: set[str]) -> list[Prompt]:
        """Return ``count`` prompts whose ids are not in ``held``, and whose ``data`` is their row."""
        return [self.prompt_at(row) for row in self.selector.choose(count, held)]

    def metrics(self) -> dict[str, float]:
        """Return the coverage so far, with its prefix."""
        return {SELECTION_PREFIX + name: value for name, value in self.selector.metrics().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what was chosen and learned."""
        return {"selector": self.selector.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned. Raises ValueError for anything else."""
        own = {name: state[name] for name in state if name not in UNREAD}
        self.selector.load_state_dict(SavedValues(own, "the selection", ["selector"]).state("selector"))
