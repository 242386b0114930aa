"""Runs on several ranks; each rank writes what it saw to ``FOLDER``.

    python -m torch.distributed.run --standalone --nproc_per_node 2 -m tests.trl.scripts.ranks FOLDER

With ``--nproc_per_node 1`` the results are those to compare with.
"""

import copy
import json
import logging
import shutil
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOTrainer, RLOOTrainer

from apportion import AR3PO, DAPO, HORA, VIP, Uniform
from apportion.allocators import Voting
from apportion.selection import Mixed
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from tests.trl.scripts.policy import RANK, RANKS, Scripted, digest, history, make_trainer, right, saved
from tests.trl.tiny import make_questions

STEPS = 3


def later(completions, prompts, **columns):
    """A reward function of whole groups: the share of a prompt's completions that sort below each."""
    assert len(set(prompts)) == 1
    return [sum(other < each for other in completions) / len(completions) for each in completions]


def hora():
    return HORA(rollouts_per_prompt=4, pre_rollouts=2, high=12)


REUSING = "ar3po, reuse=replay"
RUNS = {
    "ar3po": (lambda: AR3PO(stages=3, rollouts_per_stage=3), {}),
    "voting": (lambda: Voting(min_samples=1, max_samples=9, wave=3), {}),
    REUSING: (lambda: AR3PO(stages=2, rollouts_per_stage=2, reuse="replay"), {"questions": 4, "steps": 5}),
    "dapo, with a reference": (lambda: DAPO(rollouts_per_prompt=3, draw=3, max_draws=4), {"beta": 0.1}),
    "hora, two batches a step": (hora, {"gradient_accumulation_steps": 4, "steps_per_generation": 2}),
    "hora, whole groups": (
        hora,
        {"given": {"reward_funcs": [right, later], "verdict": "right", "whole_groups": True}},
    ),
    "vip, a selection": (lambda: VIP(rollouts_per_prompt=4, high=12), {"selection": Mixed(group_size=4)}),
}
"""A rule and settings of each kind. Several plan numbers of rollouts that two ranks cannot share evenly."""

PARITY = {
    "rloo": (RLOOTrainer, AllocatedRLOOTrainer, {"beta": 0.05}),
    "grpo": (GRPOTrainer, AllocatedGRPOTrainer, {"beta": 0.04, "num_iterations": 2, "steps_per_generation": 4}),
}


class LastBatch(TrainerCallback):
    """Record the unmasked rows, and the sizes of micro-batches, that the loss of the last batch sees on this rank."""

    def __init__(self):
        self.trainer, self.rows, self.sizes = None, [], []

    def on_step_end(self, *given, **more):
        decode, chunks = self.trainer.processing_class.decode, self.trainer._buffered_inputs
        self.sizes = [len(chunk["advantages"]) for chunk in chunks]
        self.rows = [
            [
                decode(chunk["prompt_ids"][i][chunk["prompt_mask"][i].bool()]),
                decode(chunk["completion_ids"][i][chunk["completion_mask"][i].bool()], skip_special_tokens=True),
                float(chunk["advantages"][i]) / float(chunk.get("row_scale", 1.0)),
            ]
            for chunk in chunks
            for i in range(len(chunk["advantages"]))
            if chunk["completion_mask"][i].any()
        ]


def parity(folder, own, allocated, settings):
    """Return the logs and weights of TRL's own trainer and of ours under the uniform rule."""
    found = []
    for kind, allocator in ((own, None), (allocated, Uniform(rollouts_per_prompt=4))):
        trainer = make_trainer(kind, folder, saved(folder), allocator, config=settings)
        trainer.train()
        found.append({"history": history(trainer), "weights": digest(trainer.model)})
    return found


def scripted(folder, allocator, questions=48, steps=STEPS, selection=None, given=None, **settings):
    """Train with completions that are the same on any number of ranks. Return what the loss sees and what is logged."""
    last = LastBatch()
    config = {"optim": "sgd", "loss_type": "grpo", "max_steps": steps} | settings
    last.trainer = trainer = make_trainer(
        AllocatedGRPOTrainer,
        folder,
        saved(folder, Scripted),
        allocator,
        questions=make_questions(questions),
        config=config,
        rollout_log=folder / "log",
        selection=selection,
        callbacks=[last],
        **(given or {}),
    )
    trainer.train()
    torch.save(trainer.model.state_dict(), folder / f"weights-{RANK}.pt")
    return {
        "rows": last.rows,
        "sizes": last.sizes,
        "history": history(trainer),
        "weights": digest(trainer.model),
    }


def resumed(folder):
    """Train a whole run and one resumed from a checkpoint of it, which overwrites the later part of the log.

    A batch has 8 prompts and 4 steps. The checkpoint is in the middle of the second.
    """
    found, replay = [], AR3PO(stages=1, rollouts_per_stage=2, reuse="replay")
    config = {
        "max_steps": 10,
        "save_strategy": "steps",
        "save_steps": 6,
        "num_iterations": 2,
        "steps_per_generation": 4,
    }
    for name, checkpoint in (("whole", None), ("again", str(folder / "checkpoint-6"))):
        log = folder / name
        if checkpoint is not None and RANK == 0:
            shutil.copytree(folder / "whole", log, dirs_exist_ok=True)  # the other rank may have made it
        given = {"config": config, "questions": make_questions(32), "rollout_log": log, "selection": Mixed()}
        trainer = make_trainer(AllocatedGRPOTrainer, folder, None, copy.deepcopy(replay), **given)
        trainer.train(resume_from_checkpoint=checkpoint)
        found.append({"history": history(trainer), "weights": digest(trainer.model)})
    return found


def name_the_only_cpu():
    """Let torch load to "cpu:0", because transformers asks for it if several processes resume on a CPU."""
    torch.serialization.register_package(
        100, lambda value: None, lambda value, place: value if place == "cpu:0" else None
    )


def main(folder):
    name_the_only_cpu()
    disable_progress_bar()
    logging.disable(logging.WARNING)
    found = {"scripted": {name: scripted(folder / name, make(), **own) for name, (make, own) in RUNS.items()}}
    if RANKS > 1:  # ``test_parity`` and ``test_checkpoints`` have one rank
        found["parity"] = {name: parity(folder, *each) for name, each in PARITY.items()}
        found["resumed"] = resumed(folder / "resumed")
    (folder / f"rank-{RANK}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
