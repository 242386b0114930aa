"""Misspelt overrides of ``python -m apportion.verl``, found before verl is imported, which takes ten seconds."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig

from apportion.checks import choices
from apportion.toml import ConfigError

CONFIGS = Path(__file__).parent / "conf"
NOT_OVERRIDDEN = re.compile(r"Could not override '([^']+)'")
NOT_FOUND = re.compile(r"Could not find '([^']+)/([^'/]+)'")


def check_overrides(arguments: Sequence[str]) -> None:
    """Raise ConfigError in one line with the nearest name, if an override has an unknown key or choice.

    Nothing is checked of commands with options of Hydra's, which may name other files. Other mistakes are left to the
    command itself.
    """
    found = find_spec("verl")
    if found is None or found.origin is None or any(argument.startswith("-") for argument in arguments):
        return
    own = [f"hydra.searchpath=[file://{Path(found.origin).parent / 'trainer' / 'config'}]"]
    try:
        _composed([*arguments, *own])
    except MissingConfigException as error:
        if match := NOT_FOUND.search(str(error)):
            group, name = match.groups()
            known = re.findall(r"^\t(\w+)$", str(error), re.MULTILINE)
            raise ConfigError(f"{group} has no choice {name!r}; {choices(name, known)}") from error
    except ConfigCompositionException as error:
        if match := NOT_OVERRIDDEN.match(str(error)):
            groups = [each for each in arguments if re.match(r"allocation(/\w+)*=", each)]
            raise ConfigError(_unknown(match[1], _composed([*groups, *own]))) from error
    except (HydraException, ValueError):
        return


def _composed(overrides: list[str]) -> Any:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("apportion", overrides=overrides)


def _unknown(key: str, config: Any) -> str:
    """Return the error for an unknown ``key``, with the nearest of its neighbouring settings."""
    place, parts = config, key.split(".")
    while len(parts) > 1 and isinstance(place.get(parts[0]), DictConfig):
        place = place[parts.pop(0)]
    known = [str(name) for name in place]
    remedy = f"{key.rpartition('.')[0]} has no settings" if parts[0] in known else choices(parts[0], known)
    return f"{key} is no setting; {remedy}. To add a key of your own, write +{key}="
