"""verl's configuration as Hydra composes it from a command line, without starting anything.

Hydra reads each of verl's 34 files again whenever it composes, which takes half of the time. Here one is read once.
"""

import pickle
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

CONF = "apportion.verl.conf"
STOCK = "verl.trainer.config"


def command(*overrides):
    """Return the configuration of ``python -m apportion.verl``, and Hydra's choices."""
    config = _composed(CONF, "apportion", overrides)
    return config.copy(), dict(config.hydra.runtime.choices)


def stock(*overrides):
    """Return the configuration of ``python -m verl.trainer.main_ppo``."""
    return _composed(STOCK, "ppo_trainer", overrides).copy()


def alone(name, *overrides):
    """Return the group ``allocation`` without the rest, which is slow to compose, and Hydra's choices."""
    config = _composed(CONF, f"allocation/{name}", ("+actor_rollout_ref.rollout.n=8", *overrides))
    return config.copy(), dict(config.hydra.runtime.choices)


_load, _read = OmegaConf.load, {}


def _load_once(file):
    """Return what ``OmegaConf.load`` returns of a file, which is not read again unless it has changed."""
    path = Path(file if isinstance(file, str | Path) else file.name).absolute()
    key = (path, path.stat().st_mtime_ns)
    if key not in _read:
        _read[key] = pickle.dumps(_load(file))
    return pickle.loads(_read[key])


OmegaConf.load = staticmethod(_load_once)


@cache
def _composed(module, name, overrides):
    with initialize_config_module(module, version_base=None):
        return compose(name, list(overrides), return_hydra_config=True)
