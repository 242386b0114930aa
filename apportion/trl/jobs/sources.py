"""Models and problems that a job may name beside those of the hub: what a source of them must offer."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from apportion.runs.progress import Display


class SourceModel(Protocol):
    """A model of a source."""

    @property
    def description(self) -> str:
        """Whose model it is, for the plan."""

    @property
    def max_new_tokens(self) -> int:
        """Tokens of the longest right completion."""

    @property
    def max_positions(self) -> int:
        """Tokens of the longest sequence that the model takes."""

    def tokenizer(self) -> Any:
        """Return the tokenizer, before the model itself is made."""

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text. Raise ValueError for a text that the model cannot read."""

    def folder(self, display: Display | None) -> Path:
        """Return the folder of the weights, which are made first if they are missing. Show that on ``display``."""


class ModelSource(Protocol):
    """A source of models, and of problems that they can be trained on."""

    defaults: Mapping[str, Any]
    """Settings of a job on these problems that its file may leave out, such as the verifier."""

    def model(self, name: str) -> SourceModel:
        """Return the model called ``name``. Raise ValueError if there is none."""

    def data(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``settings`` of a job's data set with the file of the problems of ``name``. Raise ValueError."""


Sources = Mapping[str, Callable[[], ModelSource]]
"""How to make each source, by the prefix of its names, such as "lab:"."""

NO_SOURCES: Sources = {}


def find_source(name: Any, sources: Sources) -> tuple[ModelSource, str] | None:
    """Return the source that ``name`` begins with and the rest of the name; None for a name of something else."""
    for prefix, make_source in sources.items():
        if isinstance(name, str) and name.startswith(prefix):
            return make_source(), name.removeprefix(prefix)
    return None
