"""The names under which people and tools keep columns, and the words in cells: verdicts, steps and splits."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from apportion.untrusted import parse_number

STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[_-]?([0-9]{1,15})(?![0-9])|^([0-9]{1,15})$")
"""How names of files and folders, and cells, write a step."""

EVALUATION = re.compile(r"(?:eval\w*|val(?:id\w*|set)?|test(?:set|ing)?|dev(?:set)?|held[-_ ]?out)(?![a-z])")
"""Beginnings of the names of evaluation files and folders, in lower case."""

SPLIT = re.compile(rf"(?:^|[^a-z])(?:(train\w*)|{EVALUATION.pattern})")
"""Texts in a cell that mark a row as training or evaluation, in lower case."""

NUMBERS = {
    "step": (0, 2**52, True),
    "turn": (0, 2**52, True),
    "reward": (-1e12, 1e12, False),
    "correct": (0, 1, True),
    "trials": (0, 1e9, True),
    "share": (0, 1, False),
    "tokens": (0, 1e12, True),
    "score_norm": (0, 1e100, False),
    "truncated": (0, 1, True),
    "predicted": (-1e12, 1e12, False),
    "asked": (0, 1e9, True),
    "time": (0, 1e12, False),
    "advantage": (-1e12, 1e12, False),
}
"""Number columns: least value, greatest value, and whether only whole numbers are valid."""

OPTIONAL = ("tokens", "score_norm", "truncated", "predicted", "asked", "time", "advantage")
"""Number columns that a run may lack."""

TEXTS = ("prompt", "id", "answer", "group", "gold", "split", "run", "rollout")
"""Columns of texts. ``group`` names the group of a row, if one prompt may have several groups in a step. ``gold`` is
the known answer of a problem, or its image: it tells apart problems that have the same text. ``split`` tells rows of
an evaluation from those of training, and ``run`` those of several runs or models from each other. ``rollout`` is the
rollout of a row that is a ``turn`` of one."""

OTHER = {
    role: tuple(names.split())
    for role, names in {
        "step": "global_step train_step training_step training_iteration iteration iter _step global_steps "
        "rollout_step step_idx step_index step_id step_number",
        "turn": "turn_idx turn_index turn_id turn_number turn_num env_step agent_step episode_step sub_step step_idx "
        "step_index step_id step_number",
        "reward": "score rewards scores scalar_reward total_reward final_reward reward_score",
        "correct": "is_correct acc success passed pass solved exact_match task_correct correctness resolved is_success "
        "is_solved is_passed math_verify extractive_match em graded_list outcome verdict result status grade judgement "
        "judgment",
        "trials": "total num_total total_count n num_samples n_samples num_trials n_trials num_rollouts n_rollouts "
        "num_generations n_generations attempts num_attempts tries group_size k",
        "share": "pass_rate solve_rate success_rate accuracy pass@1 pass_rates solve_rates success_rates rate mean",
        "tokens": "completion_tokens generated_tokens output_tokens response_tokens num_tokens completion_length "
        "response_length",
        "prompt": "question problem input query instruction prompts input_prompt",
        "id": "prompt_id question_id problem_id task_id example_id doc_id qid idx instance_id prompt_index "
        "problem_index question_index prompt_idx",
        "answer": "extracted_prediction pred prediction extracted_answer predicted_answer model_answer pred_answer",
        "group": "group_id group_idx group_index",
        "split": "phase mode stage data_split dataset_split dataset_type subset partition is_eval do_eval is_val "
        "do_val is_validation do_validation is_evaluation is_test do_test eval val validate validation evaluation "
        "evaluate test train training is_train is_training",
        "run": "run_id run_name experiment experiment_name model model_name algo algorithm method checkpoint seed",
        "rollout": "rollout_id trajectory_id traj_id traj_uid episode_id episode sample_id rollout_idx sample_idx "
        "trajectory_idx traj_idx rollout_index sample_index",
        "gold": "gts ground_truth gold gold_answer expected_answer target reference_answer solution image images",
        "counted": "counted num_correct n_correct correct_count num_passed n_passed passes successes c k",
        "rollouts": "rollouts samples completions responses generations outputs attempts trajectories resps "
        "output_list",
        "completion": "completion output response generation output_response model_output generated_text messages "
        "conversation conversations trajectory",
        "understood": "completion completions advantage output response responses generation rate visit",
        "right": "yes y t pass passed passes correct c right success successful succeeded solved resolved accepted ✓ ✔",
        "wrong": "no n f fail failed fails failure incorrect i wrong unsuccessful unsolved unresolved rejected ✗ ✘",
    }.items()
}
"""Other names that people use for a column, the likeliest first; for lists of counts and of rollouts; and verdicts."""

USUAL = {role: (role, *OTHER.get(role, ())) for role in (*NUMBERS, *TEXTS)}
"""All names under which a role is found, its own first."""

VERDICTS = {"reward", "correct"}
"""Columns that say how good a rollout was."""

TURNS = {*USUAL["turn"]}
STEPS = {*USUAL["step"]} - TURNS
KEYS = {*USUAL["id"], *USUAL["prompt"]}
"""TURNS, STEPS (that are no turns) and KEYS (which prompt a row is of): names of such columns."""

WORDY = USUAL["correct"][-7:]
"""Names that mean a verdict only if all cells are verdicts."""

COUNTED = OTHER["counted"]
"""Names of a count of correct rollouts, beside a count of rollouts."""

TOTALS = USUAL["trials"][1:4]
"""Names of a count of rollouts, of which another column counts the correct ones, even if the count is 0 or 1."""

RENAMED = {
    "verl": {"prompt": "input", "reward": "score", "group": "uid", "gold": "gts"},
    "counts": {"correct": "counted"},
}
"""Columns that a format names differently."""

NAMES = {
    "trl": "TRL completions",
    "verl": "verl rollout dump",
    "plain": "table of rollouts",
    "counts": "group counts per step",
}
"""The formats that ``import_run`` reads, and the name of each in ``RunRecord.source``."""

ROLLOUTS = OTHER["rollouts"]
"""Columns that hold a list of rollouts. A verdict beside the list is about all of them, such as a mean."""

COMPLETIONS = OTHER["completion"]
"""Columns that hold one completion. A list of numbers beside it has the parts of one reward."""

UNDERSTOOD = {*OTHER["understood"], *USUAL["gold"]}
"""Columns that are recognised, but not needed."""

MOST_OTHERS = 4
"""Most further candidate columns for the reward whose figures are shown."""

TRUTHS = {"true": 1.0, "false": 0.0}
WORDS = TRUTHS | dict.fromkeys(OTHER["right"], 1.0) | dict.fromkeys(OTHER["wrong"], 0.0)
"""Verdicts in words, in any case. C and I are inspect_ai's."""

