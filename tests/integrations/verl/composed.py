"""verl's configuration as Hydra composes it from the words of a command line; nothing is started."""

from functools import cache

from hydra import compose, initialize_config_module

CONF = "apportion.integrations.verl.conf"
STOCK = "verl.trainer.config"


def command(*overrides):
    """What ``python -m apportion.verl`` gets, and Hydra's choices."""
    config = _composed(CONF, "apportion", overrides)
    return config.copy(), dict(config.hydra.runtime.choices)


def stock(*overrides):
    """What ``python -m verl.trainer.main_ppo`` gets."""
    return _composed(STOCK, "ppo_trainer", overrides).copy()


def alone(name, *overrides):
    """The group ``allocation`` without verl's configuration, which takes its time; and Hydra's choices."""
    config = _composed(CONF, f"allocation/{name}", ("+actor_rollout_ref.rollout.n=8", *overrides))
    return config.copy(), dict(config.hydra.runtime.choices)


@cache
def _composed(module, name, overrides):
    with initialize_config_module(module, version_base=None):
        return compose(name, list(overrides), return_hydra_config=True)
