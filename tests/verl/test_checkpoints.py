"""The allocator's state in verl's checkpoints: written before verl's tracker, found where verl itself resumes.

A file that cannot be used never stops a run for good, unless it is to be strict.
"""

import copy
import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from apportion import VIP, Batch, Belief, Plan, Prompt, Rollout, Uniform
from apportion.baselines import SPO
from apportion.engines.saved_state import SavedStateError, load_state, save_state
from apportion.predictors import DiscountedCounts
from apportion.predictors.saved import OtherSettingsError
from apportion.verl.checkpoints import FILE, KIND, RECORDS, load_into, resumed_file
from apportion.verl.checks import SAVED
from apportion.verl.coordinator.messages import WrittenRollout
from tests.hostile import FILES, MARKER
from tests.verl.coordinator.worker_pool import (
    WorkerPool,
    allocation,
    make_coordinator,
    open_rounds,
    request_of,
    texts,
    watched,
    work,
)

STATE = {"name": "vip", "allocator": {"seen": np.arange(3)}, "drawn": 7}


NOTHING = {"baseline": None, "selection": None}
"""What a checkpoint holds of an allocation without them."""


def configured(folder, mode="auto", path=None):
    trainer = {
        "default_local_dir": str(folder),
        "resume_mode": mode,
        "resume_from_path": path and str(path),
        "del_local_ckpt_after_load": False,
        "checkpoint_callback_class": SAVED,
    }
    return OmegaConf.create({"trainer": trainer})


def saved(folder, *steps, ours=True):
    """Checkpoints of these steps as verl leaves them; the last is the latest."""
    for step in steps:
        own = folder / f"global_step_{step}"
        own.mkdir(parents=True)
        if ours:
            save_state(own / FILE, KIND, STATE | {"step": step})
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def resumed_by_verl(config):
    """The folder that verl's trainer loads; None where it begins from scratch."""
    loaded = []
    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.trainer_mode, trainer.use_critic = config, "sync", False
    trainer.actor_rollout_wg = SimpleNamespace(load_checkpoint=lambda local_path, **_: loaded.append(local_path))
    trainer._load_checkpoint()
    return loaded[0].removesuffix("/actor") if loaded else None


@pytest.mark.parametrize("relative", [True, False])
def test_it_is_found_where_verl_resumes(tmp_path, monkeypatch, relative):
    monkeypatch.chdir(tmp_path)
    folder = "runs/toy" if relative else tmp_path / "runs" / "toy"
    assert resumed_file(configured(folder)) is None and resumed_by_verl(configured(folder)) is None
    saved(tmp_path / "runs" / "toy", 2, 4, 8)
    for mode, named, expected in (
        ("auto", False, "global_step_8"),
        ("auto", True, "global_step_8"),
        ("resume_path", True, "global_step_4"),
        ("disable", True, None),
    ):
        config = configured(folder, mode, f"{folder}/global_step_4" if named else None)
        found = resumed_file(config)
        assert (found and str(found.parent)) == resumed_by_verl(config)
        assert (found and found.parent.name) == expected
        assert found is None or load_state(found, KIND, remedy="")["step"] == int(expected.removeprefix("global_step_"))


def test_what_cannot_be_resumed_is_refused_before_the_run_starts(tmp_path):
    saved(tmp_path, 4, ours=False)
    for mode in ("auto", "resume_path"):
        config = configured(tmp_path, mode, tmp_path / "global_step_4")
        with pytest.raises(ValueError, match=r"must hold the allocator's state, got .*global_step_4 without alloc"):
            resumed_file(config, strict=True)
        assert resumed_file(config) == tmp_path / "global_step_4" / FILE
    with pytest.raises(ValueError, match="must be the folder of a checkpoint with resume_mode=resume_path, got None"):
        resumed_file(configured(tmp_path, "resume_path"))
    for content in ("", "four", "4 5"):
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"the step of the latest checkpoint.*write that step to latest_"):
            resumed_file(configured(tmp_path))


