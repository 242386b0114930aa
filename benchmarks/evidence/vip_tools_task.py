"""Questions of two hops, a search tool over a small corpus, and a policy that has learned to call it.

"who is the ruler of the land of lima ?" needs two passages: one says in which land lima lies, one says who rules that
land. ``search`` ranks all passages by BM25 and returns five. A tiny Qwen2 imitates a demonstrator that often searches
for the wrong words. How often depends on the city and on what is asked, so prompts differ in their success. Every
demonstration has its facts renamed at random, so the policy must copy what it reads and knows no fact by heart.
"""

import hashlib
import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl.chat_template_utils import add_response_schema, qwen3_chat_template

from apportion.lab.policy.recipes import cache_directory

NAMES = (
    "lima oslo rome cairo delhi tokyo seoul paris quito accra dakar tunis sofia minsk riga bern doha baku kyoto osaka "
    "milan turin lyon nice porto faro cork bath york leeds derby perth cairns hobart austin dallas boston denver tampa "
    "miami reno fresno utica salem provo laredo gary akron",
    "peru norway italy egypt india japan korea france ghana senegal belarus latvia qatar cuba chile kenya",
    "who what is the of land lies in near trades with a old rules flows flies pays ? there",
)
CITIES, LANDS, WORDS = (names.split() for names in NAMES)
ASKED = ("ruler", "river", "bird", "coin")
VALUES = {asked: [f"{asked}-{i}" for i in range(len(LANDS))] for asked in ASKED}
FUNCTION_WORDS = ("the", "of", "is", "in", "a")
FOUND = 5
"""Passages that a search returns."""
OPEN, CLOSE = '<tool_call>\n{"name": "search", "arguments": {"query": "', '"}}\n</tool_call>'
USER, ASSISTANT, TOOL, END, SEPARATOR = "<|user|>", "<|assistant|>", "<|tool|>", "<|im_end|>", "|"
PAD = "<pad>"
VOCABULARY = [
    *(PAD, END, "<unk>", USER, ASSISTANT, TOOL, SEPARATOR, OPEN, CLOSE),
    *dict.fromkeys([*WORDS, *ASKED, *CITIES, *LANDS, *(word for own in VALUES.values() for word in own)]),
]
IDS = {word: i for i, word in enumerate(VOCABULARY)}
VERBS = {"ruler": "rules", "river": "flows in", "bird": "flies in", "coin": "pays in"}
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|' + m.role + '|> ' + (m.content or '') }}"
    "{% for call in m.tool_calls or [] %}"
    "{{ '<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}"
    "{% endfor %}"
    "{{ ' <|im_end|> ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Question:
    """A question of two hops, its answer, and the passages that support it."""

    city: str
    land: str
    asked: str
    answer: str

    @property
    def text(self):
        return f"{'who' if self.asked == 'ruler' else 'what'} is the {self.asked} of the land of {self.city} ?"

    @property
    def gold(self):
        return (*_of_city(self.city, self.land), *_of_land(self.land, self.asked, self.answer))


def _of_city(city, land):
    return f"the land of {city} is {land}", f"{city} lies in {land}"


def _of_land(land, asked, answer):
    return f"the {asked} of {land} is {answer}", f"{answer} {VERBS[asked]} {land}"


@cache
def questions():
    """Return all questions, in an order that mixes cities."""
    draw = random.Random(0)
    land = {city: draw.choice(LANDS) for city in CITIES}
    values = {asked: dict(zip(LANDS, draw.sample(VALUES[asked], len(LANDS)), strict=True)) for asked in ASKED}
    found = [Question(city, land[city], asked, values[asked][land[city]]) for city in CITIES for asked in ASKED]
    draw.shuffle(found)
    return tuple(found)


@cache
def corpus():
    """Return all passages: the facts, and others about the same cities."""
    draw, found = random.Random(1), dict[str, None]()
    for question in questions():
        found |= dict.fromkeys(question.gold)
    for city in CITIES:
        near, with_ = draw.sample(CITIES, 2)
        found |= dict.fromkeys([f"{city} is near {near}", f"{city} trades with {with_}", f"{city} is old"])
    passages = list(found)
    draw.shuffle(passages)
    return tuple(passages)


def _terms(text):
    return [word for word in text.split() if word not in FUNCTION_WORDS]


@cache
def _index():
    documents = [Counter(_terms(passage)) for passage in corpus()]
    return documents, Counter(word for each in documents for word in each), np.mean([*map(len, documents)]).item()


