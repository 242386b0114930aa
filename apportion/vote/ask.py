"""One question on a server: samples that are kept already are counted first, and only missing ones are requested.

Samples that are still in flight when the rule stops are cancelled. The size of a wave therefore changes the time and
the number of cancelled samples, not the answer.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from apportion.answers.equivalence import Equivalence
from apportion.endpoint import Client, Completion
from apportion.messages import prompt_hash
from apportion.questions import Question, fill_template
from apportion.vote.ballot import Ballot
from apportion.vote.count import Count
from apportion.vote.sample import Sample
from apportion.vote.setup import Setup


async def ask(
    question: Question,
    setup: Setup,
    client: Client,
    equivalence: Equivalence,
    kept: Mapping[int, Sample] | None = None,
    on_sample: Callable[[Sample, bool], None] = lambda sample, read: None,
) -> Ballot:
    """Return the ballot of ``question``. Samples in ``kept``, by number, are counted and not requested.

    ``on_sample`` is called with each new sample as soon as it arrives, also with those that are not counted. Its second
    argument is whether the answer was read, which fails with the user's function.
    """
    kept, asked = kept or {}, prompt_hash(question.prompt)
    count = Count(question, asked, setup.voting, setup.give_up, equivalence, setup.weight)
    text, extractor = fill_template(setup.template, question), setup.extractor
    fresh: dict[int, Sample] = {}

    def arrived(number: int, seed: int | None, completion: Completion) -> None:
        sample, read = Sample.of(question.id, asked, number, seed, completion), False
        try:
            sample, read = sample.read(extractor), True
        finally:  # a sample is kept even if a function of the user cannot read it
            fresh[number] = sample
            on_sample(sample, read)

    async def in_order(wave: range) -> AsyncGenerator[Sample, None]:
        request = client.sample(text, len(wave), wave.start, question.id, skip=kept, on_arrival=arrived)
        async with aclosing(request) as completions:
            for number in wave:
                if number not in kept:
                    await anext(completions)
                yield kept[number] if number in kept else fresh[number]

    while wave := count.next_wave():
        async with aclosing(in_order(wave)) as samples:
            async for sample in samples:
                if await count.add(sample):
                    break
        count.cancelled += sum(number not in kept for number in wave[len(count.samples) - wave.start :])
    return await count.ballot()
