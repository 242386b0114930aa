"""A policy that TRL trains in half a second, questions that a test can score again, and a record of each run.

A completion is correct if its first character is among the first ``k`` of the alphabet. The policy is untrained, so the
success rate of a question is about k in 30.
"""

import copy
import functools
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import accelerate.utils.imports
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, RLOOConfig

from apportion import HORA
from apportion.config import build
from apportion.trl import AllocatedGRPOTrainer, AllocatedRLOOTrainer, TRLAllocation
from tests.cases import settings_of

# accelerate searches all folders of packages for peft before each micro-batch, which takes a tenth of a run
accelerate.utils.imports._is_package_available = functools.cache(accelerate.utils.imports._is_package_available)

CHARACTERS = "0123456789abcdefghij:=+ "
SPECIAL = ("<pad>", "<eos>", "<unk>")
PAD, EOS = 0, 1
LENGTH = 4
EASE = (0, 3, 6, 10, 14, 18, 22, 24)
TIMES = ("time", "runtime", "per_second")


def tokenizer_of(vocabulary, words="", **tokens):
    """Return a tokenizer of the words in ``vocabulary``, which are what ``words`` matches, by default characters."""
    whole = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.Split(words, "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="<unk>", padding_side="left", **tokens)


def make_tokenizer():
    """Return a tokenizer of characters."""
    return tokenizer_of((*SPECIAL, *CHARACTERS), pad_token="<pad>", eos_token="<eos>")


TOKENIZER = make_tokenizer()


SIZES = {
    **settings_of(
        "hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2, num_attention_heads = 4,"
        "num_key_value_heads = 2, max_position_embeddings = 128, tie_word_embeddings = true"
    ),
    "vocab_size": len(SPECIAL) + len(CHARACTERS),
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": None,
}


def make_policy(**sizes):
    torch.manual_seed(0)
    policy = Qwen2ForCausalLM(Qwen2Config(**SIZES | sizes))
    policy.generation_config.eos_token_id, policy.generation_config.pad_token_id = EOS, PAD
    return policy


@functools.cache
def loaded(folder):
    """Return the policy saved in ``folder``, whose configuration has the path, because TRL loads a reference by it."""
    return Qwen2ForCausalLM.from_pretrained(folder)


@functools.cache
def make_questions(count=48, extra=0):
    """Return questions with distinct prompts of several lengths and difficulties; ``extra`` shifts their numbers."""
    numbers = range(extra, extra + count)
    return Dataset.from_list(
        [{"prompt": f"{i:03d}{'+' * (i % 3)}:", "k": EASE[i % len(EASE)]} for i in numbers],
    )


def mark(completion, k):
    return float(completion[:1] != "" and completion[0] in CHARACTERS[:k])


@dataclass(frozen=True)
class Call:
    """A scored completion."""

    prompt: str
    text: str
    ids: tuple
    score: float | None


@dataclass
class Judge:
    """A reward function that records its calls by round. It gives None to completions for which ``none`` is true."""

    mark: object = mark
    none: object = None
    name: str = "judge"
    rounds: list = field(default_factory=list)

    def __post_init__(self):
        self.__name__ = self.name

    def __call__(self, prompts, completions, completion_ids, k, **rest):
        scores = [self.mark(completion, each) for completion, each in zip(completions, k, strict=True)]
        if self.none is not None:
            scores = [None if self.none(completion) else s for completion, s in zip(completions, scores, strict=True)]
        rows = zip(prompts, completions, completion_ids, scores, strict=True)
        self.rounds.append([Call(prompt, text, tuple(ids), score) for prompt, text, ids, score in rows])
        return scores


def configured(folder, trainer, **settings):
    """Return settings of TRL for four prompts of eight rollouts in four micro-batches, on the CPU."""
    rloo = "RLOO" in trainer.__name__
    given = settings_of(
        f"per_device_train_batch_size = 8, gradient_accumulation_steps = 4, num_generations = 8, max_steps = 3,"
        f"max_completion_length = {LENGTH}, learning_rate = 1e-3, logging_steps = 1, report_to = [], use_cpu = true,"
        f'bf16 = false, gradient_checkpointing = false, save_strategy = "no", disable_tqdm = true, seed = 0,'
        f"temperature = 1.0"
    )
    given |= {"output_dir": str(folder)} | ({"beta": 0.0} if rloo else {})
    return (RLOOConfig if rloo else GRPOConfig)(**given | settings)


def page_script(page, word, policy, settings):
    """Return the first script with ``word`` on a page of ``docs``, for ``policy`` and with more ``settings`` of TRL."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    block = next(each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if word in each)
    for old, new in (('"Qwen/Qwen2.5-0.5B-Instruct"', repr(policy)), ('"out",', f'"out", {settings},')):
        assert block.count(old) == 1
        block = block.replace(old, new)
    return block


def trained(trainer):
    """Train, and return the log: one dictionary per logged step."""
    trainer.train()
    return trainer.state.log_history


def untimed(history):
    """Return ``history`` without timings and without metrics of the allocation."""
    return [
        {name: value for name, value in logged.items() if not any(part in name for part in (*TIMES, "allocation/"))}
        for logged in history
    ]


def bits(value):
    """Return ``value``, or "nan", so that NaN equals itself."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True)
class Row:
    """A row that entered the loss."""

    prompt: tuple
    ids: tuple
    advantage: float


@dataclass
class Step:
    """One generation batch: its scored rounds, TRL's table of completions, and the micro-batches that the loss got."""

    rounds: list
    table: dict
    chunks: list = field(default_factory=list)

    @property
    def calls(self):
        return [call for calls in self.rounds for call in calls]

    @property
    def by_prompt(self):
        """All calls by prompt, in order."""
        found = defaultdict(list)
        for call in self.calls:
            found[call.prompt].append(call)
        return dict(found)

    @property
    def scale(self):
        return float(self.chunks[0].get("row_scale", 1.0))

    @property
    def padding(self):
        return sum(int((chunk["completion_mask"].sum(1) == 0).sum()) for chunk in self.chunks)

    def columns(self, *names, chunks=None):
        """Return (prompt, ids, *values of ``names``) of each unmasked row. Masked rows must have advantage 0.

        Values are tensors, without those of padding tokens, or None if the batch has no such column.
        """
        found = []
        for chunk in self.chunks[:chunks]:
            for i, own in enumerate(chunk["completion_mask"].bool()):
                if not own.any():
                    assert chunk["advantages"][i] == 0.0
                    continue
                values = [chunk[name][i] if name in chunk else None for name in names]
                values = [value[own] if value is not None and value.shape == own.shape else value for value in values]
                prompt = chunk["prompt_ids"][i][chunk["prompt_mask"][i].bool()]
                found.append((tuple(prompt.tolist()), tuple(chunk["completion_ids"][i][own].tolist()), *values))
        return found

    @property
    def rows(self):
        """The unmasked rows of the loss with unscaled advantages."""
        return [Row(prompt, ids, float(a) / self.scale) for prompt, ids, a in self.columns("advantages")]


@dataclass
class Watch(TrainerCallback):
    """Record what a trainer scores and trains on by generation batch, and weights and gradients by optimizer step."""

    judge: Judge
    steps: list = field(default_factory=list)
    updates: list = field(default_factory=list)

    def on(self, trainer):
        compute_loss = trainer.compute_loss

        def watched(model, inputs, *args, **settings):
            if self.judge.rounds:
                columns = {**trainer._logs["rewards"], "advantages": trainer._logs["advantages"]}
                self.steps.append(Step(self.judge.rounds[:], {name: list(own) for name, own in columns.items()}))
                self.judge.rounds.clear()
            self.steps[-1].chunks.append(dict(inputs))
            return compute_loss(model, inputs, *args, **settings)

        trainer.compute_loss = watched
        trainer.add_callback(self)
        return trainer

    def on_pre_optimizer_step(self, args, state, control, model=None, **rest):
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.updates.append((weights, gradient_of(model)))


def gradient_of(model):
    """Return the gradient of all weights that are trained, in one row."""
    return torch.cat([w.grad.flatten().clone() for _, w in sorted(model.named_parameters()) if w.grad is not None])


def made(trainer, policy, folder, *, config=None, reward_funcs=None, questions=None, **given):
    """Return a trainer of the class ``trainer`` with the policy in ``policy`` and its output in ``folder``.

    Ours weighs rollouts equally unless ``weighting`` is given, so that the loss sees the advantages as they are.
    """
    if "allocator" in given:
        given = {"weighting": "rollout"} | given
    built = trainer(
        model=copy.deepcopy(loaded(policy)) if isinstance(policy, str) and Path(policy).exists() else policy,
        reward_funcs=[Judge()] if reward_funcs is None else reward_funcs,
        args=configured(folder, trainer, **(config or {})),
        train_dataset=make_questions() if questions is None else questions,
        **{"processing_class": make_tokenizer()} | given,
    )
    built.remove_callback(PrinterCallback)
    return built


def allocated_by(text):
    """Return the settings of ``TRLAllocation`` in ``text``, by default uniform, and TRL's in the table ``config``."""
    given = {"allocator": {"name": "uniform", "rollouts_per_prompt": 8}} | settings_of(text)
    config = {"config": given.pop("config")} if "config" in given else {}
    return vars(build(TRLAllocation, given)) | config


def hora():
    """Return a rule of two rounds with a fixed total."""
    return HORA(pre_rollouts=3, rollouts_per_prompt=8, high=16)


def run(make, trainer=AllocatedGRPOTrainer, *, judge=None, others=(), **given):
    """Train with ``others`` and the ``judge``. Return the trainer, its watch, and the log: a dictionary a step."""
    watch = Watch(Judge() if judge is None else judge)
    built = watch.on(make(trainer, **{"reward_funcs": [*others, watch.judge]} | given))
    return built, watch, [row for row in trained(built) if "loss" in row]


def group_advantages(trainer, rewards):
    """Return TRL's advantages of one group by its default formula, in plain numbers."""
    n, mean = len(rewards), sum(rewards) / len(rewards)
    if n < 2:
        return [0.0] * n
    if isinstance(trainer, AllocatedRLOOTrainer):
        return [reward - (sum(rewards) - reward) / (n - 1) for reward in rewards]
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (n - 1))
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


