"""Majority voting on any OpenAI-compatible server that stops early: ``vote``, and the command ``apportion vote``."""

from apportion.questions import Question, read_questions
from apportion.vote.ballot import Ballot
from apportion.vote.journal import Recorded, read_recorded
from apportion.vote.run import NoAnswersError, Report, vote, vote_async
from apportion.vote.sample import Sample
from apportion.vote.summary import Summary

__all__ = [
    "Ballot",
    "NoAnswersError",
    "Question",
    "Recorded",
    "Report",
    "Sample",
    "Summary",
    "read_questions",
    "read_recorded",
    "vote",
    "vote_async",
]
