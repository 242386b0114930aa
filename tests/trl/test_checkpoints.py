"""A run that is resumed ends like an uninterrupted one, and checkpoints of other runs are refused."""

import pytest
import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from apportion import DAPO, HORA
from apportion.baselines import Predicted
from apportion.engines.saved_state import SavedStateError, save_state
from apportion.predictors import DiscountedCounts
from apportion.records import RecordError, read_log
from apportion.selection import GRESO, Mixed
from apportion.trl import AllocatedGRPOTrainer, checkpoints
from tests.trl.scripts.policy import digest, history, make_trainer
from tests.trl.tiny import make_questions

CPU = torch.device("cpu")


def logged_steps(folder):
    """Return the rollout log without its times."""
    return read_log(folder).drop_columns("written")


def hora():
    return HORA(pre_rollouts=2, rollouts_per_prompt=4)


def dapo():
    """Return a rule that draws further prompts."""
    return DAPO(rollouts_per_prompt=4, draw=2, max_draws=3)


def trained(folder, allocator=None, kind=AllocatedGRPOTrainer, resume=None, steps=2, questions=8, given=None, **config):
    """Train with a checkpoint at each step; ``resume`` is a number of steps, or True for the last checkpoint."""
    config = {"max_steps": steps, "save_strategy": "steps", "save_steps": 1} | config
    given = {"questions": make_questions(questions)} | (given or {})
    trainer = make_trainer(kind, folder, None, allocator, config=config, **given)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{resume}") if type(resume) is int else resume)
    return trainer


def assert_equal_ends(again, whole):
    assert history(again) == history(whole) and digest(again.model) == digest(whole.model)


def mixed():
    return {"selection": Mixed(group_size=4)}


OPEN = HORA(pre_rollouts=2)
SAME = "must be {}, as in the run that wrote the checkpoint, got {}; set it to"
OTHERS = (
    (lambda folder: trained(folder, kind=GRPOTrainer, steps=1), OPEN, {}, "must hold the state of its run"),
    (lambda folder: trained(folder, OPEN, steps=1, save_only_model=True), OPEN, {}, "must hold the state of its run"),
    (
        lambda folder: trained(folder, OPEN, steps=1),
        OPEN,
        {"num_generations": 8},
        r"checkpoint-1/apportion\.pt: allocator.rollouts_per_prompt " + SAME.format(4, 8),
    ),
    (
        lambda folder: trained(folder, hora(), steps=1, questions=16, given=mixed()),
        hora(),
        {},
        "selection " + SAME.format("'mixed'", None),
    ),
)
"""A run that began, and a rule and settings that shall go on from its checkpoint, and what is wrong with that."""


@pytest.mark.parametrize(("begin", "allocator", "config", "message"), OTHERS)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, begin, allocator, config, message):
    begin(tmp_path)
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, allocator, resume=True, questions=16, **config)


def logged(folder, steps=2, resume=None, **given):
    return trained(folder, hora(), steps=steps, resume=resume, given={"rollout_log": folder / "log"} | given)


def test_a_resumed_run_goes_on_with_its_own_log_or_a_new_one(tmp_path):
    trainer = logged(tmp_path)
    whole = logged_steps(tmp_path / "log")
    logged(tmp_path, resume=1)
    assert logged_steps(tmp_path / "log").equals(whole)
    with pytest.raises(RecordError, match=r"without steps, got .* with 2 of another run"):
        logged(tmp_path)
    logged(tmp_path, resume=1, rollout_log=tmp_path / "new")
    assert set(read_log(tmp_path / "new").column("step").to_pylist()) == {1}
    trainer.train()  # again
    assert set(read_log(tmp_path / "log").column("step").to_pylist()) == {0, 1, 2, 3}


def test_training_goes_on_from_the_last_whole_checkpoint(tmp_path, monkeypatch, caplog):
    """The run is killed after our own files, in a new checkpoint and in one that is written again, or after TRL's."""
    save, whole, early = GRPOTrainer._save_checkpoint, trained(tmp_path / "whole", dapo()), True

    def torn(trainer, *given):
        last = trainer.state.global_step == 2
        if not (last and early):
            save(trainer, *given)
        if last:
            raise KeyboardInterrupt

    (tmp_path / "killed" / "checkpoint-kept-9").mkdir(parents=True)
    (tmp_path / "killed" / "checkpoint-kept-9" / checkpoints.LAST).touch()
    for name, resume, early in (("killed", None, True), ("killed", 1, True), ("later", None, False)):
        monkeypatch.setattr(GRPOTrainer, "_save_checkpoint", torn)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / name, dapo(), resume=resume)
        monkeypatch.setattr(GRPOTrainer, "_save_checkpoint", save)
        caplog.clear()
        assert_equal_ends(trained(tmp_path / name, dapo(), resume=True), whole)
        said = "checkpoint-2 was not written to its end; training goes on from checkpoint-1"
        assert (said in caplog.text) == early


