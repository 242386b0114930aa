"""Import a run that another tool recorded: find the files, detect the format, read the rows, report what was read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from apportion.records.doubts import SPOILT, doubts_of, gold_answers, parts_in_doubt, two_valued
from apportion.records.importing.assembly import Assembled, RunAssembly, weighted_sum
from apportion.records.importing.files import files_of, repeats, said_by_names
from apportion.records.importing.formats import detect
from apportion.records.importing.layout import Layout, layout_of, weights_of
from apportion.records.importing.names import MOST_OTHERS, NAMES, STEPS, TURNS, UNDERSTOOD, VERDICTS
from apportion.records.importing.source import HEAD, LATER_HEAD, LateColumns, Source
from apportion.records.rollout_log import ALWAYS, RecordError
from apportion.records.run_record import RunRecord
from apportion.rows import kind_of, reading
from apportion.types import Floats

VISITS = "group counts per visit"
NO_STEP = "no column is a step"
ONE_STEP = f"{NO_STEP}: all rows are one step; --column step=COLUMN names one"
NAMED_STEP = f"{NO_STEP}: the number in the name of a file or its folder is; --column step= reads one step"
MISFIT = 1e-6
"""Largest unexplained share of the squared deviations of a reward, given its recorded advantages."""
SLIGHT = 1e-5
"""Squared advantages of a group below this share of another group's are rounding errors."""
MOST_LISTED = 12
"""Most unread columns that are named."""


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
    paths: Sequence[Path], rewards: Sequence[str] = (), columns: Mapping[str, str] | None = None
) -> tuple[RunRecord, ImportSummary]:
    """Return the run in the files or folders at ``paths``, and what was read.

    ``rewards`` are columns, each NAME or NAME=WEIGHT, whose weighted sum is the reward. ``columns`` are columns of
    another name, by what they say: ``{"reward": "score"}``, and "" for one that must not be read. ``RunRecord.doubts``
    says what may be read otherwise.

    Raises RecordError, which names the file and the line, for what cannot be read.
    """
    if not paths:
        raise RecordError("a run must have a file, got none; name a file or a folder")
    renamed, weights = dict(columns or {}), weights_of(rewards)
    files, left = files_of(paths)
    name = paths[0].resolve().name.partition(".")[0] or "run"
    assembly, chosen, repeated = RunAssembly(), "", 0
    folded = visits = False
    named = said_by_names(files, renamed)
    said: dict[str, None] = {}
    ignored: dict[str, None] = {}
    lists: dict[str, int] = {}
    layouts: list[Layout] = []
    for place, path in enumerate(files):
        with reading(path, RecordError):
            source = Source.of(path, renamed, LATER_HEAD if place else HEAD)
            if not source.head:  # the file has only a torn row
                said |= source.said
                continue
            if path.name.startswith("step") and set(source.columns) >= ALWAYS:
                raise RecordError(f"{path} is of a rollout log, which needs no import; open the folder {path.parent}")
            own = detect(source, renamed)
            chosen = chosen or own
            if own != chosen or kind_of(path) != kind_of(files[0]):
                raise RecordError(
                    f"a run must have one format, got {own} in {path} and {chosen} in {files[0]}; import them apart"
                )
            if own == "trl" and place and (again := repeats(path, files[place - 1])):
                repeated += again
                continue
            while True:
                layout = layout_of(source, own, weights, renamed)
                try:
                    assembly.add(path, layout, source.read(), {role: values[place] for role, values in named.items()})
                    break
                except LateColumns as late:
                    source = replace(source, columns=[*source.columns, *late.columns])
            layouts.append(layout)
            folded |= source.folded
            visits |= own == "counts" and "visit" in source.columns
            ignored |= dict.fromkeys(each for each in source.columns if each not in layout.read | UNDERSTOOD)
            said |= source.said | dict.fromkeys(_other_steps(source, layout))
            lists |= source.list_lengths(layout.read)
    if not assembly.rows:
        why = "".join(f" ({each})" for each in said)
        raise RecordError(f"a run must have at least one row, got none{why} in {files[0]}; check the file")
    rows = assembly.rows
    chosen, group = (VISITS, "") if visits else (NAMES[chosen], renamed.get("group"))
    found = assembly.record(name, chosen, group)
    found.doubts.extend([*said, *(parts_in_doubt(found.record) if folded else ())])
    stepped = any("step" in each.columns for each in layouts)
    no_step = None if stepped else NAMED_STEP if "step" in named else ONE_STEP
    record = replace(_decided(found, layouts[0], no_step, ignored, lists), visits=visits)
    if np.isnan(record.reward).all():
        raise RecordError(f"a run must have rewards, got none in {rows:,} rows of {files[0]}; name the column")
    return record, ImportSummary(
        format=chosen,
        files=len(files),
        rows=rows,
        groups=len(record.step),
        prompts=len(record.ids),
        rollouts=len(record.reward),
        without_reward=int(np.isnan(record.reward).sum()),
        repeated=repeated,
        ignored=tuple(ignored),
        left=tuple(map(str, left)),
    )


