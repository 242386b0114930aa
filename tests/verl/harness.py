"""Run verl itself on a CPU, as a user's command does, and read what it logged and trained on.

Every run has its own processes and its own Ray. ``warmed`` makes this cheap: all of them are forked from one process
that has imported verl, so that a run of two steps takes 8 to 12 seconds on two cores, and not a minute.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
CPU = "tests.verl.cpu"
ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": f"{CPU}.plugin",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_DEDUP_LOGS": "0",
    "HYDRA_FULL_ERROR": "1",
    "PYTHONUNBUFFERED": "1",
    "TQ_NUM_THREADS": "1",
}


def environment(records):
    """Return the environment of a process that runs verl; ``records`` is the folder of its logs and rows."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "VERL_FILE_LOGGER_PATH": f"{records}/metrics.jsonl", "VERL_TEST_RECORDS": str(records)}
    return os.environ | ENVIRONMENT | own


SETTINGS = """
    trainer.device=cpu
    trainer.n_gpus_per_node={ranks}
    trainer.nnodes=1
    +ray_kwargs.ray_init.num_gpus=4
    ray_kwargs.ray_init.num_cpus=32
    +ray_kwargs.ray_init.include_dashboard=false
    +ray_kwargs.ray_init.object_store_memory=200000000
    data.train_files={assets}/train.parquet
    data.val_files={assets}/val.parquet
    data.train_batch_size=4
    data.max_prompt_length=64
    data.max_response_length=8
    data.dataloader_num_workers=0
    data.shuffle=False
    actor_rollout_ref.model.path={assets}/policy
    actor_rollout_ref.model.use_remove_padding=False
    actor_rollout_ref.model.enable_gradient_checkpointing=False
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa
    actor_rollout_ref.actor.strategy=fsdp2
    actor_rollout_ref.actor.ppo_mini_batch_size=4
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
    actor_rollout_ref.actor.optim.lr=0.001
    actor_rollout_ref.actor.use_torch_compile=False
    actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
    +actor_rollout_ref.actor.fsdp_config.mixed_precision={{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}}
    actor_rollout_ref.rollout.name=tiny
    actor_rollout_ref.rollout.n=4
    actor_rollout_ref.rollout.tensor_model_parallel_size={ranks}
    actor_rollout_ref.rollout.n_gpus_per_node={ranks}
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
    actor_rollout_ref.rollout.free_cache_engine=False
    actor_rollout_ref.rollout.agent.num_workers=1
    reward.num_workers=1
    reward.custom_reward_function.path=pkg://tests.verl.cpu.reward
    reward.custom_reward_function.name=compute_score
    transfer_queue.backend.SimpleStorage.num_data_storage_units=1
    transfer_queue.backend.SimpleStorage.total_storage_size=2000
    trainer.v1.sampler.custom_sampler.path=pkg://tests.verl.cpu.buffer
    trainer.v1.sampler.custom_sampler.name=QuickReplayBuffer
    trainer.logger=[file]
    trainer.val_before_train=False
    trainer.total_training_steps=2
    trainer.total_epochs=100
    trainer.save_freq=-1
    trainer.test_freq=-1
    trainer.resume_mode=disable
    trainer.default_local_dir={folder}/checkpoints
"""
"""verl's settings in all tests: 2 steps of 4 prompts with 4 rollouts, one update a step."""


def settings(assets, folder, ranks=1):
    """Return the settings of a run with so many training workers by their names."""
    lines = SETTINGS.format(assets=assets, folder=folder, ranks=ranks).strip().splitlines()
    return dict(line.strip().split("=", 1) for line in lines)


