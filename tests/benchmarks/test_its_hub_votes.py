"""Tests of the comparison with its_hub: its replay of recorded answers, ties, and its own votes if it is installed."""

import asyncio

import pytest

import benchmarks.its_hub_votes
from benchmarks.its_hub_votes import Recorded, ask, theirs, tied


def test_recorded_answers_come_in_their_order_and_one_after_the_other():
    async def run():
        recorded, arrived = Recorded(["a", "b", "c", "d"]), []

        async def one():
            arrived.extend(await recorded.agenerate(None, [[]]))

        await asyncio.gather(*(one() for _ in range(3)))
        return [reply["content"] for reply in arrived]

    assert asyncio.run(run()) == ["a", "b", "c"]


def test_a_tie_is_between_the_answers_with_the_most_votes():
    assert tied(["a", "b", "b", "a", "c"]) and not tied(["a", "b", "b"]) and not tied(["a"])


def test_without_the_package_the_benchmark_says_that_it_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr(benchmarks.its_hub_votes, "find_spec", lambda name: None)
    benchmarks.its_hub_votes.main()
    assert capsys.readouterr().out.startswith("Skipped: its_hub is not installed")


def test_the_votes_of_its_hub_read_the_recorded_answers():
    pytest.importorskip("its_hub")
    votes = theirs()
    assert asyncio.run(ask(votes["its_hub SelfConsistency"], ["7", "8", "7"], 3)) == ("7", 3)
    assert asyncio.run(ask(votes["its_hub BetaSelfConsistency, .95"], ["7"] * 40)) == ("7", 4)
