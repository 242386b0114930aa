"""What ``python -m apportion.trl`` does: TRL's own script, whose trainer has an allocator.

TRL's parser reads its own arguments and ours, and its script loads the data, the reward functions and the model. In the
place of the trainer it finds a function that adds the allocation, the prompt template and the sets of the evaluation.
"""

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import trl
from transformers import AutoConfig, AutoTokenizer
from trl.scripts import grpo, rloo
from trl.scripts.utils import DatasetConfig
from yaml import YAMLError  # type: ignore[import-untyped]

from apportion.checks import choices
from apportion.config import ConfigError, build
from apportion.engines.saved_state import SavedStateError
from apportion.questions import PROMPT_COLUMNS, Question, fill_template
from apportion.records import RecordError
from apportion.runs.signals import code_of
from apportion.scheduler.decisions import bill
from apportion.trl.at_k import EvaluationAtK
from apportion.trl.checkpoints import newest_checkpoint
from apportion.trl.failures import RewardsFailedError
from apportion.trl.replaced import replaced
from apportion.trl.settings import TRLAllocation, check_verdict
from apportion.trl.trainer import AllocatedGRPOTrainer, AllocatedRLOOTrainer
from apportion.untrusted import one_line

TRAINERS: dict[str, type[Any]] = {"grpo": AllocatedGRPOTrainer, "rloo": AllocatedRLOOTrainer}
SCRIPTS: dict[str, Any] = {"grpo": grpo, "rloo": rloo}
FAILED, USAGE = 1, 2


@dataclass
class _OwnArguments:
    template: str | None = field(default=None, metadata={"help": "A prompt, with {question} where the question goes."})
    evaluation: str | None = field(
        default=None, metadata={"help": "In the YAML alone: a data set for each name, with its path, name and split."}
    )
    dry_run: bool = field(default=False, metadata={"help": "Print the plan; load no weights."})


def _argument(setting: str, default: Any) -> tuple[str, Any, Any]:
    flag, help_text = default is False, {"help": "Of the allocation: its name, or in the YAML a table with settings."}
    return setting, bool if flag else str | None, field(default=False if flag else None, metadata=help_text)


JobArguments = make_dataclass(
    "JobArguments", [_argument(each.name, each.default) for each in fields(TRLAllocation)], bases=(_OwnArguments,)
)
"""Settings of a job in addition to TRL's arguments: those of ``TRLAllocation``, and a few of the command."""


