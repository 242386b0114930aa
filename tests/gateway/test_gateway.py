"""The gateway as an openai client sees it, before a scripted upstream server."""

import asyncio
import json
import logging

import pytest

from apportion.endpoint import seed_of
from apportion.gateway.upstream import Bill
from apportion.stopping import TARGETS
from tests.cases import lines
from tests.endpoint.builders import run, until
from tests.endpoint.fault_server import http, refused
from tests.gateway.builders import MESSAGES, ballot, by_sample, either, gateway, openai, served, streamed

SPLIT = ["41", "42", None, "42", "42", "41", "42", "42"]


async def body_of(place, seed=0, **fields):
    """Return the reply to one question as JSON."""
    seeds = {} if seed is None else {"seed": seed}
    reply = await place.client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, **seeds, **fields
    )
    found = json.loads(reply.http_response.content)
    return found


async def refusal(place, **fields):
    """Return the error that the openai client raises."""
    with pytest.raises(openai.APIStatusError) as raised:
        await place.ask(**fields)
    return raised.value


FIRST = """[{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "sample 1. Answer: 42",
"reasoning_content": "6 x 7 is 42", "annotations": [{"type": "own"}]}}]"""


BALLOT = """{"answer": "42", "votes": {"42": 5, "41": 2}, "samples": 8, "unparsed": 1, "failed": 0, "uncounted": 0,
"stopped": "max_samples", "rule": "fixed", "disagreement": 0.0, "chosen": [{"sample": 1, "answer": "42"}]}"""


@pytest.mark.parametrize("upstream_stream", [True, False])
def test_the_first_completion_of_the_winner_comes_back_as_upstream_sent_it(upstream_stream):
    async def scenario():
        script = by_sample(SPLIT, reasoning_content="6 x 7 is 42", annotations=[{"type": "own"}])
        async with gateway(
            script, upstream_stream=upstream_stream, rule="fixed", curtail=False, max_samples=8
        ) as place:
            reply = await body_of(place)
            assert reply["choices"] == json.loads(FIRST)
            assert reply["usage"] == {"prompt_tokens": 8 * 6, "completion_tokens": 8 * 5, "total_tokens": 8 * 11}
            own = reply["apportion"]
            assert own == own | {"share": 5 / 7} | json.loads(BALLOT)

    run(scenario())


@served(by_sample(["42"]), max_samples=64)
async def test_the_rule_stops_early_and_headers_say_so(place):
    reply = await place.client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES)
    own = {name[12:]: value for name, value in reply.headers.items() if name.startswith("x-apportion-")}
    assert own.pop("disagreement").startswith("0.0")
    assert own == json.loads("""{"samples": "6", "answer-share": "1", "stopped": "rule", "rule": "posterior_predictive",
    "unparsed": "0", "failed": "0", "cancelled": "0"}""")
    assert len(place.upstream.requests) == 6


@served(by_sample(["42"]), upstream_stream=False)
async def test_fields_of_the_request_go_upstream_unchanged(place):
    fields = json.loads(r"""{"temperature": 0.3, "top_p": 0.9, "max_completion_tokens": 77, "stop": ["\n\n"],
    "logit_bias": {"50256": -100}, "response_format": {"type": "json_object"}, "user": "Zoë",
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]}""")
    await place.ask(**fields, extra_body={"top_k": 20, "apportion": {"max_samples": 4}}, n=2)
    for request in place.upstream.requests:
        assert request.body == {"model": "tiny", "messages": MESSAGES, "top_k": 20, **fields}


@served(by_sample(["42"]), rule="fixed", max_samples=4, curtail=False)
async def test_the_seed_of_a_request_gives_each_sample_its_own(place):
    for _ in range(2):
        await place.ask(seed=7)
    first, again = place.upstream.requests[:4], place.upstream.requests[4:]
    wanted = sorted(seed_of(7, "", number) for number in range(4))
    assert sorted(request.body["seed"] for request in first) == wanted
    assert sorted(request.body["seed"] for request in again) == wanted
    await place.ask()
    assert all("seed" not in request.body for request in place.upstream.requests[8:])


