"""The page for operators: it names every metric and every line that a run under verl can log."""

import ast
import re
from pathlib import Path

import pytest

from apportion import Prompt, Rollout
from apportion.allocators import ALLOCATORS
from apportion.engines.metrics import allocation_metrics
from apportion.predictors import MeanLengths
from apportion.selection import SELECTORS
from apportion.verl.coordinator.service import COUNTED
from apportion.verl.tracking import PaddingCounter
from tests.rules import small

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verl_operations.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z_]+)`", PAGE))
PROMPTS = [Prompt("6 x 7?"), Prompt("17 x 23?"), Prompt("2 + 2?"), Prompt("3 - 1?")]


def outcomes(count):
    """Return ``count`` rollouts, every other of them correct."""
    return [
        Rollout(n % 2 == 0, answer=str(n % 2), reward=float(n % 2 == 0), tokens=9, score_norm=1.0) for n in range(count)
    ]


RULES = {name: small(name, 4) for name in ALLOCATORS} | {
    "tokens": ALLOCATORS["vip"](tokens_per_prompt=80, lengths=MeanLengths(initial=10))
}


@pytest.mark.parametrize("name", RULES)
def test_every_metric_of_a_rule_is_on_the_page(name):
    allocator = RULES[name]
    batch = allocator.start(PROMPTS)
    plan = allocator.plan(batch)
    batch = batch.add(plan, [outcomes(count) for count in plan.counts.tolist()])
    logged = allocation_metrics(batch, allocator.groups(batch), "rloo") | allocator.metrics(batch)
    assert len(logged) > 10 and logged.keys() <= NAMED


@pytest.mark.parametrize("name", SELECTORS)
def test_every_metric_of_a_selection_is_on_the_page(name):
    selector = SELECTORS[name]()
    selector.prepare(PROMPTS, 0)
    selector.choose(2)
    assert {"never_chosen"} <= selector.metrics().keys() <= NAMED


def test_every_metric_of_the_engine_is_on_the_page():
    padding = PaddingCounter(lambda batch: batch).take_counts()
    assert {*COUNTED, *padding, "requests", "metrics_seconds"} <= NAMED


def logged_lines():
    """Return the texts that apportion.verl gives its loggers, each with its place."""
    for path in sorted((ROOT / "apportion" / "verl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.") and node.args:
                text = node.args[0]
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield pytest.param(text.value, id=f"{path.stem}-{node.lineno}")


@pytest.mark.parametrize("text", list(logged_lines()))
def test_every_line_that_is_logged_is_on_the_page(text):
    longest = max(re.split(r"%[.\d]*[sdfg]", text.partition(";")[0]), key=len)
    assert " ".join(longest.split()[:5]) in PAGE, f"add the line to docs/verl_operations.md: {text}"
