"""The lab's policies and problems for training jobs in TRL, where they are called "lab:medium" and the like."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from apportion.checks import check_choice
from apportion.lab.policy.export import RIGHT, STATED, max_new_tokens, policy_folder, problems_file
from apportion.lab.policy.network import new_policy
from apportion.lab.policy.recipes import check_base, is_trained
from apportion.lab.world.task import encode
from apportion.lab.world.tokenizer import ledger_tokenizer
from apportion.runs.progress import Display

SPLITS = {"train": False, "test": True}
"""Whether a split holds the held-out problems."""


@dataclass(frozen=True)
class LabModel:
    """The base policy ``base`` as the model of a job. Raises ValueError if the lab has none of that name."""

    base: str

    def __post_init__(self) -> None:
        check_base(self.base)

    @property
    def description(self) -> str:
        """Where the model comes from, and whether it is cached."""
        return "of the lab, cached" if is_trained(self.base) else "of the lab, trained first, then cached"

    @property
    def max_new_tokens(self) -> int:
        """Tokens of the longest right completion."""
        return max_new_tokens(self.base)

    @property
    def max_positions(self) -> int:
        """Tokens of the longest sequence that the policy takes."""
        return new_policy(0).config.max_position_embeddings

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer of every base, trained or not."""
        return ledger_tokenizer()

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text. Raises ValueError for a text that is not of ledger tokens."""
        return [len(encode(text)) for text in texts]

    def folder(self, display: Display | None) -> Path:
        """Return the folder of the weights. Train the base if it is not cached, and show that on ``display``."""
        if display is None or is_trained(self.base):
            return policy_folder(self.base)
        with display.base_training() as progress:
            return policy_folder(self.base, progress)


DEFAULTS: Mapping[str, Any] = {"verifier": {"name": "function", "function": RIGHT}, "extract": STATED}
"""Settings of a job on the lab's problems that its file may leave out."""


def lab_data(base: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings`` of a data set with the file of the problems of a ``split`` and a template that adds nothing.

    Raises ValueError for a base or a split that the lab does not have.
    """
    check_base(base)
    rest = dict(settings)
    split = rest.pop("split", "train")
    check_choice("split", split, SPLITS)
    return {"template": "plain", "path": str(problems_file(base, SPLITS[split]))} | rest
