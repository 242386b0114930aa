"""Shared parts of allocators without labels: votes, pseudo-labels, and rewards by them."""

from apportion.allocators.votes.base import ConsensusAllocator, PseudoLabel, SeparateVotes
from apportion.allocators.votes.rewards import REWARDS, agreement, vote_share

__all__ = ["REWARDS", "ConsensusAllocator", "PseudoLabel", "SeparateVotes", "agreement", "vote_share"]
