"""How many rollouts each prompt gets, when language models learn from verifiable rewards.

Each module imports only earlier ones of this list: ``types`` (values), ``stopping`` (from votes to stop or go on),
``predictors`` (from prompts to beliefs), ``selection`` (from beliefs to prompts), ``allocators`` (from beliefs to
plans), ``loop`` (from plans to rollouts),
``advantages`` (from groups to advantages). ``solve`` allocates in one call, from probabilities.
"""

from apportion.allocators import (
    ALLOCATORS,
    AR3PO,
    DAPO,
    DARS,
    HORA,
    TTRL,
    VIP,
    Allocator,
    Even,
    ExploreThenCommit,
    InverseAccuracy,
    InverseVariance,
    Knapsack,
    Neyman,
    OptPO,
    ReinforceAda,
    SharedVotes,
    Uniform,
    Voting,
)
from apportion.loop import collect, collect_async
from apportion.solve import allocate
from apportion.types import Batch, Belief, Group, Plan, Prompt, Rollout

__version__ = "0.4.0"

__all__ = [
    "ALLOCATORS",
    "AR3PO",
    "DAPO",
    "DARS",
    "HORA",
    "TTRL",
    "VIP",
    "Allocator",
    "Batch",
    "Belief",
    "Even",
    "ExploreThenCommit",
    "Group",
    "InverseAccuracy",
    "InverseVariance",
    "Knapsack",
    "Neyman",
    "OptPO",
    "Plan",
    "Prompt",
    "ReinforceAda",
    "Rollout",
    "SharedVotes",
    "Uniform",
    "Voting",
    "allocate",
    "collect",
    "collect_async",
]