@served(by_sample(SPLIT), rule="fixed", max_samples=8)
async def test_n_choices_are_the_best_answers_and_then_further_samples(place):
    reply = await body_of(place, n=4)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    chosen = [(each["sample"], each["answer"]) for each in reply["apportion"]["chosen"]]
    assert chosen == [(1, "42"), (0, "41"), (2, None), (3, "42")]
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert [text[:8] for text in texts] == ["sample 1", "sample 0", "sample 2", "sample 3"]
    assert (await refusal(place, n=9)).param == "n"


@served(by_sample(SPLIT), rule="fixed", max_samples=8)
async def test_a_stream_of_n_choices_has_each_under_its_index(place):
    texts = {0: "", 1: ""}
    async for chunk in await place.ask(n=2, seed=0, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "sample 1. Answer: 42", 1: "sample 0. Answer: 41"}


@served(by_sample(["42"]), max_samples=16)
async def test_a_vote_takes_at_least_n_samples(place):
    assert len((await body_of(place, n=12))["choices"]) == 12


LONG = "word " * 1000 + "Answer: 42"


@served(either(LONG))
async def test_a_stream_holds_the_winner_the_ballot_and_the_usage(place):
    *parts, last, usage = [each async for each in await place.ask(stream=True, stream_options={"include_usage": True})]
    said = [part.choices[0].delta.content or "" for part in parts]
    assert "".join(said) == LONG and max(map(len, said)) <= 4096
    assert parts[0].choices[0].delta.role == "assistant" and last.choices[0].finish_reason == "stop"
    assert ballot(last)["answer"] == "42" and usage.choices == []
    assert usage.usage.completion_tokens == 5 * ballot(last)["samples"]
    assert all(chunk.usage is None for chunk in parts)


def test_a_stream_stays_alive_while_the_vote_goes_on_and_ends_with_an_error_event_if_it_fails():
    async def scenario():
        async with gateway(either("Answer: 42", delay=0.3), keep_alive_seconds=0.05) as place:
            lines = await _lines(place)
            assert lines.count(": voting") >= 4 and lines[-1] == "data: [DONE]"
            assert lines.index(": voting") < next(i for i, line in enumerate(lines) if line.startswith("data"))

        async def late(_, send):
            await asyncio.sleep(0.2)
            await refused(400, "no such thing")(_, send)

        async with gateway(late, keep_alive_seconds=0.05) as place:
            lines = await _lines(place)
            assert json.loads(lines[-1].removeprefix("data: "))["error"]["message"] == "no such thing"
            with pytest.raises(openai.APIError, match="no such thing"):
                _ = [chunk async for chunk in await place.ask(stream=True)]

    run(scenario())


async def _lines(place):
    """Return the lines of one stream."""
    create = place.client.chat.completions.with_streaming_response.create
    async with create(model="tiny", messages=MESSAGES, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line async for line in response.iter_lines() if line]


@served(refused(401, "wrong key"))
async def test_an_error_before_a_stream_begins_has_its_own_status(place):
    error = await refusal(place, stream=True)
    assert error.status_code == 401 and error.body["message"] == "wrong key"


def test_a_request_at_temperature_0_is_not_voted_on():
    async def scenario():
        async with gateway(by_sample(["42"])) as place:
            own = (await body_of(place, temperature=0))["apportion"]
            assert own == own | {"stopped": "greedy", "samples": 1, "rule": None, "disagreement": None}
        async with gateway(by_sample(["42"]), greedy_temperature=0.7) as place:
            own = (await body_of(place, temperature=0.0))["apportion"]
            assert own["stopped"] == "rule" and own["temperature"] == 0.7
            assert {request.body["temperature"] for request in place.upstream.requests} == {0.7}

    run(scenario())


