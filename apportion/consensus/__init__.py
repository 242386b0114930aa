"""Learning and voting without labels: one file a rule, one registry line each.

Answers -> votes -> pseudo-label -> rewards. These allocators read answers and never a verdict.
"""

from __future__ import annotations

from apportion.consensus.base import ConsensusAllocator, PseudoLabel
from apportion.consensus.optpo import OptPO
from apportion.consensus.rewards import REWARDS, agreement, vote_share
from apportion.consensus.shared_votes import SharedVotes
from apportion.consensus.ttrl import TTRL
from apportion.consensus.updates import SAMPLING, UPDATES, Sampling, Update
from apportion.consensus.voting import Voting

LABEL_FREE: dict[str, type[ConsensusAllocator]] = {rule.name: rule for rule in (Voting, TTRL, OptPO, SharedVotes)}

__all__ = [
    "LABEL_FREE",
    "REWARDS",
    "SAMPLING",
    "TTRL",
    "UPDATES",
    "ConsensusAllocator",
    "OptPO",
    "PseudoLabel",
    "Sampling",
    "SharedVotes",
    "Update",
    "Voting",
    "agreement",
    "vote_share",
]
