"""The plugin: axolotl's hooks that read the section, and name the trainer that trains with it.

axolotl builds its classes of arguments when they are first imported, from the plugins that are known by then. So
this module must not import the trainer. The trainer is named by its path instead.
"""

from dataclasses import dataclass
from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel, model_validator

from apportion.trl.axolotl.section import SECTION, with_trainer


class AllocationArgs(BaseModel):
    """The section ``apportion`` in axolotl's configuration, see ``with_trainer``."""

    apportion: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_trainer(cls, config: Any) -> Any:
        return with_trainer(config)


@dataclass
class AllocationTrainingArgs:
    """Adds the section ``apportion`` to the trainer's arguments, so that it is logged with them."""

    apportion: dict[str, Any] | None = None


class AllocationPlugin(BasePlugin):  # type: ignore[misc]
    """``plugins: [apportion.trl.axolotl.plugin.AllocationPlugin]`` in axolotl's YAML."""

    def get_input_args(self) -> str:
        """Return the path of the class that checks the section."""
        return f"{AllocationArgs.__module__}.{AllocationArgs.__name__}"

    def get_training_args_mixin(self) -> str:
        """Return the path of the class that adds the section to the trainer's arguments."""
        return f"{AllocationTrainingArgs.__module__}.{AllocationTrainingArgs.__name__}"

    def get_training_args(self, cfg: Any) -> dict[str, Any]:
        """Return the section for the trainer's arguments."""
        return {SECTION: cfg[SECTION].to_dict()}
