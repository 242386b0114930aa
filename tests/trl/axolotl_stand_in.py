"""A stand-in for axolotl's hooks of plugins, so that the plugin is tested where axolotl is not installed.

It does what axolotl 0.19 does with a plugin: the configuration is checked by a class that inherits from the plugin's,
the trainer's arguments are of a class that inherits from the plugin's, and the trainer is made of the class at the path
``trainer_cls``. It is not axolotl's code.
"""

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict
from trl import GRPOConfig, GRPOTrainer


class Section(dict):
    """A table as axolotl keeps it: with ``to_dict``."""

    def to_dict(self):
        return dict(self)


class BasePlugin:
    """axolotl's base class of plugins."""


class OwnInit:
    """A mixin as those of axolotl's trainers: it takes an argument of its own."""

    def __init__(self, *args, optimizer_cls_and_kwargs=None, **kwargs):
        super().__init__(*args, **kwargs)


class AxolotlGRPOTrainer(OwnInit, GRPOTrainer):
    """axolotl's trainer: mixins before TRL's."""


def install(monkeypatch):
    """Make ``axolotl`` importable for one test."""
    base, trainers = ModuleType("axolotl.integrations.base"), ModuleType("axolotl.core.trainers.grpo.trainer")
    base.BasePlugin, trainers.AxolotlGRPOTrainer = BasePlugin, AxolotlGRPOTrainer
    for module in (base, trainers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in (
        "axolotl",
        "axolotl.integrations",
        "axolotl.core",
        "axolotl.core.trainers",
        "axolotl.core.trainers.grpo",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("plugin", "trainer"):
        monkeypatch.delitem(sys.modules, f"apportion.trl.axolotl.{name}", raising=False)


def imported(path):
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def checked(plugin, config):
    """Return ``config`` as axolotl's classes of settings leave it, with the plugin's class among them."""

    class Settings(BaseModel):
        model_config = ConfigDict(extra="allow")
        rl: str | None = None
        trl: dict[str, Any] | None = None
        context_parallel_size: int | None = None
        trainer_cls: str | None = None

    whole = type("AxolotlInputConfig", (Settings, imported(plugin.get_input_args())), {})
    twice = whole(**whole(**config).model_dump(exclude_none=True))  # axolotl checks again with the capabilities
    return twice.model_dump(exclude_none=True)


def build(plugin, config, settings, model, reward_funcs, **given):
    """Return the trainer that axolotl would build."""
    mixin = imported(plugin.get_training_args_mixin())
    arguments = dataclass(type("AxolotlGRPOConfig", (mixin, GRPOConfig), {"__annotations__": {}}))
    added = plugin.get_training_args({"apportion": Section(config["apportion"])})
    trainer = imported(config["trainer_cls"])
    return trainer(model, reward_funcs, args=arguments(**settings, **added), callbacks=[], **given)