class _Parser(trl.TrlParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def run(algorithm: str, words: Sequence[str]) -> int:
    """Run TRL's script for ``algorithm`` with the arguments ``words``; return the exit code.

    What is refused before training takes one line on stderr and code 2, of several processes from the first of each
    machine.
    """
    script = SCRIPTS[algorithm]
    made: list[Any] = []
    try:
        *theirs, ours = _parsed(script, algorithm, words)
        if ours.evaluation:
            theirs[0].dataset_test_split = theirs[0].dataset_train_split  # there may be no other, and nothing reads it
        with ExitStack() as replacement:

            def make(**given: Any) -> Any:
                replacement.close()  # before the trainer looks for the class that it extends
                made.append(_make(algorithm, ours, **given))
                return made[0]

            replacement.enter_context(replaced(trl, **{f"{algorithm.upper()}Trainer": make}))
            script.main(*theirs)
    except (SavedStateError, RewardsFailedError, RecordError) as error:
        return _say(f"error: {error}; to continue: --resume_from_checkpoint true", FAILED)
    except KeyboardInterrupt as stop:
        step = f" in step {made[0].state.global_step + 1}" if made else ""
        return _say(
            f"Stopped{step}. To continue from the last checkpoint: --resume_from_checkpoint true", code_of(stop)
        )
    except (KeyError, ValueError, TypeError, OSError, ImportError, AttributeError, YAMLError) as error:
        if made:
            raise
        split = f"the data must have the split {error}; set dataset_train_split and dataset_test_split"
        return _say(f"error: {split if isinstance(error, KeyError) else error}", USAGE)
    return 0


def _parsed(script: Any, algorithm: str, words: Sequence[str]) -> list[Any]:
    """Return the arguments of TRL's script by class, then ours.

    Raises ConfigError for an argument that nothing reads.
    """
    kinds = [*script.make_parser().dataclass_types, JobArguments]
    parser = _Parser(kinds, prog=f"python -m apportion.trl {algorithm}")
    *arguments, of_file, of_line = parser.parse_args_and_config(
        list(words), return_remaining_strings=True, separate_remaining_strings=True
    )
    if unread := [*of_file, *of_line]:
        name = unread[0].removeprefix("--").partition("=")[0]
        known = [each.name for kind in kinds for each in fields(kind)]
        raise ConfigError(f"an argument must be TRL's or the allocation's, got {unread[0]!r}; {choices(name, known)}")
    return arguments


def _make(algorithm: str, ours: Any, **given: Any) -> Any:
    """Return the trainer with the arguments of TRL's script. A dry run prints the plan and exits instead."""
    args, read = given["args"], {each.name: getattr(ours, each.name) for each in fields(TRLAllocation)}
    allocation = build(TRLAllocation, {name: value for name, value in read.items() if value is not None})
    if not given["reward_funcs"] and not allocation.label_free:
        raise ConfigError(
            f"reward_funcs must be given with {allocation.allocator.name}, got none; name some, such as accuracy_reward"
        )
    as_asked = _template(ours.template, given["model"], args)
    given["train_dataset"] = as_asked(given["train_dataset"])
    if ours.evaluation:
        given["eval_dataset"] = {name: as_asked(rows) for name, rows in _sets(ours.evaluation, args).items()}
    kind = TRAINERS[algorithm]
    if ours.dry_run:
        sys.stdout.writelines(f"{line}\n" for line in _plan(allocation, given))
        raise SystemExit(0)
    idle = allocation.idle if given["eval_dataset"] is not None else ()  # votes of an evaluation read them too
    trainer = kind(**given, **{name: value for name, value in vars(allocation).items() if name not in idle})
    if given["eval_dataset"] is not None:
        trainer.add_callback(EvaluationAtK(trainer, allocation.verdict, allocation.extract, allocation.equivalence))
    if str(args.resume_from_checkpoint).lower() == "true":
        args.resume_from_checkpoint = newest_checkpoint(Path(args.output_dir)) and True
    # early versions of TRL's script leave it out
    trainer.train = partial(trainer.train, resume_from_checkpoint=args.resume_from_checkpoint)
    return trainer


def _template(template: str | None, model: str, args: Any) -> Callable[[Any], Any]:
    """Return a function that puts the questions of a data set into ``template``, as messages for a chat model."""
    if template is None:
        return lambda rows: rows
    if "{question}" not in template:
        raise ConfigError(f"template must contain {{question}}, got {template!r}; put it where the question goes")
    chat = _loaded(AutoTokenizer, model, args).chat_template is not None

    def asked(rows: Any) -> Any:
        column = next((name for name in PROMPT_COLUMNS if name in (rows.column_names or ())), None)
        if column is None:
            raise ConfigError(
                f"the data must have a column {' or '.join(PROMPT_COLUMNS)}, got {rows.column_names}; rename one"
            )
        return rows.map(lambda row: {"prompt": _prompt(template, row[column], chat)}, load_from_cache_file=False)

    return asked


def _prompt(template: str, question: Any, chat: bool) -> Any:
    filled = fill_template(template, Question("", question))
    return [{"role": "user", "content": filled}] if chat and isinstance(filled, str) else filled


def _sets(evaluation: Any, args: Any) -> dict[str, Any]:
    """Return the sets of the evaluation by name, loaded as TRL loads a mixture of one."""
    tables = build(dict[str, DatasetConfig], evaluation, "evaluation")
    if str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "no":
        raise ConfigError("eval_strategy must be steps or epoch with an evaluation, got no; set it")
    return {name: trl.get_dataset(trl.DatasetMixtureConfig(datasets=[one]))["train"] for name, one in tables.items()}


def _loaded(kind: Any, model: str, args: Any) -> Any:
    """Return what an Auto class of transformers (``kind``) loads for the model."""
    given = args.model_init_kwargs or {}
    named = {name: given[name] for name in ("revision", "trust_remote_code") if given.get(name)}
    try:
        return kind.from_pretrained(model, **named)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model_name_or_path must be a folder, or an id of the hub that can be loaded, got {model!r} ({error}); "
            "check the name, the network and your access"
        ) from error


def _plan(allocation: TRLAllocation, given: dict[str, Any]) -> list[str]:
    """Return the lines of the plan, after all checks that need no weights."""
    args, rows, sets = given["args"], given["train_dataset"], given["eval_dataset"]
    _loaded(AutoConfig, given["model"], args)
    names = [getattr(each, "__name__", str(each)) for each in given["reward_funcs"]]
    allocation = allocation.checked(args, given)
    check_verdict(allocation.verdict, names)
    prompts = allocation.prompts(args)
    allocation.check_distinct(len(allocation.read(rows).distinct), prompts)
    sizes = {"": sets} if sets is not None and not isinstance(sets, dict) else sets or {}
    held_out = ", ".join(f"{name} {len(each):,}".strip() for name, each in sizes.items())
    batches = len(rows) * args.num_generations // args.generation_batch_size * args.num_iterations
    an_epoch = math.ceil(batches * args.steps_per_generation / args.gradient_accumulation_steps)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * an_epoch)
    lines = {
        "model": given["model"],
        "rows": f"{len(rows):,} to train on" + (f"; to evaluate: {held_out}" if held_out else ""),
        "rewards": ", ".join(names) or "votes",
        **allocation.parts,
        "estimator": allocation.estimator or "TRL's",
        "batch": bill(allocation.allocator, prompts, args.generation_batch_size).partition(": ")[2],
        "steps": f"{steps:,} of the optimizer, {args.world_size} processes, results in {args.output_dir}",
    }
    return [f"{name:<10} {value}" for name, value in lines.items() if value is not None]


def _say(line: str, code: int) -> int:
    """Write the line to stderr on the first process of each machine. Return the exit code."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        sys.stderr.write(f"{one_line(line)}\n")
    return code
