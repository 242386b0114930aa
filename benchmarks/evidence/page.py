"""Writes the pages from the committed values: ``docs/evidence.md``, and the details, which ``make docs`` makes.

A hook of the site asks for ``details``. So a page needs the values alone, and none of the code that measures.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.common import ROOT, table
from benchmarks.evidence.cell import Values, kept, key_of, rounded, write_lines
from benchmarks.evidence.measures import effects
from benchmarks.evidence.registry import CHAPTERS, MODULES, cells_by_module, claims
from benchmarks.evidence.rules import ENOUGH_SEEDS, Effect, Kind, Verdict, has_few_seeds, verdict

PAGE = ROOT / "docs" / "evidence.md"
FACTS = ("processor", "python", "numpy", "torch", "date", "commit", "cpu_seconds", "seeds")
"""What is committed of the facts about a measurement."""
MEASURED = Path(__file__).parent / "measured"
"""The values that the pages are written from: a file a module."""
OLDER: Mapping[str, str] = {}
"""Values that are not of today's code, and why. A test compares. Who measures one again takes it out."""
DIGITS = 5
"""Significant digits of a committed value."""
SHORT = {Kind.PAPER: "", Kind.THEOREM: " *Theorem.*"}
"""What follows a claim that the overview tells. It links the others."""
FEW = 5
"""Figures that fit a line."""
TELLS = {1: "confirms", -1: "refutes", 0: "too weak"}
HEAD = """\
# What is true: the papers' claims, checked

{summary}

{totals}

A theorem is what a paper proves or defines. A reading is our interpretation of one of its sentences. Our own are claims
or controls that no paper has. *Others* below are readings and our own. The numbers lead to the details of each claim.

[Our settings](results.md) are smaller than the papers'. A claim about large models that does not hold here may hold
there. *Fast* marks claims that were measured in the lab's fast regime: a learning rate of .001 or more, at which
success rates move within a few visits and single runs collapse.

`make docs` makes the details: the figures of each setting with their intervals, and the command that measures each
value again.

## Rules

[Rules](../benchmarks/evidence/rules.py) make the verdicts from committed values, and the claims are rows of
[claims.toml](../benchmarks/evidence/claims.toml). Each setting gives a figure with its 95% interval, and a claim is a
bound: above 0 for "better", above a small loss for "no worse". A setting *confirms* if its whole interval is on the
claim's side of the bound. It *refutes* if the interval is on the other side, or has no gain that matters although the
claim is "better": 2 points of success, 3 of mean@16. It is *too weak* otherwise. With several settings all intervals
are widened for their number.

- **holds**: all settings confirm. **does not hold**: all refute.
- **holds in part**: some confirm, the others are too weak. **fails in part**: some refute, the others are too weak.
- **holds under conditions**: some confirm and some refute.
- **cannot be told**: all are too weak; or the claim is central to its paper, or to us, and has fewer than ten seeds.
- One counterexample refutes a theorem; 59 instances without one confirm it. A test that finds nothing confirms nothing.

Who wrote the rules, and later the gain that matters, knew the values. So only later values test the rules.

## Measure again

`make reproduce` measures everything in these pieces, on two cores at a time. It goes on where it was stopped, and
`make reproduce PIECE=hora_hits` measures one.

{pieces}

A value is of today's code if what it depends on still decides and computes the same: a
[canary](../benchmarks/evidence/canaries.py) for each piece runs its rules and formulas on small inputs, and a test
compares the figures with those that are committed. What is not measured: VIP with tools (Table 2), because our corpus
is a toy and three seeds could not tell; VIP with graded rewards, for which it has no experiment; and SPO's claims.
"""


@dataclass(frozen=True)
class Finding:
    """What a claim's values say.

    Args:
        effects: the settings that the verdict follows from.
        beside: controls and further figures.
        verdict: their verdict.
        cells: the names of the cells that were read.
    """

    effects: Sequence[Effect]
    beside: Sequence[Effect]
    verdict: Verdict
    cells: Sequence[str]

    @property
    def ours(self):
        """Our figures in one line, without those beside; with many settings how many tell what."""
        if len(self.effects) <= FEW:
            return "; ".join(map(str, self.effects))
        told = Counter(each.told(len(self.effects)) for each in self.effects)
        said = (f"{told[side]} {name}" for side, name in ((1, "confirm"), (-1, "refute"), (0, "too weak")))
        return f"of {len(self.effects)} settings {', '.join(said)}"


class _Read(dict[str, Values]):
    """Values by cell, which note what was read."""

    def __init__(self, values):
        super().__init__(values)
        self.names: dict[str, None] = {}

    def __getitem__(self, name):
        self.names[name] = None
        return super().__getitem__(name)


