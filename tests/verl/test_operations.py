"""The pages for operators name every metric and every line that a run can log, in verl, TRL and tinker-cookbook."""

import ast
import re
from pathlib import Path

from apportion import Prompt, Rollout
from apportion.allocators import ALLOCATORS
from apportion.engines.metrics import allocation_metrics
from apportion.predictors import MeanLengths
from apportion.selection import SELECTORS
from apportion.verl import tracking
from apportion.verl.coordinator import service
from tests.rules import small

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z_]+)`", METRICS))
ROOMS = ("verl", "trl", "tinker", "engines", "allocators", "advantages", "predictors")
PROMPTS = [Prompt("6 x 7?"), Prompt("17 x 23?"), Prompt("2 + 2?"), Prompt("3 - 1?")]


def outcomes(count):
    """Return ``count`` rollouts, every other of them correct."""
    return [
        Rollout(n % 2 == 0, answer=str(n % 2), reward=float(n % 2 == 0), tokens=9, score_norm=1.0) for n in range(count)
    ]


RULES = {name: small(name, 4) for name in ALLOCATORS} | {
    "tokens": ALLOCATORS["vip"](tokens_per_prompt=80, lengths=MeanLengths(initial=10))
}


def test_every_metric_of_a_rule_a_selection_and_the_engine_is_on_the_page():
    for name, allocator in RULES.items():
        batch = allocator.start(PROMPTS)
        plan = allocator.plan(batch)
        batch = batch.add(plan, [outcomes(count) for count in plan.counts.tolist()])
        logged = allocation_metrics(batch, allocator.groups(batch), "rloo") | allocator.metrics(batch)
        assert len(logged) > 10 and logged.keys() <= NAMED, name
    for name, kind in SELECTORS.items():
        selector = kind()
        selector.prepare(PROMPTS, 0)
        selector.choose(2)
        assert {"never_chosen"} <= selector.metrics().keys() <= NAMED, name
    assert {*service.COUNTED, *tracking.COUNTED, "requests"} <= NAMED


def logged_lines():
    """Return the texts that the trainers give their loggers, each with its place."""
    for path in sorted(path for room in ROOMS for path in (ROOT / "apportion" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called.startswith("logger.") and node.args and called not in ("logger.info", "logger.debug"):
                text = node.args[0]
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value


def test_every_line_that_is_logged_is_on_the_page():
    lines = list(logged_lines())
    assert len(lines) > 20
    for text in lines:
        pieces = [piece.split()[:5] for piece in re.split(r"%[.\d]*[sdfgr]", text.partition(";")[0])]
        said = [" ".join(words) for words in pieces if len(words) >= 2]
        assert not said or any(words in PAGE for words in said), f"add the line to docs/messages.md: {text}"