class Manager:
    """The manager of ``coordinator``, as the callback uses it."""

    def __init__(self, coordinator):
        self.coordinator, self.allocation = coordinator, coordinator.allocation

    def coordinator_state(self):
        return self.coordinator.state()


def made(settings, **named):
    return make_coordinator(settings, WorkerPool(), **named)


def counting(**settings):
    """Return the settings of an allocator whose belief changes with each step."""
    allocator = VIP(rollouts_per_prompt=4, high=8, predictor=DiscountedCounts())
    return allocation(allocator, baseline=SPO(), **settings)


def loaded(path, settings=None):
    """Return a new coordinator that has loaded the file at ``path``."""
    coordinator = made(settings or counting())
    load_into(coordinator, path)
    return coordinator


def train_step(coordinator, step):
    open_rounds(coordinator, request_of(texts(*range(4)), step))
    work(coordinator)


def trainer_of(folder, coordinator, mode="sync", fails=None):
    """verl's trainer with ``coordinator``, whose weights are text. It fails while it writes the file ``fails``."""

    def write(path, content):
        if path.name == fails:
            raise OSError(f"killed before {fails}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")

    config = configured(folder)
    extra = {"max_actor_ckpt_to_keep": None, "default_hdfs_dir": None}
    config = OmegaConf.merge(config, {"trainer": extra, "actor_rollout_ref": {"actor": {}}})
    trainer = object.__new__(PPOTrainerSync)
    trainer.config, trainer.trainer_mode, trainer.use_critic = config, mode, False
    trainer.checkpoint_callback = build_checkpoint_callback(config)
    trainer.agent_loop_manager = Manager(coordinator)
    saving = SimpleNamespace(save_checkpoint=lambda path, *_, **__: write(Path(path), "weights"))
    trainer.actor_rollout_wg = saving
    trainer.train_dataloader = SimpleNamespace(state_dict=lambda: {"position": trainer.global_steps})
    return trainer


def train_and_save(trainer, *steps):
    for step in steps:
        train_step(trainer.agent_loop_manager.coordinator, step)
        trainer.global_steps = step
        trainer._save_checkpoint()


def learned(coordinator):
    return {key: value for key, value in coordinator.state().items() if key in ("allocator", "baseline")}


def test_the_trainer_writes_our_file_before_its_tracker_names_the_checkpoint(tmp_path):
    """So that a kill at any moment leaves a latest checkpoint that has it."""
    train_and_save(trainer_of(tmp_path, made(counting())), 1)
    assert load_state(resumed_file(configured(tmp_path)), KIND, remedy="", records=RECORDS)["coordinator"]

    with pytest.raises(OSError, match="killed before actor"):
        train_and_save(trainer_of(tmp_path, made(counting()), fails="actor"), 2)
    assert (tmp_path / "global_step_2" / FILE).exists()
    assert resumed_file(configured(tmp_path)).parent.name == "global_step_1"


def test_every_step_is_written_once_if_nothing_can_change_meanwhile_and_else_twice(tmp_path, monkeypatch):
    for mode, times in (("sync", 1), ("colocate_async", 2)):
        coordinator, calls = made(counting()), []
        trainer = trainer_of(tmp_path / mode, coordinator, mode)
        monkeypatch.setattr(trainer_base.tq, "save_checkpoint", lambda *args, **named: None)
        trainer.agent_loop_manager.coordinator_state = lambda: calls.append(1) or coordinator.state()  # noqa: B023
        train_and_save(trainer, 1, 2)
        assert len(calls) == 2 * times


@pytest.fixture
def run(tmp_path):
    """Return our file of a run with a checkpoint of step 3, and what was learned before and at it."""
    coordinator = made(counting())
    new = copy.deepcopy(learned(coordinator))
    for step in (1, 2):
        train_step(coordinator, step)
    train_and_save(trainer_of(tmp_path, coordinator), 3)
    return tmp_path / "global_step_3" / FILE, (new, learned(coordinator))


