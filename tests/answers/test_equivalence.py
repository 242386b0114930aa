"""Equivalence with the real math-verify in its real process: verdicts, order, hangs, killed processes, cleaning up."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from random import Random
from threading import Timer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.answers import EQUIVALENCES, ExactMatch, MathVerify, mathematics, merge_answers
from apportion.answers.equivalence import run_coroutine
from apportion.answers.magnitude import too_large
from apportion.answers.math_process import MathProcess
from apportion.answers.normal_form import equal_by_text, normal_form
from apportion.stopping import decide
from tests.soak import case

ROOT = Path(__file__).parents[2]
HANGS = "(8+1)^{9^9}"
"""Not recognised by its text, because the base is a sum."""


PAIRS = json.loads((Path(__file__).parent / "pairs.json").read_text())
"""Two answers a line that are one vote, and two that are two votes."""


@pytest.fixture(scope="module")
def math():
    with MathVerify() as math:
        yield math


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"  # an orphan that nobody waits for


@pytest.mark.parametrize(("first", "second"), PAIRS["same"])
def test_one_meaning_is_one_vote(math, first, second):
    assert math.same(first, second) and math.same(second, first)
    assert asyncio.run(math.find_equal(first, ["no answer", second])) == 1


@pytest.mark.parametrize(("first", "second"), PAIRS["different"])
def test_two_meanings_are_two_votes(math, first, second):
    assert not math.same(first, second) and not math.same(second, first)
    assert asyncio.run(math.find_equal(first, [second])) is None


FORMULAS = (Path(__file__).parent / "formulas.txt").read_text().splitlines()
"""One kind of answer a line. Each @ is filled with different numbers, and no two of them are one answer."""

GOLDS = (Path(__file__).parent / "golds.txt").read_text().splitlines()
"""The answers of MATH-500, AMC and AIME 2024, from the data files of PRIME-RL/TTRL (MIT licence)."""


@pytest.mark.parametrize("kind", [case(kind, suite=line % 4 == 0) for line, kind in enumerate(FORMULAS)])
def test_an_answer_with_another_number_anywhere_is_another_answer(math, kind):
    first, second = (kind.replace("@", number) for number in "24")
    assert not math.same(first, second)
    assert math.same(first, f" ${first}$") or "$" in kind


def test_published_answers_are_read_in_every_spelling(math):
    spellings = {
        "width": lambda gold: "".join(chr(ord(each) + 0xFEE0) if each.isdigit() else each for each in gold),
        "no width": lambda gold: f"{gold}\u200b",
        "signs": lambda gold: gold.replace("-", "−").replace(r"\pi", "π").replace(r"\infty", "∞").replace(r"\cup", "∪"),
        "roots": lambda gold: re.sub(r"\\sqrt\{(\d+)\}", r"√\1", gold),
        "bold": lambda gold: rf"\boldsymbol{{{gold}}}",
        "roman": lambda gold: rf"\mathrm{{{gold}}}",
        "brackets": lambda gold: gold.replace(r"\left", r"\big").replace(r"\right", r"\big"),
        "fractions": lambda gold: re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\dfrac\1\2", gold),
        "money": lambda gold: f"{gold} dollars" if gold.lstrip("-").isdigit() else gold,
        "about": lambda gold: gold if r"\text" in gold else rf"\approx {gold}",
    }
    wrong = {(name, gold) for gold in GOLDS for name, spell in spellings.items() if not math.same(spell(gold), gold)}
    assert len(GOLDS) == 613 and not wrong and all(map(math.reads, GOLDS))


def test_an_answer_joins_the_first_class_that_it_equals_in_order_of_appearance(math):
    async def notebook():
        return merge_answers(["50%", "50", "1/2"], math)

    assert merge_answers(["1/2", "50", "50%"], math) == ["1/2", "50", "1/2"]
    assert merge_answers(["50", "1/2", "50%"], math) == ["50", "1/2", "50"]
    assert asyncio.run(notebook()) == ["50%"] * 3  # also within a running event loop
    answers = ["2", "0.5", "2", None, r"\frac{1}{2}", "1/2"]
    assert merge_answers(answers, math) == ["2", "0.5", "2", None, "0.5", "0.5"]
    assert decide(answers, "fixed").answer == "2" and decide(merge_answers(answers, math), "fixed").answer == "0.5"


def test_equal_text_goes_before_mathematics(math):
    assert asyncio.run(math.find_equal("1,2", ["(1,2)", r"\{1,2\}", "$1,2$"])) == 2
    assert asyncio.run(math.find_equal("50.0%", ["1/2", "50", r"50.0\%"])) == 2


READ = ["7", "-1/2", "12.5", r"2\sqrt{3}", "(1,2]", "x < 3", "no solution", "5²", r"\begin{pmatrix}1\\2\end{pmatrix}"]
NOT_READ = ["", " ", "$$", "((((", r"\frac{1}{", "\\", "1" * 2000]


def test_numbers_words_and_mathematics_are_read(math):
    assert [answer for answer in READ if not math.reads(answer)] == []
    assert [answer for answer in NOT_READ if math.reads(answer)] == []
    assert math.same("1/2", "0.5")  # a request with one answer does not disturb the next


def test_exact_match_compares_text_without_surrounding_white_space():
    async def places():
        exact = ExactMatch()
        found = [await exact.find_equal(answer, [" 7", "1/2 "]) for answer in ("7", "1/2", "0.5", "")]
        await exact.aclose()
        return found

    assert asyncio.run(places()) == [0, 1, None, None]
    assert EQUIVALENCES["exact"] is ExactMatch and EQUIVALENCES["math"] is MathVerify


def test_pairs_decided_by_text_start_no_process():
    with MathVerify() as math:
        assert math.same("$1,000$", "1000.0") and not math.same("18", "19") and not math.same("yes", "no way")
        assert math._quick.process.pid is None


decimals = st.decimals(-(10**6), 10**6, places=4) | st.integers(-20, 20).map(Decimal)


@given(decimals, decimals, st.sampled_from(["{}", "+{}", "{:.6f}", "{:,}", "${}$", " {}. "]))
def test_two_numbers_have_one_normal_form_exactly_if_they_are_equal(a, b, style):
    written = style.format(a).replace("+-", "-")
    assert (normal_form(written).text == normal_form(str(b)).text) == (a == b)


small = st.integers(0, 60)
written = st.builds(
    "{}{}".format,
    st.sampled_from(["", "-"]),
    st.builds("{}/{}".format, small, st.integers(1, 60))
    | st.builds(r"\frac{{{}}}{{{}}}".format, small, st.integers(1, 60)),
)


@given(written, written)
def test_two_fractions_are_compared_by_value(a, b):
    value = [Fraction(text.replace(r"\frac{", "").replace("}{", "/").rstrip("}")) for text in (a, b)]
    assert equal_by_text(normal_form(a), normal_form(b)) == (value[0] == value[1])


def test_math_verify_and_the_values_of_numbers_agree(math):
    """Values decide about fractions and decimals as the process would."""
    rng = Random(0)
    fractions = [f"{rng.randint(-9, 40)}/{rng.randint(1, 9)}" for _ in range(12)]
    fractions += [r"\frac{6}{4}", r"-\frac{6}{4}", "3"]
    numbers = [f"{rng.choice([0.5, 7, 1e4]) + rng.randint(0, 3) / 10**6:.6f}" for _ in range(12)]
    close = ["0.333333", "1/3", "0.33", "0.3333333", "0.016667", "1/60", r"1.6 \times 10^{-19}", r"1.7 \times 10^{-19}"]
    for pair in [
        *pairwise(fractions),
        *zip(fractions, sorted(fractions), strict=True),
        *pairwise(numbers),
        *product(close, close),
    ]:
        forms = [normal_form(written) for written in pair]
        assert equal_by_text(*forms) == math._slow.process.same(*(form.formula for form in forms)), pair


def test_a_fraction_over_zero_equals_only_the_same_text(math):
    assert equal_by_text(normal_form("1/0"), normal_form("2/0")) is None
    assert not math.same("1/0", "2/0") and not math.same("3:00", "5:00") and math.same("1/0", "1/0")


@given(st.text(), st.text())
def test_text_finds_an_answer_equal_to_itself_and_ignores_the_order_of_a_pair(a, b):
    a, b = normal_form(a), normal_form(b)
    assert equal_by_text(a, b) == equal_by_text(b, a)
    assert equal_by_text(a, a) == (a.text != "")


def test_a_megabyte_is_compared_as_text_at_once(math):
    started = time.process_time()
    for unit in ("0", "1,", " 1", "a ", "\\left(", "$"):
        answer = unit * (10**6 // len(unit)) + "x"
        assert math.same(answer, answer) and not math.same(answer, "1/2")
    assert time.process_time() - started < 2


def test_verdicts_are_remembered_and_their_number_is_bounded(math, monkeypatch):
    monkeypatch.setattr(mathematics, "REMEMBERED", 3)
    assert [math.same(f"{n}x", f"{n}.5") for n in range(1, 6)] == [False] * 5
    assert list(math._verdicts)[-6::2] == [(f"{n}x", f"{n}.5") for n in (3, 4, 5)]
    os.kill(math._quick.process.pid, signal.SIGSTOP)
    try:
        assert not math.same("5x", "5.5") and not math.same("5.5", "5x")
    finally:
        os.kill(math._quick.process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_an_answer_that_hangs_is_different_and_delays_the_others_by_its_timeout_at_most():
    async def ask():
        async with MathVerify(timeout_seconds=1.0) as math:
            await math.find_equal("2x", ["x + x"])
            first, beats = math._quick.process.pid, []

            async def heart():
                while True:
                    beats.append(time.perf_counter())
                    await asyncio.sleep(0.01)

            beating = asyncio.create_task(heart())
            hanging = asyncio.create_task(math.find_equal(HANGS, ["7", "8"]))
            await asyncio.sleep(0)
            started = time.perf_counter()
            other = await math.find_equal("3z", ["2z", "2z + z"])
            waited = time.perf_counter() - started
            assert await hanging is None
            beating.cancel()

            started = time.perf_counter()
            later = (
                await math.find_equal(HANGS, [f"{n}/3" for n in range(100)]),
                await math.find_equal("7.0", [HANGS, "7"]),
            )
            return first, math._quick.process.pid, other, waited, later, time.perf_counter() - started, beats

    first, last, other, waited, later, at_once, beats = asyncio.run(ask())
    assert other == 1 and later == (None, 1)
    assert waited < 1.0 + 8.0  # a second in the quick lane on a busy machine, and the start of its process
    assert at_once < 2  # the answer is known to hang, and its partner is known not to
    assert max(later - earlier for earlier, later in pairwise(beats)) < 0.9  # the event loop went on
    assert first != last and gone(first) and gone(last)


@pytest.mark.slow
def test_ordinary_pairs_are_answered_while_a_pair_hangs(monkeypatch):
    monkeypatch.setattr(mathematics, "QUICK_SECONDS", 1.5)  # the machine of a test may be busy

    async def ask():
        async with MathVerify(timeout_seconds=60) as math:
            await math.find_equal("2x", ["x + x"])
            hanging = asyncio.create_task(math.find_equal(HANGS, ["7"]))
            while not math._slow.process.pid:
                await asyncio.sleep(0.01)
            started = time.perf_counter()
            found = [await math.find_equal(f"{n}a", ["no", rf"a \cdot {n}"]) for n in range(1, 21)]
            seconds, still = time.perf_counter() - started, not hanging.done()
            hanging.cancel()
            return found, seconds, still

    found, seconds, still = asyncio.run(asyncio.wait_for(ask(), 60))
    assert found == [1] * 20 and still
    assert seconds < 30  # 60 for each, if they waited for the pair that hangs


@pytest.mark.slow
def test_a_slow_answer_is_compared_in_the_slow_lane_and_takes_no_time_of_the_quick_one_again():
    slow = r"\binom{400000}{200000}"
    with MathVerify(timeout_seconds=1.0) as math:
        while math._quick.process.same("1/2", "0.5") is None:  # the machine of a test may be busy
            pass
        assert not math.same(slow, "7") and math._slow_answers == math._hanging == {slow}
        workers = math._quick.process.pid, math._slow.process.pid
        assert not math.same(slow, "1/3") and not math.same(r"\sqrt{2}", slow) and math.same(slow, slow)
        assert workers == (math._quick.process.pid, math._slow.process.pid)  # no worker was killed over it again
        assert not math.same("2^{10^{11}+1}", r"\sqrt{2}") and math.same("2^{1/2}", r"\sqrt{2}")  # which is not slow


def test_a_request_that_a_killed_worker_had_not_read_is_not_answered_twice():
    process = MathProcess(timeout_seconds=30)
    try:
        assert process.same("2x", "x + x")
        started = process._process.pid
        for first, second, verdict in [("4x", "3x + x", True), ("4x", "3x", False), ("3y", "2y + y", True)]:
            os.kill(process.pid, signal.SIGSTOP)
            killer = Timer(0.1, os.kill, [process.pid, signal.SIGKILL])
            killer.start()
            assert process.same(first, second) is verdict
            killer.join()
            assert process.same("3x", "5x") is False and process.same("8x", "7x + x") is True
        assert process._process.pid == started != process.pid  # which forks each worker
    finally:
        process.close()
        process.stop()


def test_what_else_the_machine_does_decides_no_verdict():
    process = MathProcess(timeout_seconds=0.5)
    try:
        while process.same("2x", "x + x") is None:  # a cold start computes longer
            pass
        os.kill(process.pid, signal.SIGSTOP)
        Timer(1.5, os.kill, [process.pid, signal.SIGCONT]).start()  # three times the limit without a processor
        worker = process.pid
        assert process.same("4x", "3x + x") is True and process.pid == worker
        assert process.same(HANGS, "7") is None and process.pid != worker
    finally:
        process.close()
        process.stop()


def test_ctrl_c_ends_a_count_at_once_and_leaves_the_loop_that_was_set():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        started = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            run_coroutine(asyncio.sleep(120))
        assert time.perf_counter() - started < 60
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.parametrize(
    "text", ["9^{9^{9^9}}", "9^(9^(9^9))", "9**9**9", "10^{-10^{10}}", "((9)^{9})^{9^{9}}", "(10^9)!"]
)
def test_what_has_no_end_is_compared_as_text_and_starts_no_process(text):
    with MathVerify() as math:
        assert math.same(text, f" ${text}$") and not math.same(text, r"\sqrt{2}") and math.reads(text)
        assert math._quick.process.pid is math._slow.process.pid is None


@pytest.mark.parametrize("unit", ["(", "1^", "1!", "9^{", "2^1000!", "((1))", "1)", " "])
def test_a_text_of_any_form_is_examined_at_once(unit):
    started = time.process_time()
    too_large((unit * 1000)[:1000] + "!")
    assert time.process_time() - started < 2


@pytest.mark.slow
def test_closing_ends_what_is_under_way_and_leaves_no_process():
    async def ask():
        math = MathVerify(timeout_seconds=60)
        assert await math.find_equal("2x", ["x + x"]) == 0
        hanging = [asyncio.create_task(math.find_equal(HANGS, [other])) for other in ("7", "8")]
        await asyncio.sleep(0.3)
        pid, started = math._quick.process.pid, time.perf_counter()
        await math.aclose()
        seconds = time.perf_counter() - started
        ended = await asyncio.gather(*hanging, return_exceptions=True)
        with pytest.raises(RuntimeError, match="after the equivalence was closed; make a new one"):
            await math.find_equal("3x", ["5x"])
        with pytest.raises(RuntimeError, match="after the equivalence was closed; make a new one"):
            math.reads("x")
        await math.aclose()
        return pid, seconds, ended

    pid, seconds, ended = asyncio.run(ask())
    assert gone(pid) and seconds < 10  # 60 for the pair that hangs
    assert [type(end) for end in ended] == [RuntimeError] * 2


@pytest.mark.slow
def test_a_pair_whose_process_is_killed_is_compared_once_more():
    async def ask():
        async with MathVerify(timeout_seconds=3.0) as math:  # far more than the pause below takes on a busy machine
            await math.find_equal("2x", ["x + x"])
            hanging = asyncio.create_task(math.find_equal(HANGS, ["7"]))
            await asyncio.sleep(0.1)  # less than the time of the quick lane
            killed = math._quick.process.pid
            os.kill(killed, signal.SIGKILL)
            return await hanging, await math.find_equal("5x", ["4x + x"]), killed

    verdict, after, killed = asyncio.run(ask())
    assert verdict is None and after == 0 and gone(killed)


def python(code):
    """Start a script without a main guard; return it and the first line that it prints."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    script = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    return script, json.loads(script.stdout.readline())


