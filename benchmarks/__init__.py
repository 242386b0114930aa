"""Benchmarks. Each module measures one thing and writes its tables under results/."""
