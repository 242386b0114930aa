"""Measure how often two different answers are taken for one, and one answer for two, under the equivalence "math".

Three sets: one kind of answer a line with a slot that different numbers fill; published answers in other spellings; and
the answers of Reasoning Gym by data set, if they are there, of which no two different ones are equal as written.

    python -m benchmarks.answer_pairs [--scores PATH]
"""

import gzip
import json
from collections import defaultdict
from itertools import combinations

from apportion.answers import MathVerify, extract
from benchmarks.common import ROOT, options, write
from benchmarks.recorded import VOTES
from tests.answers.test_extraction import FORMS

SCORES = VOTES.parents[1] / "rates" / "reasoning_gym_scores.jsonl.gz"
ANSWERS = ROOT / "tests" / "answers"
NUMBERS = ("2", "3", "4", "6")
MOST = 14
"""Different answers of a data set of Reasoning Gym that are compared in pairs."""
LONGEST = 300
FORMULAS = ("puzzle24",)
"""Data sets whose answers are formulas of one value, which mathematics takes for one, as it says."""


def slots(math):
    """Return the row of answers that differ in one number. Equal values, such as 9 over 3 and over 6, are few."""
    kinds = (ANSWERS / "formulas.txt").read_text(encoding="utf-8").splitlines()
    pairs = [pair for kind in kinds for pair in combinations([kind.replace("@", n) for n in NUMBERS], 2)]
    return ["one number differs", len(kinds), len(pairs), sum(math.same(*pair) for pair in pairs), "one"]


def stated(math):
    """Yield the row of published answers that completions state in different forms."""
    golds = (ANSWERS / "golds.txt").read_text(encoding="utf-8").splitlines()
    lost = sum(not math.same(extract(form.format(gold)) or "", gold) for form in FORMS for gold in golds)
    yield ["published answers, stated in prose", len(FORMS), len(FORMS) * len(golds), lost, "two"]


def foreign(math, path):
    """Yield the row of Reasoning Gym's answers, if they are at ``path``."""
    if not path.exists():
        return
    found = defaultdict(set)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row["dataset"] not in FORMULAS and len(str(row["expected"])) < LONGEST:
                found[row["dataset"]].add(str(row["expected"]).strip())
    pairs = [pair for each in found.values() for pair in combinations(sorted(each)[:MOST], 2)]
    yield ["Reasoning Gym, different answers", len(found), len(pairs), sum(math.same(*pair) for pair in pairs), "one"]


def main():
    """Write the table."""
    given = options(__doc__, scores=SCORES)
    with MathVerify(timeout_seconds=1.0) as math:
        rows = [slots(math), *stated(math), *foreign(math, given.scores)]
    write(
        "answer_pairs",
        'Answers that "math" takes for one another',
        ["answers", "kinds", "pairs", "wrong", "taken for"],
        rows,
        notes=[
            "A pair is wrong if two different answers are taken for one, or one answer for two. The one pair of the "
            "first row is 9 over 3 and 9 over 6, which are equal."
        ],
        seeds=[0],
    )


if __name__ == "__main__":
    main()
