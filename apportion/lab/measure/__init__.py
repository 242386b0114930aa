"""Measure what an allocation does: gradient variance, expected hits, and gradient moments."""
