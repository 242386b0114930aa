"""Rules that decide how many rollouts each prompt gets: one file and one line of the registry per rule."""

from apportion.allocators.ar3po import AR3PO
from apportion.allocators.base import Allocator, Size, check_rewards, check_rollout
from apportion.allocators.dapo import DAPO
from apportion.allocators.dars import DARS
from apportion.allocators.explore_then_commit import ExploreThenCommit
from apportion.allocators.hora import HORA
from apportion.allocators.inverse_accuracy import InverseAccuracy
from apportion.allocators.inverse_variance import InverseVariance
from apportion.allocators.knapsack import Knapsack
from apportion.allocators.neyman import Neyman
from apportion.allocators.optpo import OptPO
from apportion.allocators.reinforce_ada import ReinforceAda
from apportion.allocators.shared_votes import SharedVotes
from apportion.allocators.spending.printed import printed_counts
from apportion.allocators.spending.solver import spend
from apportion.allocators.ttrl import TTRL
from apportion.allocators.uniform import Even, Uniform
from apportion.allocators.vip import VIP
from apportion.allocators.voting import Voting

ALLOCATORS: dict[str, type[Allocator]] = {
    rule.name: rule
    for rule in (
        Uniform,
        Even,
        VIP,
        HORA,
        AR3PO,
        DAPO,
        DARS,
        ExploreThenCommit,
        ReinforceAda,
        Knapsack,
        InverseAccuracy,
        InverseVariance,
        Neyman,
        Voting,
        TTRL,
        OptPO,
        SharedVotes,
    )
}
"""Every allocator by name, including those that learn without labels."""

__all__ = [
    "ALLOCATORS",
    "AR3PO",
    "DAPO",
    "DARS",
    "HORA",
    "TTRL",
    "VIP",
    "Allocator",
    "Even",
    "ExploreThenCommit",
    "InverseAccuracy",
    "InverseVariance",
    "Knapsack",
    "Neyman",
    "OptPO",
    "ReinforceAda",
    "SharedVotes",
    "Size",
    "Uniform",
    "Voting",
    "check_rewards",
    "check_rollout",
    "printed_counts",
    "spend",
]
