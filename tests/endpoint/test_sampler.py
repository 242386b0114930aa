"""Allocators run on a server: failures are charged and left out, and errors that end the run are raised."""

import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from apportion import HORA, ReinforceAda, Uniform, collect_async
from apportion.allocators import Voting
from apportion.endpoint import EndpointError, EndpointSampler
from apportion.endpoint.sampler import rollout_reader
from apportion.stopping import Fixed
from apportion.types import Prompt, Rollout
from apportion.verifiers import Exact
from tests.damaged_states import check_damage
from tests.endpoint.builders import endpoint, run
from tests.endpoint.fault_server import FaultServer, ok, refused

PROMPTS = [Prompt(f"What is {n} + 1?", data=str(n + 1)) for n in range(4)]
EXACT = Exact()


def answer(request, place):
    """Right for even seeds, wrong for odd ones."""
    gold = next(prompt.data for prompt in PROMPTS if prompt.text == request.prompt)
    return f"The answer is {gold if (request.seed or 0) % 2 == 0 else 'seven'}. ({request.seed}.{place})"


def some_fail(request):
    return refused(500, "the engine has crashed") if (request.seed or 0) % 3 == 0 else ok(answer)


def collected(allocator, script, read=EXACT, prompts=PROMPTS, steps=1):
    """The batches of some steps on a server with this script."""

    async def scenario():
        async with FaultServer(script) as server, endpoint(server, max_retries=0).connect() as client:
            sampler = EndpointSampler(client, read)
            return [await collect_async(allocator, prompts, sampler) for _ in range(steps)], server

    return run(scenario())


@pytest.mark.parametrize("allocator", [HORA(pre_rollouts=3, rollouts_per_prompt=6), ReinforceAda(), Uniform(6)])
def test_an_allocator_runs_on_a_server_whose_failures_stay_charged(allocator):
    [batch], server = collected(allocator, some_fail)
    choices = Counter[str]()
    for request in server.requests:
        choices[request.prompt] += 0 if (request.seed or 0) % 3 == 0 else request.n
    arrived = [len(rollouts) for rollouts in batch.rollouts]
    assert arrived == [choices[prompt.text] for prompt in PROMPTS]
    assert batch.trials.tolist() == arrived and 0 < sum(arrived) < batch.asked.sum()
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        for rollout in rollouts:
            assert rollout.correct == (rollout.answer == prompt.data) and rollout.reward == float(rollout.correct)
            assert rollout.answer in (prompt.data, "seven") and rollout.completion.startswith("The answer is")
            assert rollout.tokens is not None and rollout.tokens > 0


def test_without_gold_answers_are_votes():
    prompts = [replace(prompt, data=None) for prompt in PROMPTS]
    voting = Voting(Fixed(), max_samples=9, curtail=False)
    [batch], _ = collected(voting, some_fail, prompts=prompts)
    assert all(rollout.correct is None for rollouts in batch.rollouts for rollout in rollouts)
    winners = {voting.winner(batch, place) for place in range(4)}
    assert winners <= {"seven", *(prompt.data for prompt in PROMPTS)} and batch.asked.tolist() == [9] * 4


def test_no_two_samples_of_a_prompt_have_the_same_seed_in_any_round_or_step():
    batches, _ = collected(HORA(pre_rollouts=2, rollouts_per_prompt=4), ok(answer), steps=3)
    texts = [rollout.completion for batch in batches for rollouts in batch.rollouts for rollout in rollouts]
    assert len(texts) == 3 * 16 and len(set(texts)) == len(texts)


def test_a_restored_sampler_goes_on_with_new_seeds():
    async def scenario():
        async with FaultServer(ok(answer)) as server, endpoint(server).connect() as client:
            first, second = EndpointSampler(client, Exact()), EndpointSampler(client, Exact())
            await first(PROMPTS[0], 2)
            second.load_state_dict(first.state_dict())
            await second(PROMPTS[0], 2)
            return [request.seed for request in server.requests]

    assert len(set(run(scenario()))) == 2
    assert check_damage(lambda: EndpointSampler(None, Exact()), {"a": 3, "b": 0}) > 30


@pytest.mark.parametrize("allocator", [HORA(pre_rollouts=2, rollouts_per_prompt=4), ReinforceAda()])
def test_an_error_that_no_retry_can_fix_ends_the_batch(allocator):
    with pytest.raises(ExceptionGroup) as caught:
        collected(allocator, lambda request: ok(answer) if "0" in request.prompt else refused(403, "forbidden"))
    assert {type(error) for error in caught.value.exceptions} == {EndpointError}


def test_a_reading_function_decides_what_a_rollout_holds():
    def read(text, prompt):
        return Rollout(reward=0.5, answer=prompt.text, completion=[text], tokens=3)

    [batch], _ = collected(Uniform(2), ok(answer), read)
    for prompt, rollouts in zip(batch.prompts, batch.rollouts, strict=True):
        expected = (None, 0.5, prompt.text, 3, list)
        assert [(r.correct, r.reward, r.answer, r.tokens, type(r.completion)) for r in rollouts] == [expected] * 2


def test_texts_are_read_one_at_a_time_while_requests_go_on():
    busy, overlaps, names = threading.Lock(), [], set()

    def read(text, prompt):
        overlaps.append(not busy.acquire(blocking=False))
        names.add(threading.current_thread() is threading.main_thread())
        time.sleep(0.01)
        busy.release()
        return Rollout(True)

    _, server = collected(Uniform(3), ok(answer, delay=0.02), read)
    assert overlaps == [False] * 12 and names == {False} and server.most_in_flight > 1


def test_an_error_of_the_reading_function_and_gold_that_is_no_text_are_raised():
    def read(text, prompt):
        raise ZeroDivisionError("in the user's own code")

    said = "Prompt.data must be the gold answer for a verifier, a text or None"
    for own, prompts, kind, match in (
        (read, PROMPTS, ZeroDivisionError, None),
        (Exact(), [Prompt("What is 1 + 1?", data={"gold": "2"})], TypeError, said),
    ):
        with pytest.raises(ExceptionGroup) as caught:
            collected(Uniform(2), ok(answer), own, prompts)
        assert caught.group_contains(kind, match=match)


class Graded(Exact):
    """Its verdict is the number in gold."""

    def verdict(self, text, gold):
        return None if gold is None else float(gold)


def test_only_verdicts_of_0_and_1_say_whether_a_rollout_is_correct():
    read = rollout_reader(Graded())
    rollouts = [read("text", Prompt("?", data=gold)) for gold in ("1", "0", "0.25", None)]
    assert [(r.correct, r.reward) for r in rollouts] == [(True, 1.0), (False, 0.0), (None, 0.25), (None, None)]
    assert [r.answer for r in rollouts] == [None] * 4
