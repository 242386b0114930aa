"""Find out what each path is, and read it: a rollout log, a lab study, the output of TRL, or a vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from apportion.records import RunRecord, open_run
from apportion.report.profile import Replayer, RunProfile, profile_of
from apportion.report.study import is_study, study_profiles
from apportion.report.votes import VoteProfile, is_vote, vote_profile
from apportion.untrusted import one_line

Opener = Callable[[Path], RunRecord]
"""What opens a recorded run, as ``open_run``."""

LOG_INSIDE = "rollouts"
"""The folder of the rollout log in the output of a run."""

ANSWERS_OF_VOTE = "answers.jsonl"
MOST_RUNS = 16
"""Runs that are shown side by side."""

NAME_LETTERS = 40


def read_sources(
    paths: Sequence[Path], advice: bool = False, replayed: Replayer | None = None, opened: Opener = open_run
) -> list[RunProfile | VoteProfile]:
    """Return a profile of each run and vote at ``paths``. Their names differ.

    ``advice`` adds what would have helped recorded runs, which takes seconds for a long run. ``replayed`` replays
    rules along them. ``opened`` opens a recorded run.

    Raises ValueError if a path holds no run, or a damaged one, or if there are more than 16 runs, and OSError.
    """
    found: list[RunProfile | VoteProfile] = []
    for path in paths:
        answers = path / ANSWERS_OF_VOTE if path.is_dir() else path
        if not (path.exists() or is_vote(path)):
            raise ValueError(f"a run must be a file or a folder that exists, got {path}; check the path")
        name = _name(path)
        if path.is_dir() and is_study(path):
            head = f"{name}: " if len(paths) > 1 else ""
            found += [replace(each, name=f"{head}{each.name}") for each in study_profiles(path)]
        elif is_vote(answers):
            found.append(vote_profile(answers, name if path.is_dir() else _name(answers)))
        else:
            record = opened(path / LOG_INSIDE if (path / LOG_INSIDE).is_dir() else path)
            if not len(record.step):
                raise ValueError(f"a run must have groups to be shown, got {path} without any; wait for its first step")
            found.append(profile_of(record, name, advice, replayed))
    if len(found) > MOST_RUNS:
        raise ValueError(f"at most {MOST_RUNS} runs are shown side by side, got {len(found)}; name fewer")
    return _with_distinct_names(found)


def _name(path: Path) -> str:
    whole = path.resolve()
    if whole.name == LOG_INSIDE:
        whole = whole.parent
    stem = whole.name if whole.is_dir() else whole.name.partition(".")[0]
    return one_line(stem)[:NAME_LETTERS] or "run"


def _with_distinct_names(found: list[RunProfile | VoteProfile]) -> list[RunProfile | VoteProfile]:
    names, seen = Counter(each.name for each in found), Counter[str]()
    named: list[RunProfile | VoteProfile] = []
    for each in found:
        seen[each.name] += 1
        named.append(replace(each, name=f"{each.name} ({seen[each.name]})") if names[each.name] > 1 else each)
    return named
