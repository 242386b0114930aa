"""Gaussian-process regression on prompt embeddings with the RBF kernel."""
