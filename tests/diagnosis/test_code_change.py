"""The code that a diagnosis prints: it makes real objects in TRL, and real settings in verl."""

import shlex

import pytest

from apportion.baselines import Baseline
from apportion.diagnosis.code_change import BASELINE, RETIRE, VIP, choose_change
from apportion.scheduler.decisions import TrainerAllocation
from apportion.selection import LargestVariance, Mixed, Retire

CHANGES = {
    "baseline": (BASELINE, None),
    "mixed": (choose_change(4), Mixed(group_size=4)),
    "variance": (choose_change(4, binary=False), LargestVariance()),
    "retire": (RETIRE, Retire()),
    "vip": (VIP, None),
    "rates": (choose_change(4, rates=True), Mixed(group_size=4)),
    "embeddings": (choose_change(4, embeddings=True), None),
    "graded": (choose_change(4, binary=False, embeddings=True, rates=True), None),
}


def arguments(code):
    """Return the arguments that ``code`` gives to the trainer, by running its lines as a script does."""
    names = {}
    exec("\n".join(line for line in code.imports if "apportion.trl" not in line), names)
    return eval(f"dict({code.trl})", names)


@pytest.mark.parametrize("name", CHANGES)
def test_the_arguments_for_trl_make_the_settings_of_a_trainer(name):
    code, selection = CHANGES[name]
    given = arguments(code)
    if selection is not None:
        assert given["selection"] == selection
    column = given.pop("rate_column", None)
    assert (column == "pass_rate") == (name in ("rates", "graded"))
    made = TrainerAllocation(**given)
    assert made.allocator.with_budget(8).size(16).asked == 128
    assert isinstance(made.baseline, Baseline) == (name == "baseline")


@pytest.mark.slow  # it imports verl
@pytest.mark.parametrize("name", CHANGES)
def test_the_overrides_for_verl_pass_its_checks(name, monkeypatch, tmp_path):
    pytest.importorskip("verl")
    from apportion.verl import seam  # noqa: PLC0415 - an optional extra
    from apportion.verl.checks import check  # noqa: PLC0415
    from apportion.verl.settings import allocation_of  # noqa: PLC0415
    from tests.verl.composed import command  # noqa: PLC0415

    monkeypatch.setattr(seam, "is_trl_available", lambda: False)
    code, selection = CHANGES[name]
    kept = ("algorithm.adv_estimator=grpo",) if name not in ("baseline", "vip") else ()
    config, _ = command(
        "actor_rollout_ref.rollout.n=8",
        "data.train_batch_size=64",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        f"trainer.default_local_dir={tmp_path}",
        *kept,
        *shlex.split(code.verl),
    )
    allocation = allocation_of(config)
    check(config, allocation)
    assert allocation.allocator.name == ("vip" if name == "vip" else "uniform")
    assert selection is None or allocation.selection == selection
    assert (allocation.rate_key == "pass_rate") == (name in ("rates", "graded"))
    given = {name: value for name, value in arguments(code).items() if name != "rate_column"}
    own = TrainerAllocation(**given).allocator
    assert allocation.allocator == own.with_estimator("rloo").with_budget(8)