ENDED = re.compile(
    r"^(?!.*(?:rew|scor|ratio|rate))(?:.*(?:trunc|clipped|overlong|incomplete|(?:hit|reach|exceed)\w*_(?:max|limit|len))"
    r"|(?:.*_)?status$|(?:.*_)?(?:finish|stop|done|end)\w*(?:reason|type|condition)s?$)"
)
"""Names of columns that say whether a completion was truncated, by a flag or a stop reason."""

AT_LIMIT = re.compile(r"length|max_?(?:new_?|output_?)?tokens|max_?len|trunc|overlong|too_long|context_window", re.I)
"""Stop reasons that mean truncation at a limit of tokens."""

NO_NUMBER = -sys.float_info.max
"""Marks a cell that holds something other than a number. It is outside the limits of every column."""


PART = re.compile(
    r"^(?!.*(?:mean|std|max|min|avg|group|base))(?:.*[_./])?(?:rewards?|accuracy|correct|score)(?:[_./].*)?$"
)
"""Names of a part of the reward, or of a further verdict, in a table that has a reward."""


def verdict_names(renamed: Mapping[str, str] = {}) -> set[str]:
    """Return the columns that may say how good a rollout was."""
    return {name for role in VERDICTS for name in (*USUAL[role], renamed.get(role)) if name}


def resolved(
    role: str, found: Collection[str], renamed: Mapping[str, str], usual: Sequence[str] | None = None
) -> str | None:
    """Return the column of ``found`` for ``role``: the user's choice, the role's own name, or another usual name."""
    if role in renamed:
        return renamed[role] or None
    return next(iter(named_in(usual or USUAL[role], found)), None)


def named_in(names: Sequence[str], found: Collection[str]) -> list[str]:
    """Return the columns of ``found`` that have one of ``names`` in any case, in the order of these."""
    by_name = {column.lower(): column for column in reversed(list(found))}
    return [by_name[name] for name in names if name in by_name]


def number_in(cell: Any, words: bool = True) -> float:
    """Return the number in ``cell``, nan for an empty one. A verdict is one, in any of ``WORDS`` if ``words``."""
    if cell is None:
        return math.nan
    try:
        if isinstance(cell, str):
            text, known = cell.strip().lower(), WORDS if words else TRUTHS
            if not text:
                return math.nan
            value = known[text] if text in known else parse_number(text)
        else:
            value = float(cell) if isinstance(cell, (bool, int, float, Decimal)) else NO_NUMBER
    except (ValueError, OverflowError):
        return NO_NUMBER
    return NO_NUMBER if math.isnan(value) else value


def truncation_in(cell: Any) -> float:
    """Return whether a completion was truncated, by a flag or a stop reason; NaN if empty.

    The id of a token is neither.
    """
    cell = cell[0] if isinstance(cell, list) and len(cell) == 1 else cell
    cell = cell.get("type") or cell.get("reason") if isinstance(cell, dict) else cell
    if cell is None or cell == "":
        return math.nan
    if isinstance(cell, str) and cell.strip().lower() not in TRUTHS:
        return float(bool(AT_LIMIT.search(cell)))
    return float(number_in(cell) == 1)


def asked_in(cell: Any) -> list[Any]:
    """Return the messages of a chat up to the user's last one, which are its prompt; [] for anything else."""
    messages = cell if isinstance(cell, list) and all(isinstance(each, dict) for each in cell) else []
    return messages[: max((n for n, each in enumerate(messages, 1) if each.get("role") == "user"), default=0)]


def may_be_number(cell: Any) -> bool:
    """Return whether a cell is a number, a verdict, NaN or empty."""
    return number_in(cell) != NO_NUMBER or cell != cell


@lru_cache(typed=True)  # True, 1 and 1.0 are equal, and differ as texts
def is_evaluation(column: str, cell: Any) -> bool | None:
    """Return whether a row is of an evaluation, by its cell in a ``column`` of splits; None if the cell does not tell.

    The column may be a flag, such as ``validate``, or ``is_train``, of which the other value is that of evaluations.
    """
    text = str(cell).lower()
    if found := SPLIT.search(text):
        return found[1] is None
    flag, value = SPLIT.search(column.lower()), number_in(text)
    if value in (0.0, 1.0) and (flag or text in TRUTHS):
        return (value == 1) != bool(flag and flag[1])
    return None
