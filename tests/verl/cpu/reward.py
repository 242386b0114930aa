"""The reward of the questions: 1 where the answer's first character is among the first ``k`` of the alphabet."""

import os
import signal

from tests.verl.cpu.assets import ALPHABET
from tests.verl.cpu.fault_files import asked


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **rest):
    """The reward of one rollout, as verl calls it: ``ground_truth`` holds k; where it is no number, an error."""
    answer = solution_str.rpartition("assistant\n")[2]  # after tools were called; otherwise all
    return float(answer[:1] != "" and answer[0] in ALPHABET[: int(ground_truth)])


def compute_report(data_source, solution_str, ground_truth, extra_info=None, **rest):
    """The reward with figures beside it: ``acc`` is the same, ``length`` in characters."""
    score = compute_score(data_source, solution_str, ground_truth)
    return {"score": score, "acc": score, "length": len(solution_str)}


BAD = {"nan": float("nan"), "text": "one"}


def compute_faulty(data_source, solution_str, ground_truth, extra_info=None, **rest):
    """The same reward, or for the faults of the folder an error (``reward_fails``).

    ``reward_is_nan`` and ``reward_is_text`` return no finite number, and ``kills_rewarder`` kills the reward worker.
    """
    for name, value in BAD.items():
        if asked(f"reward_is_{name}", int(extra_info["index"])):
            return value
    if asked("kills_rewarder", int(extra_info["index"])):
        os.kill(os.getpid(), signal.SIGKILL)
    if asked("reward_fails", int(extra_info["index"])):
        raise RuntimeError("this reward fails")
    return compute_score(data_source, solution_str, ground_truth)
