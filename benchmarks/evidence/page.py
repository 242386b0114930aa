"""Writes ``docs/evidence.md`` and its details from the committed values, and those from what was measured here."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion.runs.whole_files import write_whole
from benchmarks.common import ROOT, table
from benchmarks.evidence import age
from benchmarks.evidence.cell import Cell, kept
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict
from benchmarks.evidence.registry import CHAPTERS, MODULES, Chapter, cells_by_module, claims_of

PAGE = ROOT / "docs" / "evidence.md"
DETAILS = ROOT / "docs" / "evidence"
OPEN = "not measured"
FACTS = ("processor", "python", "numpy", "torch", "date", "commit", "cpu_seconds", "seeds")
"""What is committed of the facts about a measurement."""
Judged = list[tuple[Claim, Finding | None]]
MEASURED = Path(__file__).parent / "measured"
"""The values that the page is written from: a file a module."""
DIGITS = 5
"""Significant digits of a committed value."""
HEAD = """\
# What is true: the papers' claims, checked

`make reproduce` measures everything on this page and writes it. It keeps what is measured, so it goes on where it was
stopped. Each claim has the paper's figure beside ours. A verdict follows from the figures by a rule in the code under
[`benchmarks/evidence`](../benchmarks/evidence), so another run may change it.

- **holds**: our figures agree with the claim, beside its control.
- **holds under conditions**: they agree in some settings. The note says in which.
- **does not hold**: they contradict the claim in our settings.
- **cannot be told**: the interval has room for both.

