"""How a change is written for TRL and for verl."""

from __future__ import annotations

from dataclasses import dataclass

_UNIFORM = "from apportion import Uniform"
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


def choose_change(group_size: int, binary: bool = True, embeddings: bool = False, rates: bool = False) -> CodeChange:
    """Return the choice by P(mixed) for groups of ``group_size``, or by the variance of rewards that are not 0 and 1.

    Its belief knows ``embeddings``, ``rates`` or both, if they are given.

    >>> choose_change(8).trl
    'allocator=Uniform(), selection=Mixed(group_size=8)'
    >>> choose_change(8, rates=True).trl
    'allocator=Uniform(), selection=Mixed(group_size=8), rate_column="pass_rate"'
    """
    selector = "Mixed" if binary else "LargestVariance"
    imports, settings, notes = [_UNIFORM], [], []
    overrides = ["allocation=uniform", f"allocation/selection={'mixed' if binary else 'variance'}"]
    if binary:
        settings.append(f"group_size={group_size}")
        overrides.append(f"allocation.selection.{settings[0]}")
    if embeddings:
        settings.append("predictor=EmpiricalBayes(SentenceTransformerEmbedder())")
        imports.append("from apportion.predictors import EmpiricalBayes")
        imports.append("from apportion.predictors.embeddings import SentenceTransformerEmbedder")
        overrides.append("'allocation.selection.predictor={name: empirical_bayes, embedder: sentence_transformer}'")
    overrides.append(_ONE_LOADER)
    trl = f"allocator=Uniform(), selection={selector}({', '.join(settings)})"
    if rates:
        trl += f', rate_column="{_RATES}"'
        overrides.append(f"allocation.rate_key={_RATES}")
        notes.append(
            f"Write the rates into a column {_RATES} of the data; for verl into extra_info. It may be empty for some "
            "prompts."
        )
    if embeddings:
        notes.append("MiniLM needs pip install '.[embed]'. For embeddings of your own give PrecomputedEmbeddings.")
    imports += [f"from apportion.selection import {selector}", _TRAINER]
    return CodeChange(tuple(imports), trl, " ".join(overrides), " ".join(notes))


RETIRE = CodeChange(
    (_UNIFORM, "from apportion.selection import Retire", _TRAINER),
    "allocator=Uniform(), selection=Retire()",
    f"allocation=uniform allocation/selection=retire {_ONE_LOADER}",
)
"""The rule that rests prompts whose latest group had a mean of at least .9."""

BASELINE = CodeChange(
    (_TRAINER,),
    'preset="fixed_baseline"',
    "allocation=fixed_baseline",
    "For verl leave out algorithm.adv_estimator, which the preset sets.",
)
"""REINFORCE with the baseline of least variance of each prompt, by the name of its preset."""

VIP = CodeChange(
    ("from apportion import VIP", _TRAINER),
    'allocator=VIP(), estimator="rloo"',
    "allocation=vip algorithm.adv_estimator=apportion_rloo",
)
"""VIP with the estimator whose variance it minimises."""
