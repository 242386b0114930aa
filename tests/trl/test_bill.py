"""The line about the cost of a batch, held to what the reward function received and to the rows in the loss.

Memory is bounded as in TRL: no micro-batch has more rows than ``per_device_train_batch_size``, and no more completions
are generated at once than a generation batch has.
"""

import re
from pathlib import Path

import pytest

from apportion import AR3PO, DAPO, HORA, VIP, OptPO
from apportion.allocators import ALLOCATORS
from apportion.predictors import MeanLengths

LINE = re.compile(
    r"(?P<name>\w+): a batch of (?P<prompts>\d+) prompts samples (?:(?P<least>\d+) to )?(?P<most>\d+) rollouts"
    r"(?: in (?:at most )?(?P<rounds>one|\d+) rounds?)?(?:, with up to (?P<fresh>\d+) further prompts)?"
    r", and trains on at most (?P<rows>\d+) \(without it: (?P<usual>\d+)\)"
)


def test_the_table_of_the_documents_is_what_the_rules_say():
    text = (Path(__file__).parents[2] / "docs" / "trl.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    named = {name.strip("`"): row[1:] for row in rows for name in row[0].split(", ")}
    found = {name: cells for name, cells in named.items() if name in ALLOCATORS}
    assert found == {name: row_of(rule().with_budget(8)) for name, rule in ALLOCATORS.items() if name != "ttrl"}


def row_of(rule):
    """A rule's rounds, rollouts and rows of a batch of 16 prompts, as the document has them."""
    size = rule.size(16)
    sampled = str(size.asked) if size.exact else f"{size.fewest} to {size.asked}"
    return ["any" if size.rounds is None else str(size.rounds), sampled, str(size.fresh), str(size.kept)]


IN_TOKENS = VIP(low=3, high=6, tokens_per_prompt=24.0, lengths=MeanLengths(initial=6.0))


@pytest.mark.parametrize(("rule", "each"), [(HORA(), 2), (DAPO(), 8), (AR3PO(), 16), (OptPO(), 8), (IN_TOKENS, 6)])
def test_what_a_batch_costs_lies_within_the_line_before_it(run, capsys, caplog, rule, each):
    config = {"num_generations": each, "per_device_train_batch_size": each, "max_completion_length": 2}
    given = {"extract": lambda text: text[:1], "verdict": "judge" if rule.needs.labels else None}
    given |= {"config": config | {"gradient_accumulation_steps": 2, "max_steps": 2}, "failed_rewards": "drop"}
    _, watch, _ = run(allocator=rule, **given)
    line = LINE.search(capsys.readouterr().err)
    assert line is not None and line["name"] == rule.name and int(line["usual"]) == 2 * each
    most, least = int(line["most"]), int(line["least"] or line["most"])
    for step in watch.steps:
        assert least <= len(step.calls) <= most and len(step.rows) <= int(line["rows"]), line[0]
        assert max(map(len, step.rounds)) <= 2 * each >= 2 * max(len(chunk["advantages"]) for chunk in step.chunks)
    assert len(watch.steps) == 2 and ("can sample" in caplog.text) == (most > 2 * each)
