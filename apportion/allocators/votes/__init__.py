"""Shared parts of allocators without labels: votes, pseudo-labels, and rewards by them."""

from apportion.allocators.votes.base import ConsensusAllocator, PseudoLabel
from apportion.allocators.votes.rewards import REWARDS, agreement, vote_share
from apportion.allocators.votes.separate import SeparateVotes

__all__ = ["REWARDS", "ConsensusAllocator", "PseudoLabel", "SeparateVotes", "agreement", "vote_share"]