@pytest.mark.slow
def test_a_script_without_main_guard_leaves_no_process_behind_even_if_it_closes_nothing():
    script, (same, pid) = python(
        "from apportion.answers import MathVerify; math = MathVerify()\n"
        "print([int(math.same('2x', 'x + x')), math._quick.process.pid], flush=True)"
    )
    assert same and script.wait(timeout=20) == 0
    script.stdout.close()
    assert eventually(lambda: gone(pid))


@pytest.mark.slow
def test_a_process_whose_caller_was_killed_ends_by_itself():
    script, pid = python(
        "from apportion.answers import MathVerify; math = MathVerify(timeout_seconds=2.0); math.same('2x', 'x + x')\n"
        f"print(math._quick.process.pid, flush=True); math.same({HANGS!r}, '7')"
    )
    time.sleep(0.1)  # less than the time of the quick lane
    script.kill()
    script.communicate()
    assert not gone(pid)  # it is computing and has not noticed that the pipe is closed
    assert eventually(lambda: gone(pid), seconds=30)


def eventually(true, seconds=10):
    end = time.perf_counter() + seconds
    while not true() and time.perf_counter() < end:
        time.sleep(0.05)
    return true()


def test_importing_the_answers_imports_no_mathematics():
    script, heavy = python(
        "import json, sys, apportion.answers\n"
        "print(json.dumps([m for m in ('math_verify', 'sympy', 'latex2sympy2_extended') if m in sys.modules]))"
    )
    script.communicate()
    assert heavy == []
