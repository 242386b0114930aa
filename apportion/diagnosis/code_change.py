"""How a change is written for TRL and for verl."""

from __future__ import annotations

from dataclasses import dataclass

_TRAINER = "from apportion.trl import AllocatedGRPOTrainer"
_ONE_LOADER = "data.dataloader_num_workers=0"
_RATES = "pass_rate"


@dataclass(frozen=True)
class CodeChange:
    """A change as code.

    Args:
        imports: lines of Python, for the names that ``trl`` uses.
        trl: arguments of ``AllocatedGRPOTrainer``, beside those that TRL's trainer had.
        verl: overrides of ``python -m apportion.verl``, beside those that verl's command had.
        note: what else the code needs; "" if nothing.
    """

    imports: tuple[str, ...]
    trl: str
    verl: str
    note: str = ""

    @property
    def trainer(self) -> str:
        """The line of a training script for TRL, with ``...`` for the arguments that stay."""
        return f"AllocatedGRPOTrainer(..., {self.trl})"

    @property
    def command(self) -> str:
        """The command for verl, with ``...`` for the overrides that stay."""
        return f"python -m apportion.verl {self.verl} ..."


def choose_change(group_size: int, binary: bool = True) -> CodeChange:
    """Return the choice by P(mixed) for groups of ``group_size``, or by the variance of rewards that are not 0 and 1.

    >>> choose_change(8).trl
    'allocator=Uniform(), selection=Mixed(group_size=8)'
    """
    rule = f"Mixed(group_size={group_size})" if binary else "LargestVariance()"
    return CodeChange(
        ("from apportion import Uniform", f"from apportion.selection import {_class(rule)}", _TRAINER),
        f"allocator=Uniform(), selection={rule}",
        " ".join(("allocation=uniform", *_verl_choice(group_size, binary))),
    )


def retire_change() -> CodeChange:
    """Return the rule that rests prompts whose latest group had a mean of at least .9."""
    return CodeChange(
        ("from apportion import Uniform", "from apportion.selection import Retire", _TRAINER),
        "allocator=Uniform(), selection=Retire()",
        f"allocation=uniform allocation/selection=retire {_ONE_LOADER}",
    )


def baseline_change() -> CodeChange:
    """Return REINFORCE with the baseline of least variance of each prompt."""
    return CodeChange(
        ("from apportion import Uniform", "from apportion.baselines import Optimal", _TRAINER),
        'allocator=Uniform(), estimator="reinforce", baseline=Optimal()',
        "allocation=uniform algorithm.adv_estimator=apportion_reinforce allocation.baseline=optimal",
    )


def vip_change() -> CodeChange:
    """Return VIP with the estimator whose variance it minimises."""
    return CodeChange(
        ("from apportion import VIP", _TRAINER),
        'allocator=VIP(), estimator="rloo"',
        "allocation=vip algorithm.adv_estimator=apportion_rloo",
    )


def informed_change(group_size: int, binary: bool, embeddings: bool, rates: bool) -> CodeChange:
    """Return the choice by P(mixed) with a belief that knows ``embeddings``, ``rates`` or both.

    >>> informed_change(8, binary=True, embeddings=False, rates=True).trl
    'allocator=Uniform(), selection=Mixed(group_size=8), rate_column="pass_rate"'
    """
    imports, settings, overrides = ["from apportion import Uniform"], [], list(_verl_choice(group_size, binary))
    if embeddings:
        settings.append("predictor=EmpiricalBayes(SentenceTransformerEmbedder())")
        imports.append("from apportion.predictors import EmpiricalBayes")
        imports.append("from apportion.predictors.embeddings import SentenceTransformerEmbedder")
        overrides.insert(1, "'allocation.selection.predictor={name: empirical_bayes, embedder: sentence_transformer}'")
    if binary:
        settings.insert(0, f"group_size={group_size}")
    rule = f"{'Mixed' if binary else 'LargestVariance'}({', '.join(settings)})"
    trl = f"allocator=Uniform(), selection={rule}"
    notes = []
    if rates:
        trl += f', rate_column="{_RATES}"'
        overrides.append(f"allocation.rate_key={_RATES}")
        notes.append(
            f"Write the rates into a column {_RATES} of the data; for verl into extra_info. It may be empty for some "
            "prompts."
        )
    if embeddings:
        notes.append("MiniLM needs pip install '.[embed]'. For embeddings of your own give PrecomputedEmbeddings.")
    imports += [f"from apportion.selection import {_class(rule)}", _TRAINER]
    return CodeChange(tuple(imports), trl, " ".join(("allocation=uniform", *overrides)), " ".join(notes))


def _verl_choice(group_size: int, binary: bool) -> tuple[str, ...]:
    if not binary:
        return ("allocation/selection=variance", _ONE_LOADER)
    return ("allocation/selection=mixed", f"allocation.selection.group_size={group_size}", _ONE_LOADER)


def _class(rule: str) -> str:
    return rule.partition("(")[0]