Our settings are smaller than the papers'. The *lab* is a policy of 200,640 parameters on chains of digit arithmetic,
whose success probabilities are known exactly ([results.md](results.md)). The *recorded run* is a GRPO run of
Qwen2.5-Math-1.5B. *SmolLM2* is SmolLM2-135M-Instruct. A claim about large models that does not hold here may hold
there; the details of each claim say what differs. Intervals are 95%, after ± or in brackets. Differences are paired by
seed.
"""


def write() -> None:
    """Commit what was measured here to ``measured/`` and write the pages from all that is there."""
    for module, cells in cells_by_module().items():
        _keep(module, cells)
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{PAGE} is written")


def pages() -> dict[Path, str]:
    """Return the text of every page, from committed values: one with all verdicts, and one for each chapter."""
    found: dict[Path, str] = {}
    judged_of: dict[str, Judged] = {}
    tables: list[str] = []
    names = [name for cells in cells_by_module().values() for name in cells]
    measured = {name: each["values"] for module in MODULES for name, each in committed(module).items()}
    for chapter in CHAPTERS:
        claims = [claim for module in chapter.modules for claim in claims_of(module)]
        judged = [(claim, _judged(claim, names, measured)) for claim in claims]
        if judged:
            judged_of[chapter.title] = judged
            tables += [f"## {chapter.title}\n", *_plain(_summary(chapter, judged)), ""]
            found[DETAILS / f"{chapter.name}.md"] = _details(chapter, judged)
    return {PAGE: "\n".join([HEAD, *_plain(_totals(judged_of)), "", *tables, _origin()])} | found


def committed(module: str) -> dict[str, Any]:
    """Return the committed file of a module: by cell its ``values``, ``facts`` and ``key``. Empty if there is none."""
    path = MEASURED / f"{module}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _keep(module: str, cells: Mapping[str, Cell]) -> None:
    """Put what was measured here, on a commit without changes, beside what was committed before."""
    before = committed(module)
    here = {name: found for name, cell in cells.items() if (found := kept(name, cell)) and is_of_a_commit(found)}
    content = {name: _committed(here.get(name, before.get(name))) for name in cells if name in here | before}
    if content:
        _write(module, content)


def _write(module: str, content: Mapping[str, Any]) -> None:
    MEASURED.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in content.items())
    write_whole(MEASURED / f"{module}.json", f"{{\n{lines}\n}}\n")


def is_of_a_commit(value: Mapping[str, Any]) -> bool:
    """Return whether a value was measured by the code of a commit, without changes to its tree."""
    return re.fullmatch(r"[0-9a-f]{7,}", value["facts"]["commit"]) is not None


def find_ages() -> None:
    """Write ``older.json``, and the keys of committed values at their commits."""
    cells = {name: cell for own in cells_by_module().values() for name, cell in own.items()}
    by_module = {module: committed(module) for module in MODULES}
    keys = age.find({name: each for own in by_module.values() for name, each in own.items()}, cells)
    for module, values in by_module.items():
        if values:
            _write(module, {name: {**each, "key": keys[name]} for name, each in values.items()})


def _committed(each: dict[str, Any]) -> dict[str, Any]:
    return _rounded({**each, "facts": {key: each["facts"][key] for key in FACTS if key in each["facts"]}})


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _judged(claim: Claim, names: Sequence[str], measured: Mapping[str, Values]) -> Finding | None:
    """Return the finding, or None if one of the cells that the claim reads, of all ``names``, is not measured."""
    needed = claim.needs(names)
    return claim.judge({name: measured[name] for name in needed}) if measured.keys() >= set(needed) else None


def _verdict(finding: Finding | None) -> str:
    return OPEN if finding is None else str(finding.verdict)


def _totals(judged_of: Mapping[str, Judged]) -> list[list[str]]:
    """Return the table with the number of claims by chapter and verdict, its head first and the sums last."""
    counts = {title: Counter(_verdict(finding) for _, finding in judged) for title, judged in judged_of.items()}
    counts["all"] = sum(counts.values(), Counter[str]())
    verdicts = [str(verdict) for verdict in (*Verdict, OPEN) if verdict in counts["all"]]
    rows = [[title, str(own.total()), *(str(own[each]) for each in verdicts)] for title, own in counts.items()]
    return [["", "claims", *verdicts], *rows]


def _summary(chapter: Chapter, judged: Judged) -> list[list[str]]:
    """Return the table of a chapter, its head first. Each number leads to the details."""
    rows = [["", "where", "claim", "paper", "ours", "verdict"]]
    for number, (claim, finding) in enumerate(judged, start=1):
        link = f"[{number}](evidence/{chapter.name}.md#{chapter.name}-{number})"
        ours = "-" if finding is None else finding.ours
        rows.append([link, claim.where, claim.claim, claim.figure, ours, f"**{_verdict(finding)}**"])
    return rows


def _details(chapter: Chapter, judged: Judged) -> str:
    """Return the page of a chapter. An anchor of its own keeps links to a claim when its heading changes."""
    lines = [f"# {chapter.title}: the claims in detail", "", f"[All verdicts](../{PAGE.name}).", ""]
    for number, (claim, finding) in enumerate(judged, start=1):
        lines += [f'<a id="{chapter.name}-{number}"></a>', "", f"## {number}. {claim.where}", ""]
        lines += [f"{claim.claim} **{_verdict(finding)}**", ""]
        lines += [f"*The paper's figure:* {claim.figure}", "", f"*Our setting:* {claim.setting}", ""]
        if finding is not None:
            lines += [f"*Found:* {finding.ours}. {finding.why}".rstrip(), ""]
            lines += [table(finding.columns, finding.rows), ""] if finding.rows else []
    return "\n".join(lines)


def _plain(rows: list[list[str]]) -> list[str]:
    """Return a Markdown table without padding, because one long sentence would make every line as long."""
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def _origin() -> str:
    """Return the chapter that says by what machine and commit each module was measured."""
    rows, hours = [], 0.0
    for module in MODULES:
        found = [each["facts"] for each in committed(module).values()]
        if found:
            own = [sorted({str(facts[key]) for facts in found}) for key in ("processor", "date", "commit")]
            seeds = sorted({seed for facts in found for seed in facts["seeds"]})
            minutes = sum(facts["cpu_seconds"] for facts in found) / 60
            hours += minutes / 60
            rows.append([module, *(", ".join(each) for each in own), len(found), f"{minutes:.1f}", _range(seeds)])
    columns = ["module", "processor", "date", "commit", "cells", "CPU minutes", "seeds"]
    whole = f"All cells together take {hours:.1f} hours of one core, so about {hours / 2:.1f} hours with two processes."
    return "\n".join(["## Where the figures are from", "", whole, "", table(columns, rows), ""]) if rows else ""


def _range(seeds: list[int]) -> str:
    whole = seeds == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else " ".join(map(str, seeds))
