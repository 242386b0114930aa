"""SkyRL's own fully asynchronous trainer, with our prompts, counts and advantages. CONTRIBUTING.md says how to run it.

The trainer is SkyRL's ``FullyAsyncTrainerSim``, which it has for runs without training GPUs. The policy and the weights
are stand-ins. All that schedules, limits staleness, collects batches, computes and saves is SkyRL's.
"""

import asyncio
import json
import random
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest

from apportion import VIP, Uniform
from apportion.baselines import SPO
from apportion.engines.skyrl import allocated
from apportion.scheduler.decisions import TrainerAllocation
from apportion.selection import Mixed, MoPPS
from tests.engines.outside import engine

PROMPTS, BATCH = 16, 4
CASES = {
    "equal groups": (False, lambda: TrainerAllocation(allocator=Uniform(), selection=Mixed(), estimator="rloo")),
    "counts by price": (True, lambda: TrainerAllocation(allocator=VIP(rollouts_per_prompt=4.0), selection=MoPPS())),
    "from history": (True, lambda: TrainerAllocation(allocator=Uniform(1), baseline=SPO(), estimator="spo")),
    "two rounds": (True, lambda: TrainerAllocation(allocator="hora", estimator="rloo")),
}


@pytest.fixture(scope="module")
def sim():
    found = engine("SKYRL", "skyrl.train.fully_async_trainer_sim")
    import ray

    ray.init(num_cpus=1, include_dashboard=False)  # SkyRL asks Ray to clean up old checkpoints
    yield found
    ray.shutdown()


class Words:
    """A tokenizer of four tokens."""

    pad_token_id = eos_token_id = 0

    def apply_chat_template(self, *given, **named):
        return [1, 2]

    def decode(self, ids, **named):
        return str(ids)


class Policy:
    """Solves prompt i of Q with probability i / Q, after a random time."""

    def __init__(self, steps, seed):
        self.steps, self.rng, self.asked = steps, random.Random(seed), []

    async def generate(self, input_batch):
        await asyncio.sleep(self.rng.random() / 200)
        ids, uid = input_batch["trajectory_ids"], input_batch["trajectory_ids"][0].instance_id
        right = int(input_batch["prompts"][0][0]["content"]) / PROMPTS
        self.asked.append((uid, len(ids), [each.repetition_id for each in ids]))
        output = {
            "prompt_token_ids": [[1, 2] for _ in ids], "response_ids": [[1, 2, 3] for _ in ids],
            "rewards": [float(self.rng.random() < right) for _ in ids], "loss_masks": [[1, 1, 1] for _ in ids],
            "stop_reasons": None, "rollout_metrics": {}, "rollout_logprobs": [[-0.1, -0.2, -0.3] for _ in ids],
        }  # fmt: skip
        return output | ({"is_last_step": [True] * len(ids), "trajectory_ids": ids} if self.steps else {})