class WithinAStep(TrainerCallback):
    """Asks for a checkpoint within the second step and stops, as ``enable_jit_checkpoint`` does at a SIGTERM."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_pre_optimizer_step(self, args, state, control, **rest):
        if state.global_step == 1 and not control.should_training_stop:
            control.should_training_stop = True
            self.trainer._save_checkpoint(self.trainer.model, trial=None)


def test_a_checkpoint_within_a_step_is_written_at_its_end(tmp_path):
    whole = trained(tmp_path / "whole", hora(), steps=3)
    config = {"max_steps": 3, "save_strategy": "no"}
    stopped = make_trainer(AllocatedGRPOTrainer, tmp_path, None, hora(), config=config, questions=make_questions(8))
    stopped.add_callback(WithinAStep(stopped))
    stopped.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    assert_equal_ends(trained(tmp_path, hora(), steps=3, resume=True), whole)


def test_a_resumed_stream_of_prompts_is_warned_of(tmp_path, caplog):
    given = {"questions": make_questions(8).to_iterable_dataset()}
    trained(tmp_path, hora(), given=given)
    assert "stream" not in caplog.text
    trained(tmp_path, hora(), resume=1, given=given)
    assert "reads its stream of prompts from the beginning" in caplog.text


RESUMED = {
    "a selection and a baseline, eight steps a batch": (
        hora,
        lambda: mixed() | {"estimator": "reinforce", "baseline": Predicted(DiscountedCounts())},
        {"questions": 12, "num_iterations": 2, "steps_per_generation": 4, "steps": 9},
        [3, 8],
    ),
    "weights and fresh prompts, two batches a step": (
        lambda: DAPO(rollouts_per_prompt=3, draw=3, max_draws=5),
        lambda: {"selection": GRESO(importance_weights=True)},
        {"questions": 32, "steps_per_generation": 1, "steps": 10},
        [5],
    ),
}
"""A rule, what else its trainer is given, settings, and the checkpoints that are resumed.

A batch has four prompts. ``test_ranks`` resumes a run with a store of responses.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_resumes_alike_in_any_epoch_and_any_part_of_a_batch(tmp_path, name):
    rule, others, settings, resumed = RESUMED[name]

    def go(resume=None):
        given = {"rollout_log": tmp_path / "log"} | others()
        return trained(tmp_path, rule(), given=given, resume=resume, **settings), logged_steps(tmp_path / "log")

    whole, log = go()
    for step in resumed:
        again, logged = go(step)
        assert_equal_ends(again, whole)
        assert logged.equals(log)


def saved(folder, **values):
    given = {"allocator": {}, "baseline": None, "name": "hora", "drawn": 3, "batches": 2, "step": 5, "iterations": 3}
    learnt = checkpoints.SavedState(settings={}, **{"failures": {}} | given | values)
    save_state(folder / checkpoints.FILE, checkpoints.KIND, learnt)
    return learnt


def test_state_and_batch_are_loaded_as_saved_and_refused_if_shared_by_other_numbers(tmp_path):
    learnt = saved(tmp_path, allocator={"successes": [1.0, 2.0]}, sharing=(2, 1))  # of three iterations
    assert checkpoints.load(tmp_path) == learnt
    with pytest.raises(SavedStateError, match=r"must hold .*, got no such file; resume from another"):
        checkpoints.load_batch(tmp_path, 0, (2, 1, 3), CPU, learnt)
    for rank in (0, 1):
        checkpoints.save_batch(tmp_path, rank, [{"advantages": torch.tensor([0.5, rank]), "num_items_in_batch": None}])
    for rank in (0, 1):
        (chunk,) = checkpoints.load_batch(tmp_path, rank, (2, 1, 3), CPU, learnt)
        assert chunk["advantages"].tolist() == [0.5, rank] and chunk["num_items_in_batch"] is None
    for sharing in ((1, 1, 3), (2, 4, 3), (2, 1, 2)):
        with pytest.raises(ValueError, match=r"num_iterations, \(2, 1, 3\), got \(., ., .\); set them so"):
            checkpoints.load_batch(tmp_path, 0, sharing, CPU, learnt)
    # between two batches any number of ranks resumes, and a batch that an earlier run has left is removed
    assert checkpoints.load_batch(tmp_path, 0, (3, 1, 1), CPU, saved(tmp_path)) is None
    checkpoints.save_batch(tmp_path, 0, None)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["apportion.pt", "apportion_batch_1.pt"]
