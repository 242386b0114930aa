"""The lab for other trainers: a base policy as a model folder, and its problems as rows of prompt and answer.

A row's answer lists the right completions, because a forked problem has several. A trainer that samples at temperature
1 with ``max_new_tokens``, judged by ``right``, has the success of ``exact.exact_success``.
"""

import hashlib
import json
from pathlib import Path

from apportion.lab.policy.base import Progress, trained_policy
from apportion.lab.policy.recipes import RECIPES, cache_directory, is_trained, task_of
from apportion.lab.world.task import TASKS, Problem, held_out_problems, training_problems
from apportion.runs.whole_files import write_whole

PROBLEMS = 512
"""Problems for training: the default of a study."""


def policy_folder(base: str, progress: Progress | None = None) -> Path:
    """Return the folder of ``base``, for ``AutoModelForCausalLM`` and ``AutoTokenizer``. Train it if it is not cached.

    Neither needs a network.
    """
    if not is_trained(base):
        trained_policy(RECIPES[base], progress)
    return RECIPES[base].directory if base in RECIPES else Path(base)


def max_new_tokens(base: str) -> int:
    """Return how many new tokens the longest right completion of ``base``'s task may need.

    >>> max_new_tokens("medium")
    14
    """
    return TASKS[task_of(base)].max_new_tokens


def row(problem: Problem) -> dict[str, str]:
    """Return the problem as ``prompt`` and ``answer``, the right completions separated by spaces.

    >>> row(Problem(7, ("+3", "*7"), ("", "-2")))
    {'prompt': '7 a+3 b*7 b-2 =', 'answer': 'a0b0 a0b8'}
    """
    return {"prompt": problem.text, "answer": " ".join(problem.solutions)}


def right(completion: str, gold: str) -> bool:
    """Return whether ``completion`` is one of the right ones in ``gold``, the answer of its row.

    Note: text does not show whether the end token came. If completions are cut below ``max_new_tokens``, a right one
    without its end token counts as right here, but not in the lab.

    >>> right("a0b8", "a0b0 a0b8"), right("a0", "a0b0 a0b8"), right("", "a0b0")
    (True, False, False)
    """
    return completion in gold.split()


def problems_file(base: str, held_out: bool = False) -> Path:
    """Return a .jsonl file with a ``row`` for each problem of ``base``'s task. Write it to the cache if it is missing.

    The problems are those of a study's first seed: 512 to train on, or the 1,000 ``held_out`` ones.
    """
    task = task_of(base)
    problems = held_out_problems(task=task) if held_out else training_problems(PROBLEMS, task=task)
    text = "".join(f"{json.dumps(row(problem))}\n" for problem in problems)
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    path = cache_directory() / f"{task}-{'held-out' if held_out else 'training'}-{digest}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return path
