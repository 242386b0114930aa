import asyncio
import io
import logging

from rich.console import Console

from apportion.runs import progress as runs_progress
from apportion.vote import progress
from apportion.vote.progress import Tally, show_progress
from tests.vote.builders import make_ballot, make_sample


def test_a_tally_counts_samples_of_this_run_and_savings_of_all_finished_questions():
    tally = Tally(questions=3, max_samples=16)
    assert tally.line() == "0 of 3 questions, 0 samples, 0 tokens"
    tally.finish(make_ballot(samples=4))  # of an earlier run
    tally.sample(make_sample(tokens=1000))
    tally.sample(make_sample(text=None, tokens=None))
    assert tally.line() == "1 of 3 questions, 2 samples, 1,000 tokens, 75% of the samples saved"
    tally.sample(make_sample(answer=None, finish_reason="length"))
    assert "3 samples, 1,005 tokens, 1 without an answer, 1 cut off, 75% of" in tally.line()


def test_without_a_terminal_a_line_is_logged_now_and_then(caplog, monkeypatch):
    monkeypatch.setattr(runs_progress, "LINE_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(progress, "REDRAW_EVERY_SECONDS", 0.02)

    async def inner():
        async with show_progress(Tally(questions=3, max_samples=16)):
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.INFO, logger="apportion.vote"):
        asyncio.run(inner())
    assert len(caplog.messages) >= 2 and set(caplog.messages) == {"0 of 3 questions, 0 samples, 0 tokens"}


def test_a_terminal_gets_bars_that_end_where_the_run_ended(monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda **_: terminal)
    tally = Tally(questions=3, max_samples=16)

    async def inner():
        async with asyncio.timeout(30), show_progress(tally):
            while "0/3" not in screen.getvalue():
                await asyncio.sleep(0.01)
            tally.finish(make_ballot(samples=4))

    asyncio.run(inner())
    assert "1/3" in screen.getvalue() and "75% of the samples saved" in screen.getvalue()
