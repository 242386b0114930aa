"""Runs and votes to show: made records, rollout logs of them, studies of the lab by their files, and votes."""

import numpy as np

from apportion.vote.journal import Journal
from apportion.vote.setup import make_setup
from tests.builders import write_jsonl
from tests.diagnosis.builders import record_of
from tests.vote.builders import make_ballot, make_sample

NOON = 1.8e9
"""Seconds since 1970 at which made runs begin."""


def make_record(steps=40, prompts=16, size=8, seed=0, **changes):
    """Return a run of ``prompts`` prompts a step whose success rises, with tokens, times and predictions."""
    rng = np.random.default_rng(seed)
    number = 4 * prompts
    skill = rng.normal(0, 2.5, number)
    groups = steps * prompts
    step = np.repeat(np.arange(steps), prompts)
    prompt = np.concatenate([rng.permutation(number)[:prompts] for _ in range(steps)])
    p = 1 / (1 + np.exp(-(skill[prompt] + 2 * step / max(steps, 1) - 1)))
    columns = {
        "name": "made",
        "source": "rollout log",
        "ids": tuple(f"q{q}" for q in range(number)),
        "texts": tuple(f"What is {q} + {q}?" for q in range(number)),
        "predicted": np.clip(p + rng.normal(0, 0.1, groups), 0.01, 0.99),
        "written": NOON + 30.0 * (step + 1),
        "tokens": rng.integers(50, 400, groups * size).astype(float),
    }
    return record_of(rng.random((groups, size)) < p[:, None], prompt, step, **columns | changes)


def make_study(folder, arms=("uniform", "vip"), seeds=2, steps=30):
    """Write the files of a study of the lab that a report reads."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'name = "{folder.name}"\nbaseline = "{arms[0]}"\n')
    for arm, name in enumerate(arms):
        for seed in range(seeds):
            write_run(folder / f"{name}-seed{seed}", steps, speed=1 + arm, seed=seed)
    return folder


def write_run(folder, steps, speed=1, seed=0, size=4):
    """Write the metrics of one run of the lab, whose held-out success rises with ``speed``."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    lines = [{"step": 0, "rollouts": 0, "tokens": 0, "success": 0.2}]
    for step in range(1, steps + 1):
        p = rng.random(8)
        wrong = float(np.mean((1 - p) ** size))
        line = {
            "step": step,
            "rollouts": 8 * size * step,
            "tokens": 80 * size * step,
            "train_reward": float(p.mean()),
            "informative": max(0.0, 1 - wrong - float(np.mean(p**size))),
            "without_correct": wrong,
            "p": p.tolist(),
            "predicted": np.clip(p + rng.normal(0, 0.1, 8), 0, 1).tolist(),
            "counts": [size] * 8,
            "cpu_seconds": 0.5,
        }
        if step % 5 == 0:
            line["success"] = 0.2 + 0.5 * (1 - np.exp(-speed * step / steps)) + 0.01 * seed
        lines.append(line)
    write_jsonl(folder / "metrics.jsonl", lines)


def make_vote(path, questions=40, most=16, seed=0):
    """Write the answers, samples and settings of a vote, whose last question is not finished."""
    rng = np.random.default_rng(seed)
    setup = make_setup(base_url="http://localhost:8000/v1", model="m", rule="optpo", max_samples=most)
    with Journal(path, setup) as journal:
        for q in range(questions):
            samples = int(rng.integers(4, most + 1))
            unparsed = int(rng.random() < 0.2)
            winner = int(rng.integers((samples - unparsed + 1) // 2 + 1, samples - unparsed + 1))
            other = samples - unparsed - winner
            right = bool(rng.random() < winner / samples)
            journal.append(
                make_ballot(
                    f"q{q}",
                    votes={"7": winner} | ({"8": other} if other else {}),
                    samples=samples,
                    unparsed=unparsed,
                    truncated=int(rng.random() < 0.1),
                    gold="7" if right else "9",
                    correct=right,
                )
            )
        for number in range(3):
            journal.keep(make_sample("last", number))
    return path