def _other_steps(source: Source, layout: Layout) -> list[str]:
    """Return the doubt about further columns that may be the step, and differ from it in the first rows."""
    column = layout.columns.get("step")
    if column is None or "step" in layout.given or "turn" in layout.columns:
        return []
    return [
        f"{column} is the step, and {name} differs from it: --column step={name} reads that"
        for name in source.numeric
        if name.lower() in STEPS and any(row.get(name) != row.get(column) for row in source.head)
    ]


def _decided(
    found: Assembled, layout: Layout, no_step: str | None, ignored: Collection[str], lists: Mapping[str, int]
) -> RunRecord:
    """Return the run with its reward chosen, and with all doubts about it."""
    record, others, doubts = found.record, dict(found.record.components), []
    called = " + ".join(layout.rewards) or layout.columns.get("reward") or layout.columns.get("correct", "reward")
    if layout.made_of_others:
        called, values, said = chosen_reward(record, others, found.advantage)
        record, doubts = replace(record, reward=values), [said] if said else []
        others.pop(called, None)
    explicit = VERDICTS & layout.given or layout.rewards or "share" in layout.columns
    if not explicit and (pair := two_valued(record.reward)) is not None:
        low, high = pair
        record = replace(record, reward=np.where(np.isnan(record.reward), np.nan, record.reward == high))
        doubts.append(
            f"{called} has the values {low:g} and {high:g}, which are read as wrong and right; --reward {called} keeps "
            "them"
        )
    if no_step:
        doubts.insert(0, no_step)
    rivals = [] if explicit else [name for name in layout.others if name in others][:MOST_OTHERS]
    doubts += doubts_of(
        record,
        other_rewards={name: others[name] for name in rivals},
        reward=called,
        lists=lists,
        piece=found.piece,
    )
    doubts += found.doubts
    doubts += [
        f"{name} is not read: if a rollout has a row a turn, {SPOILT}; give one row a rollout"
        for name in ignored
        if name.lower() in TURNS
    ]
    if layout.renamed:
        doubts.append(f"read as: {', '.join(layout.renamed)}")
    if ignored:
        listed = list(ignored)
        more = f" and {len(listed) - MOST_LISTED} more" * (len(listed) > MOST_LISTED)
        doubts.append(f"columns not read: {', '.join(listed[:MOST_LISTED])}{more}")
    if "answer" not in layout.given and gold_answers(record):
        record = replace(record, answer=np.full(len(record.answer), -1))
    # doubts that change the figures come first
    first = [said for said in doubts if SPOILT in said or "in place of" in said]
    return replace(record, doubts=tuple(dict.fromkeys(first + doubts)))


