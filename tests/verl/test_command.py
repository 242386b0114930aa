"""``python -m apportion.verl``, as a user types it. ``test_equality`` trains under it."""

import subprocess
import sys

import pytest
from omegaconf import OmegaConf, open_dict
from verl.utils.import_utils import load_class_from_fqn

from apportion.config import ConfigError
from apportion.verl import AllocatedAgentLoopManager, SavedAllocation
from apportion.verl.spelling import check_overrides
from tests.verl.composed import command, stock

MAIN = "apportion.verl"


def test_all_else_is_verls_own_configuration():
    config, theirs = command()[0], stock()
    with open_dict(config), open_dict(theirs):
        manager = config.actor_rollout_ref.rollout.agent.pop("agent_loop_manager_class")
        assert load_class_from_fqn(manager) is AllocatedAgentLoopManager
        assert load_class_from_fqn(config.trainer.checkpoint_callback_class) is SavedAllocation
        assert config.algorithm.adv_estimator == "apportion_reinforce"
        assert config.allocation.preset == "fixed_baseline"
        config.trainer.checkpoint_callback_class = theirs.trainer.checkpoint_callback_class
        config.algorithm.adv_estimator = theirs.algorithm.adv_estimator
        del config["allocation"], config["hydra"], theirs["hydra"]
    assert OmegaConf.to_container(config) == OmegaConf.to_container(theirs)


def test_without_verl_it_says_what_to_install():
    code = f"import runpy, sys; sys.modules['ray'] = None; runpy.run_module({MAIN!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = "error: python -m apportion.verl needs ray, which is not installed; pip install 'apportion[verl]'\n"
    assert done.stderr == said


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("allocation=vip allocation.allocator.predictor.name=counts", "choose allocation/predictor=counts instead"),
        ("trainer.use_v1=False", "trainer.use_v1 must be True, got False"),
    ],
)
def test_what_cannot_work_is_refused_before_ray_starts(train, override, message):
    done = train(tuple(override.split()), main=MAIN, fails=True)
    assert done.status == 2, done.output[-5000:]
    assert "ray init kwargs" not in done.output and "Traceback" not in done.output  # the former as verl starts Ray
    *_, last = done.output.splitlines()
    assert last.startswith("error: ") and message in last


MISSPELT = {
    "allocatoin=vip": "allocatoin is no setting; did you mean 'allocation'? There are ",
    "allocation.allocator.hihg=32": "allocation.allocator.hihg is no setting; did you mean 'high'? There are ",
    "allocation/predictor=gpp": "allocation/predictor has no choice 'gpp'; did you mean 'gp'? There are ",
    "data.train_files.x=1": "data.train_files.x is no setting; data.train_files has no settings. To add a",
    "zzz=1": "zzz is no setting; use one of model_engine, ",
}
RIGHT = (["allocation=hora", "allocation.allocator.high=3"], ["+own=1"], ["~data.train_files"], ["--help"], [])


def test_a_misspelt_override_is_refused_with_the_nearest_name():
    for override, message in MISSPELT.items():
        with pytest.raises(ConfigError) as caught:
            check_overrides(["actor_rollout_ref.rollout.n=8", "allocation=vip", override])
        assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    for right in RIGHT:
        check_overrides(right)


def test_a_misspelt_override_costs_one_line_and_no_import_of_verl():
    """verl alone takes 4 seconds of processor time to import, and its own error has five lines."""
    heavy = ["ray", "torch", "transformers", "verl"]
    code = (
        f"import atexit, runpy, sys; atexit.register(lambda: print(*({{*{heavy!r}}} & sys.modules.keys())))\n"
        f"runpy.run_module({MAIN!r}, run_name='__main__', alter_sys=True)"
    )
    words = [sys.executable, "-c", code, "actor_rollout_ref.rollout.n=8", "allocatoin=vip"]
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.returncode == 2 and done.stdout.split() == [] and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {MISSPELT['allocatoin=vip']}")
