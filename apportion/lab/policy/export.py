"""The lab for other trainers: its problems as rows of prompt and answer. Its policies are ``Recipe.directory``.

A row's answer lists the right completions, because a forked problem has several. A trainer that samples at temperature
1 with the ``max_new_tokens`` of the task, judged by ``right``, has the success of ``exact.exact_success``.
"""

from apportion.lab.world.task import Problem


def row(problem: Problem) -> dict[str, str]:
    """Return the problem as ``prompt`` and ``answer``, the right completions separated by spaces.

    >>> row(Problem(7, ("+3", "*7"), ("", "-2")))
    {'prompt': '7 a+3 b*7 b-2 =', 'answer': 'a0b0 a0b8'}
    """
    return {"prompt": problem.text, "answer": " ".join(problem.solutions)}


def right(completion: str, gold: str) -> bool:
    """Return whether ``completion`` is one of the right ones in ``gold``, the answer of its row.

    Note: text does not show whether the end token came. A right completion that was cut before its end token counts
    as right here, but not in the lab.

    >>> right("a0b8", "a0b0 a0b8"), right("a0", "a0b0 a0b8"), right("", "a0b0")
    (True, False, False)
    """
    return completion in gold.split()
