"""Benchmarks: each module measures one thing and writes its table, with the machine and the date, under results/."""