@served(by_sample(SPLIT), max_samples=16)
async def test_a_request_can_set_its_vote_within_the_bounds(place):

    async def voted(**fields):
        found = (await body_of(place, extra_body={"apportion": fields}))["apportion"]
        return found

    assert (await voted(vote=False))["stopped"] == "off"
    assert (await voted(rule="fixed", max_samples=4, curtail=False))["samples"] == 4
    assert (await voted(eps=0.9))["samples"] < (await voted(eps=0.001))["samples"]
    assert (await voted(extract="last_number"))["votes"].keys() == {"41", "42", "2"}
    assert (await voted(target="accuracy", eps=0.5))["rule"] == TARGETS["accuracy"].name
    wrong = """
        {"target": "speed"}                     => apportion
        {"target": "accuracy", "rule": "esc"}   => apportion
        {"target": ["accuracy"]}                => apportion.target
        {"max_samples": 17}                     => apportion.max_samples
        {"max_samples": true}                   => apportion.max_samples
        {"rule": "none"}                        => apportion
        {"rule": {}}                            => apportion.rule
        {"rule": "esc", "eps": 0.1}             => apportion
        {"eps": 2}                              => apportion
        {"wave": 0}                             => apportion
        {"vote": 1}                             => apportion.vote
        {"extract": "os:system"}                => apportion.extract
        {"tempo": 1}                            => apportion
        []                                      => apportion
    """
    for fields, param in lines(wrong):
        error = await refusal(place, extra_body={"apportion": json.loads(fields)})
        assert (error.status_code, error.param) == (400, param), fields


FIRST_SEEDS = [seed_of(0, "", number) for number in range(6)]


@served(
    lambda request: streamed("Answer: 42") if request.seed in FIRST_SEEDS else streamed("a b c d e", every=60),
    wave=16,
    max_samples=16,
)
async def test_samples_that_are_no_longer_needed_are_cancelled_by_closing_their_streams(place):
    """Of a wave of 16, five votes are enough; the others never end."""
    own = (await body_of(place))["apportion"]
    assert own["stopped"] == "rule" and own["cancelled"] == 16 - own["samples"] > 0
    assert own["requests"] == 16 and own["uncounted"] >= 10
    await until(lambda: len(place.upstream.left) >= 10)


@served(streamed("a b c", every=60), max_samples=4, rule="fixed")
async def test_a_client_that_leaves_cancels_its_upstream_requests(place):
    for stream in (False, True):
        with pytest.raises(openai.APITimeoutError):
            await place.ask(timeout=0.3, stream=stream)
    await until(lambda: len(place.upstream.left) == len(place.upstream.requests) > 0)
    assert place.queue.running == 0


@served(by_sample([None]), max_samples=64, give_up=3)
async def test_a_vote_without_answers_ends_early_and_returns_the_first_completion(place):
    reply = await body_of(place)
    assert reply["choices"][0]["message"]["content"] == "sample 0: no idea"
    own, empty = reply["apportion"], dict.fromkeys(("answer", "share", "disagreement"))
    assert own == own | empty | {"votes": {}, "stopped": "unanswered", "samples": 3, "unparsed": 3}


@pytest.mark.parametrize("upstream_stream", [True, False])
def test_tool_calls_are_votes(upstream_stream):
    def call(arguments):
        return [{"index": 0, "id": "a", "type": "function", "function": {"name": "add", "arguments": arguments}}]

    scripts = ['{"x": 1, "y": 2}', '{"y":2,"x":1}', '{"x": 9}', '{"x": 1, "y": 2}']

    def script(request):
        return either("", tool_calls=call(scripts[request.number % 4]))

    async def scenario():
        async with gateway(
            script, rule="fixed", max_samples=4, curtail=False, upstream_stream=upstream_stream
        ) as place:
            completion = await place.ask()
            assert ballot(completion)["votes"] == {'[["add", {"x": 1, "y": 2}]]': 3, '[["add", {"x": 9}]]': 1}
            [made] = completion.choices[0].message.tool_calls
            assert made.function.name == "add" and json.loads(made.function.arguments) == {"x": 1, "y": 2}
            chunks = [chunk async for chunk in await place.ask(stream=True)]
            [piece] = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
            assert piece.index == 0 and json.loads(piece.function.arguments) == {"x": 1, "y": 2}

    run(scenario())


@served(lambda request: either("Answer: 42", delay=0 if request.seed in FIRST_SEEDS[:3] else 60), deadline_seconds=0.5)
async def test_the_deadline_returns_the_best_answer_so_far(place):
    own = (await body_of(place))["apportion"]
    assert own == own | {"answer": "42", "stopped": "deadline", "samples": 3}
    error = await refusal(place, seed=1)
    assert (error.status_code, error.code) == (504, "deadline")


