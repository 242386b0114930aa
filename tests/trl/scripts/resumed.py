"""Runs that a test kills and resumes from a checkpoint, each in a process of its own."""

import json
import os
import signal
from functools import partial

import numpy as np
from transformers import TrainerCallback
from transformers.utils.logging import disable_progress_bar

from apportion import AR3PO, DAPO, HORA, VIP, OptPO, PilotCommit, ReinforceAda
from apportion.baselines import Predicted
from apportion.engines.prompts import prompt_of
from apportion.predictors import DiscountedCounts, EmpiricalBayes, GaussianProcess, PrecomputedEmbeddings
from apportion.selection import GRESO, Mixed, SPOWeights
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.trl import tiny
from tests.trl.scripts.policy import digest, history, make_trainer

EVERY, KILLED_IN, STEPS = 5, 7, 10
"""A checkpoint is written at every fifth of ten steps, and the run is killed at the end of the seventh."""
QUESTIONS = 8
"""An epoch has two batches, of one optimizer step each, so the checkpoint is in the third epoch."""


def gaussian_process():
    prompts = [prompt_of(row) for row in tiny.make_questions(QUESTIONS)]
    table = np.random.default_rng(0).normal(size=(len(prompts), 3))
    return GaussianProcess(PrecomputedEmbeddings.from_array(prompts, table))


def case(allocator, kind=AllocatedGRPOTrainer, questions=QUESTIONS, config=(), **given):
    return {"kind": kind, "allocator": allocator, "questions": questions, "config": dict(config), **given}


HORA_OF_4 = partial(HORA, pre_rollouts=2, rollouts_per_prompt=4)
REPLAY = partial(AR3PO, stages=1, rollouts_per_stage=2, reuse="replay")
HALFWAY = {"num_iterations": 2, "steps_per_generation": 4}
"""A batch is used for four steps."""
CASES = {
    "vip, a gaussian process": case(lambda: VIP(rollouts_per_prompt=4, predictor=gaussian_process())),
    "hora, rloo": case(HORA_OF_4, AllocatedRLOOTrainer),
    "hora, a baseline": case(HORA_OF_4, estimator="reinforce", baseline=lambda: Predicted(DiscountedCounts())),
    "ar3po, four steps a batch": case(REPLAY, config=HALFWAY),
    "dapo": case(lambda: DAPO(rollouts_per_prompt=3, draw=3, max_draws=5), questions=24),
    "pilot_commit": case(lambda: PilotCommit(pilots=4, commits=3, target=1, max_rounds=3)),
    "reinforce_ada, two steps a batch": case(
        lambda: ReinforceAda(rollouts_per_round=3, rounds=3, keep=4), config={"steps_per_generation": 4}
    ),
    "vip, the largest P(mixed)": case(
        lambda: VIP(rollouts_per_prompt=4, predictor=EmpiricalBayes()), questions=24, selection=Mixed
    ),
    "hora, weights of a selection, four steps a batch": case(
        HORA_OF_4, questions=12, selection=lambda: SPOWeights(importance_weights=True), config=HALFWAY
    ),
    "dapo, a selection, two batches a step": case(
        lambda: DAPO(rollouts_per_prompt=3, draw=3, max_draws=5),
        questions=32,
        selection=lambda: GRESO(importance_weights=True),
        config={"steps_per_generation": 1},
    ),
    "optpo": case(lambda: OptPO(min_samples=3, max_samples=9, exceedances=2, wave=3)),
}


class Killed(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if state.global_step == KILLED_IN:
            os.kill(os.getpid(), signal.SIGKILL)


def run(name, folder, killed=False, resume=False):
    """Train the run ``name`` in ``folder`` and write what it logged and a hash of its weights."""
    disable_progress_bar()
    chosen = dict(CASES[name])
    kind, make, questions = chosen.pop("kind"), chosen.pop("allocator"), chosen.pop("questions")
    learning = {key: chosen.pop(key)() for key in ("baseline", "selection") if key in chosen}
    chosen["config"] = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": EVERY} | chosen["config"]
    trainer = make_trainer(
        kind,
        folder / "run",
        None,
        make(),
        questions=tiny.make_questions(questions),
        rollout_log=folder / "log",
        callbacks=[Killed()] if killed else [],
        **chosen,
        **learning,
    )
    trainer.train(resume_from_checkpoint=resume)
    found = {"history": history(trainer), "weights": digest(trainer.model)}
    (folder / "found.json").write_text(json.dumps(found))
