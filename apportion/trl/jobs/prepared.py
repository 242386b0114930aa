"""Everything about a job that can be known and checked before weights are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from jinja2 import TemplateError
from transformers import AutoConfig, AutoTokenizer

from apportion.config import ConfigError
from apportion.data import Data, Loaded, load
from apportion.questions import Question
from apportion.rows import TableError
from apportion.trl.jobs.arguments import Default, check_names, make_arguments, make_lora
from apportion.trl.jobs.job import ID, RATE, Job, lab_base
from apportion.trl.settings import TRLAllocation
from apportion.verifiers import Verifier

if TYPE_CHECKING:
    from apportion.lab.policy.job_source import LabModel

GOLD = "gold"
"""The column of a question's answer: a text, or in each row a list of all right answers if some have several."""


@dataclass(frozen=True)
class Prepared:
    """A job with its questions, its tokenizer and its settings.

    ``allocation`` is the job's, with TRL's ``num_generations`` as the budget of an allocator without one.
    ``lab_model`` is the model if it is of the lab, else None. ``arguments`` is TRL's configuration, of which the
    file leaves the ``defaults`` out. ``lora`` is peft's configuration, or None. The longest prompt has ``longest``
    tokens.
    """

    job: Job
    allocation: TRLAllocation
    lab_model: LabModel | None
    arguments: Any
    defaults: Mapping[str, Default]
    lora: Any
    training: Loaded
    evaluation: Loaded | None
    tokenizer: Any
    longest: int

    @property
    def conversational(self) -> bool:
        """Whether prompts are messages, because the model has a chat template."""
        return has_chat_template(self.tokenizer)

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that prints and writes for all."""
        return int(self.arguments.process_index) == 0

    @property
    def rows(self) -> int:
        """Rollouts of a generation batch."""
        return int(self.arguments.generation_batch_size)

    @property
    def prompts(self) -> int:
        """Prompts of a generation batch."""
        return self.rows // self.allocation.generations(self.arguments)

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run, as TRL's loader and transformers' trainer count them."""
        steps, epochs = int(self.arguments.max_steps), self.arguments.num_train_epochs
        return steps if steps > 0 else int(-(-epochs * self._steps_of_epoch // 1))

    @property
    def batches(self) -> int:
        """Generation batches of the whole run. The last step of an epoch may have fewer micro-batches than others."""
        epochs, steps = divmod(self.optimizer_steps, self._steps_of_epoch)
        used = min(steps * int(self.arguments.gradient_accumulation_steps), self._micro_batches_of_epoch)
        return -(-(epochs * self._micro_batches_of_epoch + used) // self._micro_batches)

    @property
    def _micro_batches_of_epoch(self) -> int:
        return len(self.training.questions) // self.prompts * self._micro_batches

    @property
    def _steps_of_epoch(self) -> int:
        return -(-self._micro_batches_of_epoch // int(self.arguments.gradient_accumulation_steps))

    @property
    def _micro_batches(self) -> int:
        """Micro-batches of one process for which one generation batch is used."""
        return int(self.arguments.steps_per_generation * self.arguments.num_iterations)

    def training_rows(self) -> Dataset:
        """Return the questions as TRL takes them: ``prompt``, ``gold``, ``id``, and ``rate`` if rates are known."""
        return self._rows(self.job.data, self.training.questions)

    def evaluation_rows(self) -> Dataset | None:
        """Return the rows of the evaluation, or None."""
        return None if self.evaluation is None else self._rows(self.job.evaluation_data, self.evaluation.questions)

    def _rows(self, data: Data, questions: Sequence[Question]) -> Dataset:
        ask = data.chosen_template.messages if self.conversational else data.chosen_template.text
        several = any(len(question.golds) > 1 for question in questions)
        rows = [
            {"prompt": ask(each), GOLD: list(each.golds) if several else each.gold, ID: each.id, RATE: each.rate}
            for each in questions
        ]
        found = Dataset.from_list(rows)
        return found.remove_columns(RATE) if data.rate_column is None else found


def prepare(job: Job) -> Prepared:
    """Read questions and tokenizer, and check everything that can be checked. Raises ConfigError."""
    model = _lab_model(job.model)
    check_names(job)
    training = _questions("data", job.data, job.judge)
    evaluation = None if job.evaluation is None else _questions("evaluation", job.evaluation_data, job.judge)
    arguments, defaults = make_arguments(job, model, len(training.questions), int(os.environ.get("WORLD_SIZE", "1")))
    try:
        allocation = _allocation(job, arguments, training.questions)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    left = {"padding_side": "left", "truncation_side": "left"}
    tokenizer = _loaded(AutoTokenizer, job, arguments, **left) if model is None else model.tokenizer()
    prompts = _texts(job, job.data, training.questions, tokenizer, arguments)
    if evaluation is not None:
        prompts += _texts(job, job.evaluation_data, evaluation.questions, tokenizer, arguments)
    longest = max(_lengths(job, model, prompts, tokenizer))
    _check_room(job, model, arguments, longest)
    lora = make_lora(job)
    return Prepared(job, allocation, model, arguments, defaults, lora, training, evaluation, tokenizer, longest)


def has_chat_template(tokenizer: Any) -> bool:
    """Return whether prompts for this tokenizer's model are messages."""
    return getattr(tokenizer, "chat_template", None) is not None


def _lab_model(name: str) -> LabModel | None:
    base = lab_base(name)
    if base is None:
        return None
    from apportion.lab.policy.job_source import LabModel  # noqa: PLC0415 - only jobs that name the lab need it

    try:
        return LabModel(base)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _allocation(job: Job, arguments: Any, questions: Sequence[Question]) -> TRLAllocation:
    """Return the job's allocation with the budget that ``arguments`` say, if it has none. Raise ValueError."""
    allocation = job.allocation.with_defaults(arguments)
    allocation.check(arguments, [ID, GOLD, RATE, "prompt"], 1)
    prompts = int(arguments.generation_batch_size // allocation.generations(arguments))
    allocation.check_prompts(len(questions), prompts)
    allocation.check_distinct(len({question.id for question in questions}), prompts)
    return allocation


def _questions(where: str, data: Data, judge: Verifier | None) -> Loaded:
    try:
        found = load(data)
        if judge is not None:
            judge.check([replace(each, gold=g, golds=()) for each in found.questions for g in each.golds or (None,)])
    except TableError as error:
        raise ConfigError(f"{where}: {error}") from error
    return found


def _check_room(job: Job, model: LabModel | None, arguments: Any, longest: int) -> None:
    """Raise ConfigError if the longest prompt leaves the model no room for a completion."""
    room: int | None
    if model is None:
        room = getattr(_loaded(AutoConfig, job, arguments).get_text_config(), "max_position_embeddings", None)
    else:
        room = model.max_positions
    wanted = int(arguments.max_completion_length)
    if room is not None and longest + wanted > room:
        raise ConfigError(
            f"a prompt and its completion must fit the {room} tokens of {job.model}, got {longest} and {wanted}; "
            "lower training.max_completion_length, or leave long prompts out"
        )


def _loaded(kind: Any, job: Job, arguments: Any, **settings: Any) -> Any:
    """Return what ``kind``, one of transformers' Auto classes, loads of the model."""
    revision = (arguments.model_init_kwargs or {}).get("revision")
    trusted = bool(getattr(arguments, "trust_remote_code", False))
    try:
        return kind.from_pretrained(job.model, revision=revision, trust_remote_code=trusted, **settings)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model must be an id of the hub, a folder, or a base of the lab such as lab:medium, got {job.model!r} "
            f"({reason}); check the name, the network and your access"
        ) from error


def _texts(job: Job, data: Data, questions: Sequence[Question], tokenizer: Any, arguments: Any) -> list[str]:
    """Return what the model reads of each question."""
    template = data.chosen_template
    if not has_chat_template(tokenizer):
        return [template.text(question) for question in questions]
    settings = {"tokenize": False, "add_generation_prompt": True, "tools": job.tool_functions or None}
    in_chat = partial(tokenizer.apply_chat_template, **settings, **arguments.chat_template_kwargs or {})
    try:
        return [str(in_chat(template.messages(question))) for question in questions]
    except TemplateError as error:
        raise ConfigError(
            f"the model's chat template must accept the messages of data.template, got an error ({error}); choose "
            "another template"
        ) from error


def _lengths(job: Job, model: LabModel | None, texts: Sequence[str], tokenizer: Any) -> list[int]:
    """Return the number of tokens of each text. Raise ConfigError for one that the model cannot read."""
    try:
        if model is None:  # without its warning of texts that are too long, which are refused later
            return [len(tokens) for tokens in tokenizer(texts, verbose=False)["input_ids"]]
        return model.lengths(texts)
    except Exception as error:  # the tokenizers package raises Exception itself
        raise ConfigError(f"data must ask what {job.model} can read: {error}") from error
