"""Majority voting on any OpenAI-compatible server that stops early: ``vote``, and the command ``apportion vote``."""

from apportion.questions import Question, read_questions
from apportion.vote.ballot import Ballot
from apportion.vote.run import Report, vote, vote_async
from apportion.vote.summary import Summary

__all__ = ["Ballot", "Question", "Report", "Summary", "read_questions", "vote", "vote_async"]