def chosen_reward(record: RunRecord, candidates: Mapping[str, Floats], advantage: Floats) -> tuple[str, Floats, str]:
    """Return the parts of the reward, its values [R], and the doubts about it.

    It is the one column that differs within groups; a missing value counts as 0 there, as in TRL. If several do, it is
    their weighted sum whose deviations from the mean of the group are the recorded ``advantage`` [R], up to a scale of
    each group. If all advantages are 0 it is a column that never differs. Raises RecordError if none is.
    """
    filled = ((name, np.nan_to_num(values)) for name, values in candidates.items())
    varying = {name: candidates[name] for name, values in filled if replace(record, reward=values).mixed.any()}
    if (advantage == 0).all() and len(varying) < len(candidates):
        candidates, varying = {name: candidates[name] for name in candidates if name not in varying}, {}
    if len(varying) <= 1:
        name = next(iter(varying or candidates))
        constant = [other for other in candidates if other != name]
        said = f"the reward is {name}" if constant or "." in name else ""
        said += f"; equal in every group: {', '.join(constant)}" if constant else ""
        return name, candidates[name], said
    found = _weights(record, varying, advantage)
    if found is None:
        raise RecordError(
            "several columns may be the reward, and the advantages are those of no sum of them, got "
            f"{', '.join(varying)}; name one by --reward NAME, or give a weight to each by --reward NAME=WEIGHT, as "
            "TRL's reward_weights"
        )
    weights, spare = found
    used = {name: weight for name, weight in zip(varying, weights.tolist(), strict=True) if weight}
    best = " + ".join(name if weight == 1 else f"{weight:g} * {name}" for name, weight in used.items())
    said = f"the reward is {best}, whose advantages were recorded; --reward NAME=WEIGHT for each says otherwise"
    if spare:
        said += f"; sums of others within groups: {', '.join(spare)}, so other weights fit, too"
    return best, weighted_sum(used, varying), said


def _weights(record: RunRecord, columns: Mapping[str, Floats], advantage: Floats) -> tuple[Floats, list[str]] | None:
    """Return the weights [n] of ``columns`` in the reward, the largest being 1; None if no weights fit.

    Beside them are the columns whose deviations are sums of those of earlier ones. They have weight 0 in what is
    solved for: their weights are not unique, but the reward's deviations are.

    The deviations of the reward from the mean of a group are a multiple of the advantages, another one in each group.
    Weights of 0 and 1 are tried first, then those that leave the least unexplained, if only one such sum does. Groups
    of another size than most are left out: they may be several in one.
    """
    sizes, number = np.diff(record.first), len(columns)
    usual = int(np.bincount(sizes).argmax())
    part = replace(record, components={**columns, "": advantage}).of_groups(sizes == usual)
    values = np.stack(list(part.components.values())).reshape(number + 1, -1, usual)
    values = np.nan_to_num(values[:, np.isfinite(values[-1]).all(axis=1)])
    spread = values - values.mean(axis=2, keepdims=True)
    spread, wanted = spread[:-1], spread[-1]
    norm = (wanted**2).sum(axis=1)
    taught = norm > SLIGHT * norm.max(initial=0)
    factor = np.divide((spread * wanted).sum(axis=2), norm, out=np.zeros((number, len(norm))), where=taught)
    left = (spread - factor[..., None] * wanted).reshape(number, -1)
    whole, rest = (each @ each.T for each in (spread.reshape(number, -1), left))
    tried = [*np.eye(number), np.ones(number)]
    units = np.sqrt(np.diag(whole))
    own = _independent(whole)
    if units.all():
        misfits, solved = np.linalg.eigh((rest / np.outer(units, units))[np.ix_(own, own)])
        if len(own) == 1 or misfits[1] > 100 * MISFIT:
            found = np.zeros(number)
            found[own] = solved[:, 0] / units[own]
            found *= np.sign(found @ factor.sum(axis=1)) / np.abs(found).max()
            tried.append(np.round(found, 4))
    for weights in tried:
        if (
            weights @ rest @ weights <= MISFIT * (weights @ whole @ weights)
            and (weights @ factor > 0)[taught].all()
            and taught.any()
        ):
            return np.asarray(weights), [name for place, name in enumerate(columns) if place not in own]
    return None


def _independent(whole: Floats) -> list[int]:
    """Return the columns that are no weighted sum of earlier columns, given their products ``whole`` [n, n]."""
    own: list[int] = []
    for column, square in enumerate(np.diag(whole)):
        among = np.linalg.solve(whole[np.ix_(own, own)], whole[own, column])
        if square - whole[own, column] @ among > MISFIT * square:
            own.append(column)
    return own