@served()
async def test_models_are_those_of_upstream(place):
    def answered(status, body):
        place.upstream.other_paths["/v1/models"] = http(status, body)

    model = b'{"id": "org/tiny", "object": "model", "created": 1, "owned_by": "me"}'
    answered(200, b'{"object": "list", "data": [%b]}' % model)
    assert [model.id async for model in place.client.models.list()] == ["org/tiny"]
    assert (await place.client.models.retrieve("org/tiny")).owned_by == "me"
    with pytest.raises(openai.NotFoundError) as raised:
        await place.client.models.retrieve("another")
    assert raised.value.code == "model_not_found"
    assert {request.headers["authorization"] for request in place.upstream.requests} == {"Bearer the-key"}
    answered(401, b'{"error": {"message": "wrong key"}}')
    with pytest.raises(openai.AuthenticationError, match="wrong key"):
        await place.client.models.retrieve("org/tiny")
    answered(500, b"Internal Server Error")
    with pytest.raises(openai.InternalServerError, match="answered 500"):
        await place.client.models.list()


def test_the_key_of_a_request_goes_upstream_and_nowhere_else(caplog, monkeypatch):
    monkeypatch.setenv("OWN_KEY", "own-secret")

    def script(request):
        return refused(401, f"Incorrect API key provided: {request.headers.get('authorization')}.")

    async def scenario():
        async with gateway(script, api_key_env="OWN_KEY") as place:
            error = await refusal(place)
            assert error.status_code == 401 and "the-key" in error.message
            empty = await refusal(place, extra_headers={"Authorization": "Bearer"})
            assert "[key]" in empty.message
            bare = await refusal(place, extra_headers={"Authorization": openai.omit})
            assert place.upstream.requests[-1].headers["authorization"] == "Bearer own-secret"
            assert "own-secret" not in bare.message and "[key]" in bare.message

    with caplog.at_level(logging.DEBUG, "apportion"):
        run(scenario())
    assert "401" in caplog.text and "the-key" not in caplog.text and "own-secret" not in caplog.text


QUOTED = [{"role": "user", "content": "What are stream_options?"}]


def without_options(request):
    if request.body["messages"] == QUOTED:
        return refused(422, "a bad request: What are stream_options?")
    return refused(422, "stream_options: extra inputs") if "stream_options" in request.body else either("Answer: 4")


@served(without_options)
async def test_an_upstream_server_that_refuses_stream_options_is_asked_without(place):
    with pytest.raises(openai.UnprocessableEntityError):
        await place.ask(messages=QUOTED)
    before = len(place.upstream.requests)
    assert ballot(await place.ask())["failed"] == 0
    assert "stream_options" in place.upstream.requests[before].body
    before = len(place.upstream.requests)
    await place.ask()
    assert all("stream_options" not in request.body for request in place.upstream.requests[before:])


def first_word(text):
    """An extractor of the user's, which fails for one text."""
    if "broken" in text:
        raise LookupError("no word")
    return text.partition(" ")[0]


def same_letter(answer, other):
    """An equivalence of the user's."""
    return answer[0] == other[0]


OWN = {"extract": f"{__name__}:first_word", "equivalence": f"{__name__}:same_letter"}
TEXTS = dict(zip(FIRST_SEEDS, ["alpha is it", "avocado is it", "beta is it"], strict=False))


@served(lambda each: either(TEXTS.get(each.seed, "broken")), rule="fixed", max_samples=3, curtail=False, **OWN)
async def test_functions_of_the_user_read_and_compare_answers(place):
    assert (await body_of(place))["apportion"]["votes"] == {"alpha": 2, "beta": 1}
    error = await refusal(place, seed=1)
    assert (error.status_code, error.code) == (500, "answer_function") and "no word" in error.message


def test_usage_has_a_total_without_one_upstream_and_leaves_out_counts_that_cannot_be():
    bill = Bill()
    bill.add({"prompt_tokens": 7, "completion_tokens": 5})
    bill.add({"prompt_tokens": 7, "completion_tokens": 10**4000, "total_tokens": 20})
    assert bill.usage == {"prompt_tokens": 14, "completion_tokens": 5, "total_tokens": 32}
    bill.add({"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": None})
    bill.add({"prompt_tokens": 7.0, "completion_tokens": 5.0})
    assert bill.usage == {"prompt_tokens": 21, "completion_tokens": 10, "total_tokens": 44} and bill.counted == 2