def make_trainer(sim, folder, case, seed, steps_to_train):
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.dataset import PromptDataset
    from skyrl.train.utils.trainer_utils import ResumeMode

    class Workers(sim._SimDispatch):
        def save_checkpoint(self, *given, **named): ...

        def load_checkpoint(self, *given, **named): ...

        def finalize_pending_saves(self, *given, **named): ...

        def get_node_ids(self):
            return []

        def get_timing_metrics(self):
            return {}

    class Trained(sim.FullyAsyncTrainerSim):
        def init_weight_sync_state(self):
            self.dispatch = Workers(self.inference_engine_client, 0.0)

        async def _run_training(self, data):
            data["values"] = None
            self.batches.append(self.compute_advantages_and_returns(data))
            return {}

    step_wise, allocation = CASES[case]
    cfg = SkyRLTrainConfig()
    cfg.trainer.train_batch_size = cfg.trainer.policy_mini_batch_size = BATCH
    cfg.trainer.ckpt_interval = cfg.trainer.eval_interval = cfg.trainer.hf_save_interval = -1
    cfg.trainer.resume_mode, cfg.trainer.epochs, cfg.trainer.max_training_steps = "none", 9, steps_to_train
    cfg.trainer.placement.colocate_all, cfg.trainer.ckpt_path = False, str(folder)
    cfg.trainer.fully_async.enabled = cfg.trainer.fully_async.simulate_training = True
    cfg.trainer.fully_async.num_parallel_generation_workers, cfg.trainer.fully_async.max_staleness_steps = 8, 2
    cfg.trainer.algorithm.policy_loss_type = "rollout_is"
    cfg.trainer.algorithm.max_seq_len, cfg.trainer.update_ref_every_epoch = 16, False
    cfg.generator.n_samples_per_prompt, cfg.generator.step_wise_trajectories = 4, step_wise
    cfg.generator.batched, cfg.data.dataloader.num_workers = False, 0
    cfg.trainer.enable_ray_gpu_monitor = cfg.generator.inference_engine.enable_ray_prometheus_stats = False
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": [{"role": "user", "content": str(i)}]}) + "\n" for i in range(PROMPTS))
    )

    async def nothing():
        return None

    client = SimpleNamespace(pause_generation=nothing, resume_generation=nothing, increment_weight_version=lambda: None)
    quiet = SimpleNamespace(log=lambda *given, **named: None, finish=lambda: None)
    dataset = PromptDataset([str(folder / "rows.jsonl")], Words(), 16, num_workers=1)
    trainer = allocated(Trained)(
        cfg, quiet, Words(), dataset, client, Policy(step_wise, seed), None, allocation=allocation()
    )
    # SkyRL's simulated trainer allows no checkpoints from its configuration, because it has no weights to save.
    cfg.trainer.ckpt_interval, trainer.resume_mode = 1, ResumeMode.LATEST
    trainer.dispatch, trainer.batches = Workers(client, 0.0), []
    return trainer


@pytest.mark.parametrize("case", CASES)
def test_skyrl_trains_on_our_groups_and_goes_on_from_its_checkpoint(sim, case, tmp_path):
    first = make_trainer(sim, tmp_path, case, 0, 5)
    asyncio.run(asyncio.wait_for(first.train(), 60))
    assert len(first.batches) == 5 and (tmp_path / "global_step_5" / "apportion.safetensors").is_file()
    keys = {uid for uid, *_ in first.generator.inner.asked}
    assert len(keys) >= 20 and len({key.split("#")[0] for key in keys}) < len(keys)
    for batch in first.batches:
        assert len(set(batch.metadata["uids"])) == BATCH and set(batch.metadata["uids"]) <= keys
    if case == "two rounds":
        assert any(numbers[0] > 0 for *_, numbers in first.generator.inner.asked)
    if first.allocated_groups.decisions.estimator:
        assert any(batch["advantages"].abs().sum() > 0 for batch in first.batches)

    # SkyRL numbers its last checkpoint one further than it has trained, so its epochs would not end.
    shutil.rmtree(tmp_path / "global_step_6")
    (tmp_path / "latest_ckpt_global_step.txt").write_text("5")
    again = make_trainer(sim, tmp_path, case, 1, 10)
    assert again.load_checkpoints()[0] == 5
    opened = again.allocated_groups.counts["opened"]
    assert int(again.allocated_groups.next().key.split("#")[1]) < opened  # what was in flight comes first
    again = make_trainer(sim, tmp_path, case, 1, 10)
    asyncio.run(asyncio.wait_for(again.train(), 60))
    assert len(again.batches) == 5 and again.global_step == 11
    assert again.allocated_groups.counts["opened"] > first.allocated_groups.counts["opened"]
    batches = first.batches + again.batches
    sizes = {count for batch in batches for count in Counter(batch.metadata["uids"]).values()}
    assert sizes == {"equal groups": {4}, "from history": {1}}.get(case, sizes)
    assert (len(sizes) > 1) == (case in ("counts by price", "two rounds"))
