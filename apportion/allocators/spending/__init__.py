"""Exact solvers and settings for a fixed budget of rollouts or tokens."""
