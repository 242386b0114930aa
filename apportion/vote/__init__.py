"""Majority voting on any OpenAI-compatible server that stops early: ``vote``, and the command ``apportion vote``."""

from apportion.questions import Question, read_questions
from apportion.vote.ballot import Ballot
from apportion.vote.journal import VoteRecord, read_recorded
from apportion.vote.revote import Revote, revote
from apportion.vote.run import NoAnswersError, Report, vote, vote_async
from apportion.vote.sample import Sample
from apportion.vote.summary import Summary

__all__ = [
    "Ballot",
    "NoAnswersError",
    "Question",
    "Report",
    "Revote",
    "Sample",
    "Summary",
    "VoteRecord",
    "read_questions",
    "read_recorded",
    "revote",
    "vote",
    "vote_async",
]
