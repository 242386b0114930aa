"""Stop a majority vote early: the samples that each rule takes of recorded answers, and how often it agrees."""

import numpy as np

from apportion.stopping import RULES, decide

rng = np.random.default_rng(0)
streams = []  # 64 answers a question; yours come from a file, or from `apportion.vote.read_recorded`
for share in rng.beta(2.0, 0.7, size=200):
    right = rng.random(64) < share
    streams.append([str(42 if hit else rng.integers(6)) for hit in right])

full = decide(streams, rule="fixed", max_samples=64)
for rule in RULES:
    early = decide(streams, rule=rule, max_samples=64, wave="free", curtail=True)
    agreeing = np.mean([ours == theirs for ours, theirs in zip(early.answer, full.answer, strict=True)])
    samples, waves = early.samples.mean(), early.waves.mean()
    print(f"{rule:30} {samples:5.1f} of 64 samples in {waves:3.1f} waves, {agreeing:.1%} agree with the full vote")