@cache
def best(query, k1=1.5, b=0.75):
    """Return the five passages with the highest BM25. Ties are in the order of the corpus; words of no passage miss."""
    documents, frequency, mean = _index()
    scores = np.zeros(len(documents))
    for word in _terms(query):
        weight = math.log(1 + (len(documents) - frequency[word] + 0.5) / (frequency[word] + 0.5))
        for i, document in enumerate(documents):
            if count := document[word]:
                scores[i] += weight * count * (k1 + 1) / (count + k1 * (1 - b + b * document.total() / mean))
    order = np.argsort(-scores, kind="stable")[:FOUND]
    return tuple(corpus()[i] for i in order if scores[i] > 0)


def search(query):
    """Finds the five passages that fit a query best.

    Args:
        query: The words to look for.

    Returns:
        The passages.
    """
    return f" {SEPARATOR} ".join(best(" ".join(query.split()[:8]))) or "there is a"


def make_tokenizer():
    """Return a tokenizer of words. The two halves of a tool call are tokens of their own."""
    parts = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    parts.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=parts, pad_token=PAD, eos_token=END, unk_token="<unk>", padding_side="left"
    )
    tokenizer.add_tokens([AddedToken(each, special=True) for each in (USER, ASSISTANT, TOOL)], special_tokens=True)
    tokenizer.chat_template = qwen3_chat_template  # whose calls these are, so TRL knows how to read them
    tokenizer = add_response_schema(tokenizer)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_policy():
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=IDS[END],
        pad_token_id=IDS[PAD],
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config)


def _chance(*parts, low=0.05, high=0.95):
    """Return a probability that is fixed by ``parts``: the mean of a uniform number and a fair coin, within bounds."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return low + (high - low) * (int.from_bytes(digest[:4], "big") / 2**32)


def _first_query(question, draw):
    """Return the words of the first search: the land of the city, or only what is asked, or only the city."""
    if draw.random() < _chance("city", question.city, low=0.15):
        return f"land of {question.city}"
    return draw.choice([question.asked, f"{question.asked} of {question.city}", "land"])


def _second_query(question, land, draw):
    """Return the words of the second search, or None if there is none."""
    if draw.random() < _chance("asked", question.asked, CITIES.index(question.city) % 8, low=0.15):
        return f"{question.asked} of {land}"
    return draw.choice([land, question.asked, None])


def demonstration(question, draw, slips=0.04):
    """Return the words of a whole dialogue, and which of them the policy writes."""
    words: list[str] = [USER, *question.text.split(), END, ASSISTANT]
    own = [False] * len(words)

    def write(*text):
        words.extend(text)
        own.extend([True] * len(text))

    def reply(query):
        write(OPEN, *query.split(), CLOSE, END)
        found = [TOOL, *search(query).split(), END, ASSISTANT]
        words.extend(found)
        own.extend([False] * len(found))
        return best(query)

    found = reply(_first_query(question, draw))
    knows = any(passage in _of_city(question.city, question.land) for passage in found)
    land = question.land if knows and draw.random() > slips else draw.choice(LANDS)
    query, answer = _second_query(question, land, draw), None
    if query is not None:
        found = reply(query)
        wanted = [word for passage in found for word in passage.split() if word in VALUES[question.asked]]
        true = [value for value in wanted if _says(found, land, question.asked, value)]
        answer = (true or wanted or [None])[0]
    if answer is None or draw.random() < slips:
        answer = draw.choice(VALUES[question.asked])
    write(answer, END)
    return words, own


def _says(passages, land, asked, value):
    return any(passage in _of_land(land, asked, value) for passage in passages)


def _batches(size, seed):
    """Yield ids and labels of demonstrations, each with its lands and values renamed at random."""
    draw = random.Random(seed)
    groups = [np.array([IDS[word] for word in group]) for group in (LANDS, *VALUES.values())]
    shuffle = np.random.default_rng(seed)
    while True:
        rows = [demonstration(draw.choice(questions()), draw) for _ in range(size)]
        width = max(len(words) for words, _ in rows)
        ids, labels = np.zeros((size, width), np.int64), np.full((size, width), -100)
        for i, (words, own) in enumerate(rows):
            renamed = np.arange(len(VOCABULARY))
            for group in groups:
                renamed[group] = shuffle.permutation(group)
            ids[i, : len(words)] = renamed[[IDS[word] for word in words]]
            labels[i, : len(words)] = np.where(own, ids[i, : len(words)], -100)
        yield torch.from_numpy(ids), torch.from_numpy(labels)


def train_base(steps=600, size=48, rate=4e-3):
    """Return a policy that imitates the demonstrator."""
    policy = make_policy().train()
    optimizer = torch.optim.AdamW(policy.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step, (ids, labels) in zip(range(steps), _batches(size, seed=0), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 50) * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
        optimizer.zero_grad()
        policy(ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return policy.eval()


def base_policy():
    """Return the folder of the base policy with its tokenizer. It is trained once and kept in apportion's cache."""
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    folder = cache_directory() / f"tools-base-{digest}"
    if not (folder / "tokenizer.json").exists():
        train_base().save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
    return folder
