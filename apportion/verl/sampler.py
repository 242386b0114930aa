"""The sampler of verl's training data loader, which yields the rows that the coordinator's selector chooses.

verl 0.9's trainer reads no setting for its sampler, also not ``data.sampler``. So a name in the module of the trainer
is replaced in the trainer's process, before the trainer makes the loader. The coordinator starts later; a row is first
asked for when training begins.
"""

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, ClassVar

from torch.utils.data import Sampler
from verl.trainer.ppo.v1 import trainer_base

from apportion.predictors.saved import SavedValues
from apportion.runs.declared_types import fits
from apportion.verl.seam import replace

Choose = Callable[[int], list[int]]
"""(number of rows of the data set) -> the rows of the next choice."""


class ChosenRows(Sampler[int]):
    """Yields row numbers without end: the rows of one choice after the other. A choice is made when it is needed.

    A choice is for a whole training batch, also if the loader takes single rows. The position is saved with the loader,
    so that a resumed run neither repeats nor loses a choice. Iterating again continues at the position.

    ``choose`` is set by the manager of this process. ``installed`` says whether verl's trainers here take it.
    """

    choose: ClassVar[Choose | None] = None
    installed: ClassVar[bool] = False

    def __init__(self, dataset: Sized) -> None:
        self._rows = len(dataset)
        self._rest: list[int] = []

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self._rest:
            choose = type(self).choose
            if choose is None:
                raise RuntimeError(
                    "rows can only be chosen once an agent-loop manager was created, got none; take the first batch "
                    "then"
                )
            self._rest = choose(self._rows)
        return self._rest.pop(0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the rows of the latest choice that were not yielded yet."""
        return {"rest": list(self._rest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position. Raises ValueError for the state of another sampler."""
        own = {name: state[name] for name in state if name != "choices"}  # which states of 0.3.0 have
        saved = SavedValues(own, "the sampler of a selection", ["rest"])
        rest = saved.values["rest"]
        if not fits(rest, list[int]) or not all(0 <= row < self._rows for row in rest):
            raise saved.refusal("rest", f"a list of rows below {self._rows}")
        self._rest = list(rest)


def install(selected: bool) -> None:
    """Have verl's trainers in this process check their rows, and take them from ``ChosenRows`` if ``selected``."""

    def checked(create: Callable[[Any, Sized], Any]) -> Callable[[Any, Sized], Any]:
        def make(data_config: Any, dataset: Sized) -> Any:
            """Return the sampler. Raises ValueError for fewer rows than a batch, of which verl would make no step."""
            rows, batch, longest = len(dataset), int(data_config.train_batch_size), data_config.get("max_prompt_length")
            if rows < batch:
                raise ValueError(
                    f"data.train_files must have the {batch} prompts of data.train_batch_size, got {rows} after those "
                    f"above data.max_prompt_length={longest} were left out, of which no step can be made; raise that "
                    "length, give more prompts, or lower data.train_batch_size"
                )
            return ChosenRows(dataset) if selected else create(data_config, dataset)

        return make

    ChosenRows.installed = selected
    replace(trainer_base, "create_rl_sampler", checked)