def garble(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


FAULTS = {
    "missing": lambda path: path.unlink(),
    "garbled": garble,
    "a pickle with code": lambda path: path.write_bytes(FILES["a pickle with code"](path.with_name(MARKER))),
    "of a belief that is broken in its second part": lambda path: break_baseline(path),
}
"""What a file of a checkpoint may be. ``tests/engines`` has all ways in which a file can be damaged."""


def break_baseline(path):
    found = load_state(path, KIND, remedy="", records=RECORDS)
    found["coordinator"]["baseline"] = {"secret": 1}
    save_state(path, KIND, found)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("fault", FAULTS)
def test_with_a_file_that_cannot_be_used_a_run_begins_with_a_new_belief(run, caplog, fault):
    """A strict run refuses it in one line."""
    path, (new, whole) = run
    np.testing.assert_equal(learned(loaded(path)), whole)
    FAULTS[fault](path)
    coordinator = loaded(path)
    np.testing.assert_equal(learned(coordinator), new)
    (said,) = warnings(caplog)
    assert "The weights are those of global_step_3, but the allocator's state is that of a new run" in said
    assert "\n" not in said and str(path.parent) in said and "allocation.resume=strict" in said
    train_step(coordinator, 4)
    with pytest.raises(SavedStateError) as caught:
        loaded(path, counting(resume="strict"))
    assert str(path.parent) in str(caught.value) and "\n" not in str(caught.value)
    assert not path.with_name(MARKER).exists()


OTHERS = {
    "allocator must be 'vip', as in the run that .*, got 'uniform'": allocation(Uniform(4), baseline=SPO()),
    "baseline must be 'spo', as in the run that .*, got None": dataclasses.replace(counting(), baseline=None),
    r"allocator\.high must be 8, as in the run that wrote the checkpoint, got 6": allocation(
        VIP(rollouts_per_prompt=4, high=6, predictor=DiscountedCounts()), baseline=SPO()
    ),
}


def test_a_whole_checkpoint_of_a_run_with_other_settings_is_refused_always(run):
    """The user has changed something, and a new belief would hide it."""
    for message, settings in OTHERS.items():
        for resume in ("fallback", "strict"):
            with pytest.raises(OtherSettingsError, match=message):
                loaded(run[0], dataclasses.replace(settings, resume=resume))


def test_a_forged_state_in_a_checkpoint_is_refused(tmp_path):
    path = tmp_path / FILE
    good = {"name": "uniform", "allocator": {}, "drawn": 0, "unfinished": [], "learned_uids": []} | NOTHING
    for change in (
        *({"allocator": {"secret": 1}}, {"allocator": [1]}, {"drawn": -1}, {"drawn": "7"}),
        *({"unfinished": [1]}, {"unfinished": None}, {"learned_uids": [1]}, {"another": 1}),
        *({"given": given} for given in ({"u": -1}, {"u": 1.0}, {1: 1}, ["u"], None)),
    ):
        save_state(path, KIND, {"settings": {}, "coordinator": good | change})
        with pytest.raises(SavedStateError) as caught:
            loaded(path, allocation(Uniform(), resume="strict"))
        assert str(caught.value).startswith(f"{path}: ")


def test_batches_within_a_round_are_learned_from_after_a_resume(tmp_path):
    """A batch has arrays, beliefs and rollouts, which the file holds as records."""
    completion = WrittenRollout(b"digest", "h1-0", 2, (5, 3), outputs=({"prompt_ids": [1], "metrics": {"a": 0.5}},))
    batch = Batch.start([Prompt("a"), Prompt("b")], Belief.uniform(2)).add(
        Plan([1, 2]), [[Rollout(True, completion=completion)], [Rollout(False)]]
    )
    path = tmp_path / FILE
    state = {"name": "uniform", "allocator": {}, "drawn": 3, "unfinished": [batch], "learned_uids": []} | NOTHING
    save_state(path, KIND, {"settings": {}, "coordinator": state})
    learned_from = loaded(path, allocation(watched(Uniform()))).allocation.allocator.learned
    assert learned_from == [batch] and learned_from[0].rollouts[0][0].completion.outputs == completion.outputs