@dataclass(frozen=True)
class Run:
    """A finished run: its exit status, its console output, and its folder."""

    status: int
    output: str
    folder: Path

    @property
    def metrics(self):
        """The metrics of each logged step, with its number as ``step``."""
        lines = (self.folder / "records" / "metrics.jsonl").read_text().splitlines()
        return [{"step": line["step"], **line["data"]} for line in map(json.loads, lines)]

    def rows(self, step):
        """Return all rows of step ``step`` (from 1), with padding, as dictionaries of ``cpu.recorder.FIELDS``."""
        lines = (self.folder / "records" / f"rows_{step}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def others(self, step):
        """Return the keys in the TransferQueue that step ``step`` does not train on."""
        return json.loads((self.folder / "records" / f"others_{step}.json").read_text())

    def weights(self, step):
        """Return the file of the policy's weights after step ``step``; step 0 is before training."""
        return self.folder / "records" / f"weights_{step}.pt"


TOOLS = (
    "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
    "actor_rollout_ref.rollout.multi_turn.enable=True",
    f"actor_rollout_ref.rollout.multi_turn.function_tool_path={Path(__file__).parent / 'cpu' / 'tools.py'}",
    "data.max_response_length=96",
)
"""Overrides under which every rollout goes through verl's ``tool_agent``. Questions that call are in tools.parquet."""


@contextlib.contextmanager
def warmed():
    """Provide a program that replaces Python and has verl imported when it starts."""
    with _short_folder() as folder:
        process = warm.start(f"{CPU}.warm", folder, environment(folder))
        try:
            yield f"{folder}/python"
        finally:
            process.stdin.close()
            process.wait(timeout=30)
            process.stdout.close()


@contextlib.contextmanager
def _short_folder():
    """Provide a folder for sockets, whose paths may have about 100 characters."""
    folder = tempfile.mkdtemp(prefix="v", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(
    folder,
    assets,
    overrides=(),
    *,
    main="verl.trainer.main_ppo",
    ranks=1,
    seconds=480,
    until=None,
    python=sys.executable,
):
    """Run verl's trainer in its own processes until it ends. Raises AssertionError if that takes too long.

    Args:
        folder: for records, checkpoints and outputs. It may hold those of an earlier run, to resume it.
        assets: the folder that ``cpu.assets.write`` wrote.
        overrides: of verl's configuration, ``name=value`` as on the command line; they replace those of ``settings``.
        main: the module that is run.
        ranks: training workers; they share the rows of a step.
        seconds: the time after which the run is killed. A busy machine takes several times as long as a quiet one.
        until: the path of a file, or a function. Once the file exists or the function returns True, the run is killed,
            with status -9.
        python: the program that runs it; see ``warmed``.
    """
    folder = Path(folder)
    records = folder / "records"
    records.mkdir(parents=True, exist_ok=True)
    replaced = {override.partition("=")[0].lstrip("+~") for override in overrides}
    given = {name: value for name, value in settings(assets, folder, ranks).items() if name.lstrip("+") not in replaced}
    with _short_folder() as ray, (folder / "output.log").open("w") as output:
        words = [f"{name}={value}" for name, value in (given | {"+ray_kwargs.ray_init._temp_dir": ray}).items()]
        process = subprocess.Popen(
            [python, "-m", main, *words, *overrides],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=environment(records),
            start_new_session=True,
        )
        try:
            status = _wait(process, seconds, until)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                with contextlib.suppress(OSError):  # what Ray says of it, for whoever looks into the folder
                    shutil.copytree(f"{ray}/session_latest/logs", folder / "ray", dirs_exist_ok=True)
    return Run(status, (folder / "output.log").read_text(errors="replace"), folder)


def _reached(until):
    return until.exists() if isinstance(until, Path) else until()


def _wait(process, seconds, until):
    """Return the status of ``process`` when it ends; that of a killed one if it must be killed."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        if until is not None and _reached(until):
            return -signal.SIGKILL
        assert time.monotonic() < end, f"a run must end within {seconds} s"
        time.sleep(0.1)
    return process.returncode


def working_in(folder):
    """Return the processes whose working directory is ``folder``, as it is for all processes of a run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if (process / "cwd").readlink() == folder else []
        except OSError:  # it has ended, or is not ours
            continue
    return found


def assert_no_process_is_left(folder):
    deadline = time.monotonic() + 120  # on a busy machine Ray takes long to see that its driver is gone
    while left := working_in(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
