"""Write a recorded GRPO run in the layouts of TRL, of verl and of a plain table, to try the commands on.

The run is ``examples/data/grpo_run.jsonl.gz``, which has counts of right rollouts. 54 steps of 128 problems are made,
six visits of each problem at most. The steps are made up, because the order of the problems was not recorded. The order
of right and wrong rollouts within a group is random. No completion was recorded, so each has the same text.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow.parquet import write_table

RUN = Path(__file__).parent / "data" / "grpo_run.jsonl.gz"
EPOCHS, PROMPTS, SIZE = 6, 128, 8
TEXT = "(not recorded)"


def steps() -> Iterator[list[tuple[str, str, list[int]]]]:
    """Yield the groups of each step: id, prompt and rewards. Prompts that fill no batch are left out of an epoch."""
    with gzip.open(RUN, "rt", encoding="utf-8") as file:
        problems = list({problem["prompt"]: problem for problem in map(json.loads, file)}.values())
    rng, visits = np.random.default_rng(0), [iter(problem["correct_of_8"]) for problem in problems]
    for _ in range(EPOCHS):
        order = rng.permutation(len(problems))
        for start in range(0, len(order) - PROMPTS + 1, PROMPTS):
            batch = []
            for q in order[start : start + PROMPTS]:
                rewards = rng.permutation(np.arange(SIZE) < next(visits[q])).astype(int).tolist()
                batch.append((problems[q]["id"], problems[q]["prompt"], rewards))
            yield batch


def write_trl(path: Path, step: int, groups: list[tuple[str, str, list[int]]]) -> None:
    """Write what TRL writes at a logged step with ``log_completions=True``."""
    rows = [(prompt, reward, sum(rewards) / SIZE) for _, prompt, rewards in groups for reward in rewards]
    columns = {
        "step": [step] * len(rows),
        "prompt": [prompt for prompt, _, _ in rows],
        "completion": [TEXT] * len(rows),
        "accuracy_reward": [float(reward) for _, reward, _ in rows],
        "advantage": [reward - mean for _, reward, mean in rows],
    }
    write_table(pyarrow.table(columns), path / f"completions_{step:05d}.parquet")


def write_verl(path: Path, step: int, groups: list[tuple[str, str, list[int]]]) -> None:
    """Write what verl writes at a step with ``trainer.rollout_data_dir``."""
    lines = [
        json.dumps({"input": prompt, "output": TEXT, "gts": "", "score": float(reward), "step": step})
        for _, prompt, rewards in groups
        for reward in rewards
    ]
    (path / f"{step}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    trl, verl, plain = Path("trl_run/completions"), Path("verl_run"), Path("my_run.jsonl")
    trl.mkdir(parents=True, exist_ok=True)
    verl.mkdir(exist_ok=True)
    lines = []
    for step, groups in enumerate(steps(), 1):
        write_trl(trl, step, groups)
        write_verl(verl, step, groups)
        lines += [
            json.dumps({"step": step, "id": id, "correct": reward}) for id, _, rewards in groups for reward in rewards
        ]
    plain.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines):,} rollouts in {step} steps: trl_run (TRL), verl_run (verl) and my_run.jsonl (a plain table)")


if __name__ == "__main__":
    main()
