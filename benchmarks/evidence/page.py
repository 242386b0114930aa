"""Writes ``docs/evidence.md`` from the committed values, and the committed values from what was measured here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion.runs.whole_files import write_whole
from benchmarks.common import ROOT, table
from benchmarks.evidence.cell import Cell, kept
from benchmarks.evidence.claim import Claim, Finding, Values, Verdict
from benchmarks.evidence.registry import PAPERS, cells_by_module, claims_of

PAGE = ROOT / "docs" / "evidence.md"
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
there; the line "Here" says what differs. Intervals are 95%, after ± or in brackets. Differences are paired by seed.
"""


def write() -> None:
    """Commit what was measured here to ``measured/`` and write the page from all that is there."""
    for module, cells in cells_by_module().items():
        _keep(module, cells)
    PAGE.write_text(text(), encoding="utf-8")
    print(f"{PAGE} is written")


def text() -> str:
    """Return the page, from the committed values alone."""
    chapters, verdicts = [], Counter[str]()
    for paper, modules in PAPERS.items():
        found = [(claim, _judged(claim)) for module in modules for claim in claims_of(module)]
        if found:
            verdicts.update(finding.verdict if finding else "not measured" for _, finding in found)
            chapters.append(_chapter(paper, found))
    summary = ", ".join(f"{count} {verdict}" for verdict in (*Verdict, "not measured") if (count := verdicts[verdict]))
    chapters.append(_origin())
    return "\n".join([HEAD, f"Of {verdicts.total()} claims: {summary}.\n", *chapters])


def committed(module: str) -> dict[str, Any]:
    """Return the committed file of a module: by cell its ``values``, ``facts`` and ``key``. Empty if there is none."""
    path = MEASURED / f"{module}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _keep(module: str, cells: Mapping[str, Cell]) -> None:
    """Put what was measured here beside what was committed before, and drop cells that are no more."""
    before = committed(module)
    found = {name: kept(name, cell) or before.get(name) for name, cell in cells.items()}
    content = {name: _rounded(each) for name, each in found.items() if each is not None}
    if content:
        MEASURED.mkdir(exist_ok=True)
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in content.items())
        write_whole(MEASURED / f"{module}.json", f"{{\n{lines}\n}}\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _judged(claim: Claim) -> Finding | None:
    """Return the finding, or None if one of its cells is not measured."""
    modules = cells_by_module()
    names = claim.needs([name for cells in modules.values() for name in cells])
    found = {module: committed(module) for module in {name.split(".")[0] for name in names}}
    measured: dict[str, Values] = {
        name: found[module][name]["values"] for name in names if name in found[module := name.split(".")[0]]
    }
    return claim.judge(measured) if len(measured) == len(names) else None


def _chapter(paper: str, found: list[tuple[Claim, Finding | None]]) -> str:
    columns = ["where", "claim", "paper", "ours", "verdict"]
    rows = [
        [each.where, each.claim, each.figure, "-", "not measured"]
        if finding is None
        else [each.where, each.claim, each.figure, finding.ours, f"**{finding.verdict}**"]
        for each, finding in found
    ]
    lines = [f"## {paper}", "", *_plain(columns, rows), ""]
    for each, finding in found:
        lines += [f"### {each.where}", "", f"*Claim:* {each.claim}", "", f"*Here:* {each.setting}", ""]
        lines += [f"*Found:* {finding.ours}. {finding.why}".rstrip(), ""] if finding else []
        lines += [table(finding.columns, finding.rows), ""] if finding and finding.rows else []
    return "\n".join(lines)


def _plain(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Return a Markdown table without padding, because one long sentence would make every line as long."""
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


def _origin() -> str:
    """Return the chapter that says by what machine and commit each module was measured."""
    rows = []
    for module in cells_by_module():
        found = [each["facts"] for each in committed(module).values()]
        if found:
            own = [sorted({str(facts[key]) for facts in found}) for key in ("processor", "date", "commit")]
            seeds = sorted({seed for facts in found for seed in facts["seeds"]})
            minutes = sum(facts["cpu_seconds"] for facts in found) / 60
            rows.append([module, *(", ".join(each) for each in own), len(found), f"{minutes:.1f}", _range(seeds)])
    columns = ["module", "processor", "date", "commit", "cells", "CPU minutes", "seeds"]
    return "\n".join(["## Where the figures are from", "", table(columns, rows), ""]) if rows else ""


def _range(seeds: list[int]) -> str:
    whole = seeds == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else " ".join(map(str, seeds))