def judged(claim, values):
    """Return what ``values`` say about a claim. Raises KeyError if a cell that it needs was not measured."""
    read = _Read(values)
    tells, beside = ([each for row in rows for each in effects(read, row)] for rows in (claim.tells, claim.beside))
    return Finding(tells, beside, verdict(tells, claim.central), list(read.names))


@cache
def findings():
    """Return every claim and its finding, by its id."""
    values = {name: each["values"] for name, each in all_committed().items()}
    return {claim.id: (claim, judged(claim, values)) for claim in claims()}


def write():
    """Commit what was measured here to ``measured/`` and write the page from all that is there."""
    for module, cells in cells_by_module().items():
        _keep(module, cells)
    findings.cache_clear()
    PAGE.write_text(overview(), encoding="utf-8")
    print(f"{PAGE} is written")


def overview():
    """Return the page with all claims and their verdicts."""
    totals, pieces = ("\n".join(_plain(rows)) for rows in (_totals(), _pieces()))
    parts = [HEAD.format(summary=_summary(), totals=totals, pieces=pieces)]
    for chapter, title in CHAPTERS.items():
        parts += [f"## {title}\n"]
        by_verdict = {each: [claim for claim, found in _of(chapter) if found.verdict is each] for each in Verdict}
        for each, found in by_verdict.items():
            told = [claim for claim in found if claim.kind in SHORT]
            lines = [_told(claim, each) for claim in told]
            if others := ", ".join(_link(claim) for claim in found if claim not in told):
                lines.append(_item(f"Others: {others}."))
            parts += [f"**{each}**\n", *lines, ""] if found else []
    return "\n".join(parts)


def _told(claim, verdict):
    fast, why = " *Fast.*" * claim.is_fast, f" {claim.open}" * (verdict is Verdict.OPEN)
    return _item(f"{_link(claim)} {claim.claim}{SHORT[claim.kind]}{fast}{why}")


def _item(text):
    """Return an item of a list in lines of at most 120 characters."""
    return textwrap.fill(f"- {text}", 120, subsequent_indent="  ", break_on_hyphens=False)


def _link(claim):
    return f"[{claim.id.rpartition('-')[2]}](evidence/{claim.chapter}.md#{claim.id})"


def details():
    """Return the page of each chapter by its name. An anchor of its own keeps links to a claim."""
    return {chapter: _details(chapter, title) for chapter, title in CHAPTERS.items()}


def all_committed():
    """Return every committed value by its cell."""
    return {name: each for module in MODULES for name, each in committed(module).items()}


def committed(module):
    """Return the committed file of a module: by cell its ``values``, ``facts`` and ``key``. Empty if there is none."""
    path = MEASURED / f"{module}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def is_of_a_commit(value):
    """Return whether a value was measured by the code of a commit, without changes to its tree."""
    return re.fullmatch(r"[0-9a-f]{7,}", value["facts"]["commit"]) is not None


def is_current(name, value, cell):
    """Return whether a committed value is of the canary that is kept, of the arguments and of the seeds."""
    return value["key"] == key_of(name, cell)


def _of(chapter):
    return [each for each in findings().values() if each[0].chapter == chapter]


def _keep(module, cells):
    """Put what was measured here, on a commit without changes, beside what was committed before."""
    before = committed(module)
    here = {name: found for name, cell in cells.items() if (found := kept(name, cell)) and is_of_a_commit(found)}
    content = {name: _committed(here.get(name, before.get(name))) for name in cells if name in here | before}
    if content:
        _write(module, content)


def _write(module, content):
    MEASURED.mkdir(exist_ok=True)
    write_lines(MEASURED / f"{module}.json", content)


def _committed(each):
    return rounded({**each, "facts": {key: each["facts"][key] for key in FACTS if key in each["facts"]}}, DIGITS)


