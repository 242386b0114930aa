"""The section ``apportion`` of axolotl's YAML, and the settings of axolotl that go with it."""

from collections.abc import Mapping
from typing import Any

from apportion.config import ConfigError, build
from apportion.trl.settings import TRLAllocation

SECTION = "apportion"
TRAINER = "apportion.trl.axolotl.trainer.AllocatedAxolotlTrainer"
ALGORITHMS = ("grpo", "gdpo")
AHEAD = ("async_prefetch", "use_data_producer")
"""Settings under axolotl's ``trl`` that sample ahead of the steps, and so bypass the method that an allocator runs."""


def read_allocation(table: Any) -> TRLAllocation:
    """Return the allocation of the section: the fields of ``TRLAllocation``, as in the YAML of the command.

    Raises ConfigError for an unknown key, a wrong type, or settings that do not fit together.
    """
    return build(TRLAllocation, table, SECTION)


def with_trainer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return axolotl's configuration with the trainer that reads the section. Raises ConfigError if it cannot work."""
    if config.get(SECTION) is None:
        raise ConfigError(f"{SECTION} must have an allocator, got no section; add it, or remove the plugin")
    read_allocation(config[SECTION])
    if (rl := config.get("rl")) not in ALGORITHMS:
        raise ConfigError(f"rl must be one of {', '.join(ALGORITHMS)} under an allocator, got {rl}; set rl: grpo")
    if (config.get("context_parallel_size") or 1) > 1:
        raise ConfigError(
            f"context_parallel_size must be 1 under an allocator, got {config['context_parallel_size']}: axolotl's "
            "trainer for it has a copy of TRL's sampling of its own; leave it out"
        )
    for name in AHEAD:
        if (config.get("trl") or {}).get(name):
            raise ConfigError(
                f"trl.{name} must be false under an allocator, got true: completions would be sampled ahead of the "
                "outcomes that decide their number; leave it out"
            )
    if config.get("trainer_cls") not in (None, TRAINER):
        raise ConfigError(
            f"trainer_cls must be left out under an allocator, got {config['trainer_cls']!r}; in Python, give that "
            "class to apportion.trl.allocated"
        )
    return {**config, "trainer_cls": TRAINER}
