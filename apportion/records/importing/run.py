"""Import a run that another tool recorded: find the files, detect the format, read the rows, report what was read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from apportion.records.doubts import doubts_of, gold_answers, two_valued
from apportion.records.importing.assembly import Assembled, RunAssembly
from apportion.records.importing.blocks import Unsure
from apportion.records.importing.files import files_of
from apportion.records.importing.layout import NAMES, Layout, detect, layout_of, weights_of
from apportion.records.importing.prime_rl import LAYOUT, step_of
from apportion.records.importing.source import HEAD, LATER_HEAD, Source
from apportion.records.importing.trl import repeats
from apportion.records.importing.verl import with_groups
from apportion.records.importing.visits import read_visits
from apportion.records.rollout_log import RecordError
from apportion.records.run_record import RunRecord
from apportion.rows import SUFFIXES, kind_of, reading
from apportion.types import Floats
from apportion.untrusted import shown

NO_STEP = "no column is a step"
TOTAL, LEAST_LIKENESS = "the sum", 0.9
"""A sum of rewards, and the least correlation of advantages with those of the reward that trained."""
MOST_LISTED = 12
"""Columns that were not read which are named."""


@dataclass(frozen=True)
class ImportSummary:
    """What was read, and what was left out.

    Args:
        format: what the format is called.
        files: files that were read.
        rows: rows in them, without repeated ones.
        groups: groups of the run.
        prompts: prompts of the run.
        rollouts: rollouts of the run.
        without_reward: rollouts without a reward.
        repeated: rows that were left out because TRL wrote them again at a later step.
        ignored: columns that nothing read.
        left: files of the folder that were not read.
    """

    format: str
    files: int
    rows: int
    groups: int
    prompts: int
    rollouts: int
    without_reward: int
    repeated: int
    ignored: tuple[str, ...]
    left: tuple[str, ...]


def import_run(
    paths: Sequence[Path],
    format: str | None = None,
    rewards: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> tuple[RunRecord, ImportSummary]:
    """Return the run in the files or folders at ``paths``, and what was read.

    ``format`` is a key of ``NAMES`` and is detected if it is None. ``rewards`` are columns, each NAME or NAME=WEIGHT,
    whose weighted sum is the reward. ``columns`` are columns of another name, by what they say: ``{"reward":
    "score"}``, and "" for one that must not be read. ``RunRecord.doubts`` says what may be read otherwise.

    Raises RecordError, which names the file and the line, for what cannot be read.
    """
    if format is not None and format not in NAMES:
        raise RecordError(f"format must be one of {', '.join(NAMES)}, got {shown(format)}; correct it")
    if not paths:
        raise RecordError("a run must have a file, got none; name a file or a folder")
    renamed, weights = dict(columns or {}), weights_of(rewards)
    files, left = files_of(paths)
    name = paths[0].resolve().name.partition(".")[0] or "run"
    assembly, chosen, repeated = RunAssembly(weights), format, 0
    ignored: dict[str, None] = {}
    lists: dict[str, int] = {}
    layouts: list[Layout] = []
    stepped = False
    for place, path in enumerate(files):
        with reading(path, RecordError):
            source = Source.of(path, renamed, LATER_HEAD if place else HEAD)
            own = format or detect(path.name.lower(), source.head, source.columns, renamed)
            if (own != chosen and place) or kind_of(path) != kind_of(files[0]):
                raise RecordError(
                    f"a run must have one format, got {own} in {path} and {chosen} in {files[0]}; import them apart"
                )
            chosen = own
            if own == "visits":
                if len(files) > 1:
                    raise RecordError(f"group counts per visit must be one file, got {len(files)}; give one")
                if weights or renamed:
                    raise RecordError("group counts have fixed columns, got --reward or --column; leave it out")
                record = read_visits(path, name)
                unread = [
                    key for key in source.columns if key not in ("id", "prompt") and not key.startswith("correct_of_")
                ]
                return record, _summary(record, own, files, left, len(record.ids), 0, unread)
            if own == "trl" and place and (again := repeats(path, files[place - 1])):
                repeated += again
                continue
            _check_kind(own, path)
            if own == "prime-rl" and (weights or renamed):
                raise RecordError("prime-rl's rollouts have fixed columns, got --reward or --column; leave it out")
            while True:
                layout = (
                    LAYOUT
                    if own == "prime-rl"
                    else layout_of(str(path), own, source.columns, source.numeric, weights, renamed)
                )
                mark = assembly.mark()
                try:
                    for block in source.blocks(layout):
                        assembly.add(with_groups(block) if own == "verl" and "group" not in renamed else block)
                    break
                except Unsure as unsure:
                    assembly.forget(mark)
                    source = source.without_haste(unsure.columns)
            layouts.append(layout)
            has_step = step_of(path) is not None or "step" in source.columns
            stepped |= has_step if own == "prime-rl" else "step" in layout.columns
            if own != "prime-rl":
                ignored |= dict.fromkeys(layout.ignored(source.columns))
                lists |= source.list_lengths(ignored)
    if not assembly.rows:
        raise RecordError(f"a run must have at least one row, got none in {files[0]}; check the file")
    rows = assembly.rows
    record = _decided(assembly.record(name, NAMES[chosen or ""]), layouts[0], stepped, ignored, lists)
    if np.isnan(record.reward).all() and len(record.reward):
        raise RecordError(f"a run must have rewards, got none in {rows:,} rows of {files[0]}; name the column")
    return record, _summary(record, chosen or "", files, left, rows, repeated, list(ignored))


def _decided(
    found: Assembled, layout: Layout, stepped: bool, ignored: Collection[str], lists: Mapping[str, int]
) -> RunRecord:
    """Return the run with its reward chosen, and with all that may be otherwise."""
    record, others, doubts = found.record, dict(found.others), []
    called = " + ".join(layout.rewards) or layout.columns.get("reward") or layout.columns.get("correct", "reward")
    if layout.made_of_others:
        called, values, said = chosen_reward(record, others, found.advantage)
        record, doubts = replace(record, reward=values), [said] if said else []
        others.pop(called, None)
    explicit = {"reward", "correct"} & layout.given or layout.rewards
    if not explicit and (pair := two_valued(record.reward)) is not None:
        low, high = pair
        record = replace(record, reward=np.where(np.isnan(record.reward), np.nan, record.reward == high))
        doubts.append(
            f"{called} has the values {low:g} and {high:g}, which are read as wrong and right; --reward {called} keeps "
            "them"
        )
    if not stepped:
        doubts.insert(0, f"{NO_STEP}: all rows are one step; --column step=COLUMN names one")
    doubts += doubts_of(record, other_rewards=others, reward=called, lists=lists) + found.doubts
    if layout.renamed and layout.format != "prime-rl":
        doubts.append(f"read as: {', '.join(layout.renamed)}")
    if ignored:
        listed = list(ignored)
        more = f" and {len(listed) - MOST_LISTED} more" * (len(listed) > MOST_LISTED)
        doubts.append(f"columns not read: {', '.join(listed[:MOST_LISTED])}{more}")
    if "answer" not in layout.given and gold_answers(record):
        record = replace(record, answer=np.full(len(record.answer), -1))
    return replace(record, components=found.others, doubts=tuple(doubts))


def chosen_reward(record: RunRecord, candidates: Mapping[str, Floats], advantage: Floats) -> tuple[str, Floats, str]:
    """Return what the reward is made of, its values [R], and what to say of that.

    It is the one column that differs within groups. If several do, it is that of them, or the sum of all, whose
    deviations from the mean of the group are the recorded ``advantage`` [R] up to a scale. Raises RecordError if none
    is.
    """
    varying = {name: values for name, values in candidates.items() if replace(record, reward=values).mixed.any()}
    if len(varying) <= 1:
        name = next(iter(varying or candidates))
        constant = [other for other in candidates if other != name]
        said = f"the reward is {name}; equal in every group: {', '.join(constant)}" if constant else ""
        return name, candidates[name], said
    values = np.stack(list(varying.values()))
    total = np.where(np.isnan(values).all(0), np.nan, np.nansum(values, axis=0))
    fits = {
        name: _likeness(replace(record, reward=each), advantage) for name, each in {**varying, TOTAL: total}.items()
    }
    best = max(fits, key=lambda name: fits[name])
    if not fits[best] >= LEAST_LIKENESS:
        raise RecordError(
            f"several columns may be the reward, and the advantages are those of none, got {', '.join(varying)}; name "
            "one by --reward NAME, or give a weight to each by --reward NAME=WEIGHT, as TRL's reward_weights"
        )
    names = " + ".join(varying) if best == TOTAL else best
    said = f"the reward is {names}, whose advantages were recorded; --reward NAME=WEIGHT for each says otherwise"
    return names, total if best == TOTAL else varying[best], said


def _likeness(record: RunRecord, advantage: Floats) -> float:
    """Return the correlation of ``advantage`` [R] with the rewards, each less its group's mean and over its spread."""
    own, its = (_standard(replace(record, reward=values)) for values in (record.reward, advantage))
    known = np.isfinite(own) & np.isfinite(its)
    return float(np.corrcoef(own[known], its[known])[0, 1]) if known.any() else 0.0


def _standard(record: RunRecord) -> Floats:
    of = np.repeat(np.arange(len(record.step)), np.diff(record.first))
    spread = np.where(record.mixed, np.sqrt(record.variances), np.nan)[of]
    return np.asarray((record.reward - record.shares[of]) / spread)


def _check_kind(format: str, path: Path) -> None:
    """Raise RecordError for a format in a kind of file that it never has."""
    kinds = {"trl": (".parquet",), "prime-rl": (".jsonl", ".ndjson")}
    if kind_of(path) not in kinds.get(format, SUFFIXES):
        raise RecordError(f"{NAMES[format]} must end in {kinds[format][0]}, got {shown(path.name)}; leave out --format")


def _summary(
    record: RunRecord,
    format: str,
    files: Sequence[Path],
    left: Sequence[Path],
    rows: int,
    repeated: int,
    ignored: Sequence[str],
) -> ImportSummary:
    return ImportSummary(
        format=NAMES[format],
        files=len(files),
        rows=rows,
        groups=len(record.step),
        prompts=len(record.ids),
        rollouts=len(record.reward),
        without_reward=int(np.isnan(record.reward).sum()),
        repeated=repeated,
        ignored=tuple(ignored),
        left=tuple(str(path) for path in left),
    )