def _summary():
    """Return what the verdicts are worth, in a few sentences."""
    found = list(findings().values())
    central = [(claim.id, own) for claim, own in found if claim.central and claim.kind is Kind.PAPER]
    verdicts = Counter(own.verdict for _, own in central)
    told = [
        f"{each} ({', '.join(name for name, own in central if own.verdict is each)})"
        for each in Verdict
        if verdicts[each] and each is not Verdict.OPEN
    ]
    few = sum(has_few_seeds(own.effects) for _, own in central)
    measured = [own.verdict for claim, own in found if claim.kind is Kind.PAPER]
    open_ = measured.count(Verdict.OPEN)
    values = all_committed()
    hours = sum(each["facts"]["cpu_seconds"] for each in values.values()) / 3600
    return "\n".join(
        _item(text)
        for text in (
            f"**Of {len(central)} learning claims that a paper is about, {verdicts[Verdict.HOLDS]} hold outright.** "
            f"{verdicts[Verdict.OPEN]} cannot be told, {few} of them because they have fewer than {ENOUGH_SEEDS} seeds."
            + (f" By verdict: {'; '.join(told)}." if told else ""),
            f"Of {len(measured)} claims that a paper measured, {measured.count(Verdict.HOLDS)} hold, "
            f"{measured.count(Verdict.FAILS)} do not, and {open_} cannot be told, for reasons that are given: more "
            "seeds would hardly help. Theorems and identities are counted apart.",
            f"{len(values) - len(OLDER)} of {len(values)} values are of today's code{_older()}. All take {hours:.1f} "
            "hours of one core. The details name the commit and the processor of each.",
        )
    )


def _older():
    return "".join(f"; `{name}` is not, because {why}" for name, why in OLDER.items())


def _totals():
    """Return the number of claims by verdict and by whose they are, the head first and the sums last."""
    counts = [Counter(own.verdict for claim, own in findings().values() if claim.kind is kind) for kind in Kind]
    rows = [[str(each), *(str(own[each]) for own in counts)] for each in Verdict]
    return [["verdict", *(kind.value for kind in Kind)], *rows, ["all", *(str(own.total()) for own in counts)]]


def _pieces():
    """Return the pieces, with the number of their cells and the minutes that they took on one core."""
    rows = [["piece", "cells", "minutes of one core"]]
    for module in MODULES:
        seconds = [each["facts"]["cpu_seconds"] for each in committed(module).values()]
        rows.append([f"`{module}`", str(len(seconds)), f"{sum(seconds) / 60:.1f}"])
    return rows


def _details(chapter, title):
    lines = [f"# {title}: the claims in detail", "", f"[All verdicts and the rules](../{PAGE.name}).", ""]
    read: dict[str, None] = {}
    for claim, found in _of(chapter):
        read |= dict.fromkeys(found.cells)
        number = claim.id.rpartition("-")[2]
        lines += [f'<a id="{claim.id}"></a>', "", f"## {number}. {claim.place}", ""]
        lines += [f"{claim.claim} **{found.verdict}**", "", f"*Whose:* {claim.kind}{', central' * claim.central}."]
        lines += [f' *The sentence:* "{claim.quote}"'] if claim.quote else []
        lines += ["", f"*The paper's figure:* {claim.printed}", "", f"*Our setting:* {claim.setting}", ""]
        lines += [table(["setting", "figure, 95%", "the claim says", "it"], list(_rows(found))), ""]
        few = claim.central and has_few_seeds(found.effects)
        lines += [claim.open, ""] if claim.open else []
        lines += (
            [f"The claim is central and has fewer than {ENOUGH_SEEDS} seeds, so it is not told.", ""] if few else []
        )
        cells = f"The values of: {', '.join(f'`{name}`' for name in found.cells)}."
        lines += [cells if found.cells else "Computed from printed figures or a committed table.", ""]
    return "\n".join([*lines, "## Where the values are from", "", ORIGIN, "", _origin(read), ""])


ORIGIN = "`python -m benchmarks.evidence --only NAME --fresh` measures a value again. A commit with + had changes."


def _rows(found):
    settings = len(found.effects)
    for each in found.effects:
        yield [each.name, _figure(each), _bound(each), TELLS[each.told(settings)]]
    for each in found.beside:
        yield [each.name, _figure(each), "-", "beside"]


def _figure(each):
    text = str(each).removeprefix(each.name).strip()
    return text + (f", {each.seeds} seeds" if each.seeds else "")


def _bound(each):
    if each.decided is not None:
        return "a count or a test"
    bounds = {"above": each.above, "below": each.below, "a gain matters from": each.matters}
    return ", ".join(f"{name} {value:g}" for name, value in bounds.items() if value is not None)


def _origin(names):
    values, rows = all_committed(), []
    for name in names:
        facts = values[name]["facts"]
        seeds = " ".join(map(str, facts["seeds"]))
        rows.append([name, facts["commit"], facts["date"], facts["processor"], facts["cpu_seconds"], seeds])
    columns = ["cell", "commit", "date", "processor", "CPU s", "seeds"]
    return "\n".join(_plain([columns, *[[*map(str, row)] for row in rows]]))


def _plain(rows):
    """Return a Markdown table without padding, because one long sentence would make every line as long."""
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
