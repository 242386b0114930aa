"""How the files here were written, once, by version 0.2.0. Do not run it again: the files show what must still load."""

import shutil
import sys
from pathlib import Path

from tests.golden.decisions import fed, made, pool
from tests.golden.old import HERE


def write_vote():
    """A vote on three questions, each with 24 samples, on the scripted server of the tests."""
    from tests.vote.builders import answering, make_questions  # noqa: PLC0415
    from tests.vote.test_run import report_of  # noqa: PLC0415

    (HERE / "vote").mkdir()
    out = HERE / "vote" / "answers.jsonl"
    report_of(lambda request: answering(), out, make_questions(3), rule="fixed", max_samples=24, curtail=False)


def write_states():
    """The state of every learner after three batches, as checkpoints hold it."""
    from apportion.allocators import ALLOCATORS, Allocator  # noqa: PLC0415
    from apportion.baselines import BASELINES  # noqa: PLC0415
    from apportion.config import build  # noqa: PLC0415
    from apportion.engines.saved_state import save_state  # noqa: PLC0415
    from apportion.predictors import PREDICTORS  # noqa: PLC0415
    from apportion.selection import SELECTORS  # noqa: PLC0415
    from tests.rules import small_settings  # noqa: PLC0415

    batches, states = list(fed(False))[1:4], {}
    for kind, registry in (("predictor", PREDICTORS), ("baseline", BASELINES), ("selector", SELECTORS)):
        for name, cls in registry.items():
            learner = made(cls)
            learner.prepare(list(pool()))
            for batch in batches:
                getattr(learner, "update" if hasattr(learner, "update") else "observe")(batch)
            states[f"{kind} {name}"] = learner.state_dict()
    for name in ALLOCATORS:
        allocator = build(Allocator, small_settings(name))
        for batch in batches:
            allocator.observe(batch)
        states[f"allocator {name}"] = allocator.state_dict()
    save_state(HERE / "states.pt", "golden", states)


def write_log():
    """Two steps of HORA as a rollout log."""
    from apportion import HORA, collect  # noqa: PLC0415
    from apportion.advantages import advantages_of  # noqa: PLC0415
    from apportion.records import start_log, write_step  # noqa: PLC0415
    from tests.golden.decisions import stream  # noqa: PLC0415

    allocator = HORA(rollouts_per_prompt=4, pre_rollouts=2)
    start_log(HERE / "log")
    for step, (prompts, sample, _) in enumerate(list(stream(False))[2:4]):
        batch = collect(allocator, prompts, sample)
        groups = allocator.groups(batch)
        write_step(HERE / "log", step, batch, groups, advantages_of(groups))
        allocator.observe(batch)


def write_trl():
    """Our files in a checkpoint of TRL in the middle of a generation batch."""
    import tempfile  # noqa: PLC0415

    from apportion import HORA  # noqa: PLC0415
    from apportion.selection import Mixed  # noqa: PLC0415
    from apportion.trl import AllocatedGRPOTrainer  # noqa: PLC0415
    from tests.trl import tiny  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        tiny.make_policy().save_pretrained(f"{folder}/policy")
        tiny.make_tokenizer().save_pretrained(f"{folder}/policy")
        config = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1, "gradient_accumulation_steps": 2}
        config |= {"steps_per_generation": 4}
        trainer = tiny.made(
            AllocatedGRPOTrainer,
            f"{folder}/policy",
            f"{folder}/run",
            config=config,
            allocator=HORA(pre_rollouts=4),
            selection=Mixed(),
        )
        trainer.train()
        (HERE / "trl").mkdir()
        for path in Path(f"{folder}/run/checkpoint-1").glob("apportion*"):
            shutil.copy(path, HERE / "trl")


def write_verl():
    """Our file in a checkpoint of verl after two rounds, in which a tenth of the rollouts failed."""
    import numpy as np  # noqa: PLC0415

    from apportion.engines.saved_parts import SharedParts  # noqa: PLC0415
    from apportion.verl.checkpoints import FILE, KIND, is_reusable  # noqa: PLC0415
    from tests.verl.coordinator import worker_pool as pool  # noqa: PLC0415

    for kind in ("vip", "ar3po"):
        settings = pool.Settings(pool.ALLOCATORS[kind](), None, retries=1)
        coordinator = pool.make_coordinator(settings, pool.WorkerPool())
        for step in (1, 2):
            coordinator.pool.table, coordinator.pool.committed = pool.Table(failing=0.1, seed=step), []
            pool.open_rounds(coordinator, pool.request_of(pool.texts(*range(7)), step))
            pool.work(coordinator, np.random.default_rng(0))
            coordinator.metrics()
        (HERE / "verl" / kind).mkdir(parents=True)
        state = {"settings": coordinator.allocation.settings, "coordinator": coordinator.state()}
        SharedParts(is_reusable).save(HERE / "verl" / kind / FILE, KIND, state)


def write_lab():
    """A run that was told to stop at its third step, from a policy of 2,700 random weights."""
    from transformers import Qwen2ForCausalLM  # noqa: PLC0415

    from apportion.lab.policy.network import new_policy  # noqa: PLC0415
    from apportion.lab.training.trainer import Trainer  # noqa: PLC0415
    from tests.lab.training.test_trainer import RULES, settings  # noqa: PLC0415

    config = new_policy(0).config
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": None}
    base = str(HERE / "lab" / "base")
    Qwen2ForCausalLM(type(config)(**{**config.to_dict(), **sizes})).save_pretrained(base)
    rule, own = RULES["mixed"]()
    training = settings(base, rollout_log="none", problems=32, **own)
    Trainer(training, rule, 0, HERE / "lab" / "run").run(lambda record: record["step"] < 3)


if __name__ == "__main__":
    if any(HERE.glob("*.pt")):
        sys.exit("the files are there, and must not be written again")
    write_vote(), write_states(), write_log(), write_trl(), write_verl(), write_lab()