def ids_of(prompt):
    return tuple(TOKENIZER(prompt)["input_ids"])


def whole_groups(trainer, step, reward=lambda call: call.score, ids=ids_of):
    """Return the rows of a step of which each completion enters the loss, with the advantage of its group."""
    groups = defaultdict(list)
    for call in step.calls:
        groups[ids(call.prompt)].append(call)
    return [
        Row(prompt, call.ids, advantage)
        for prompt, calls in groups.items()
        for call, advantage in zip(calls, group_advantages(trainer, [reward(call) for call in calls]), strict=True)
    ]


def assert_rows(rows, expected, tolerance=2e-5):
    """``rows`` are the ``expected`` ones, each once, in any order."""
    expected = sorted(expected, key=lambda row: (row.prompt, row.ids, row.advantage))
    rows = sorted(rows, key=lambda row: (row.prompt, row.ids, row.advantage))
    assert Counter((row.prompt, row.ids) for row in rows) == Counter((row.prompt, row.ids) for row in expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert abs(row.advantage - wanted.advantage) < tolerance, (row, wanted)


def policy_with(weights):
    policy = make_policy()
    policy.load_state_dict(weights)
    return policy


def log_probabilities(policy, prompt, ids, temperature=1.0):
    """Return log-probabilities [T] of one completion."""
    logits = policy(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(ids)), torch.tensor(ids)]


