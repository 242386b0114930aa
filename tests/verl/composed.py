"""verl's configuration as Hydra composes it from a command line, without starting anything."""

from functools import cache

from hydra import compose, initialize_config_module

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


@cache
def _composed(module, name, overrides):
    with initialize_config_module(module, version_base=None):
        return compose(name, list(overrides), return_hydra_config=True)