def direct_gradient(weights, rows, terms, reference=None, beta=0.0):
    """Return the gradient at ``weights`` of sum_i c_i sum_t (-A_i ratio_it + beta KL_it), row by row without padding.

    ``terms`` (rows) gives the c_i. ``reference`` are the weights of the reference policy.
    """
    policy, held = policy_with(weights), policy_with(weights if reference is None else reference)
    loss = torch.zeros(())
    for row, term in zip(rows, terms(rows), strict=True):
        own = log_probabilities(policy, row.prompt, row.ids)
        with torch.no_grad():
            away = log_probabilities(held, row.prompt, row.ids)
        ratio, apart = torch.exp(own - own.detach()), away - own
        loss = loss + term * (-row.advantage * ratio + beta * (torch.exp(apart) - apart - 1)).sum()
    loss.backward()
    return gradient_of(policy)


TERMS = {
    **dict.fromkeys(("grpo", "sapo"), lambda rows: [1 / len(rows) / len(row.ids) for row in rows]),
    **dict.fromkeys(("luspo", "rloo"), lambda rows: [1 / len(rows)] * len(rows)),
    **dict.fromkeys(("dapo", "cispo", "vespo"), lambda rows: [1 / sum(len(row.ids) for row in rows)] * len(rows)),
    "dr_grpo": lambda rows: [1 / len(rows) / LENGTH] * len(rows),
}
"""The factor c_i of each loss, if the policy has not changed since sampling."""


def assert_gradient(found, expected, tolerance=2e-4):
    assert expected.norm() > 1e-3
    assert (found - expected).norm() < tolerance * expected.norm(), (found - expected).norm() / expected.norm()
