"""The lab: an RLVR problem small enough to study on one core, real enough to learn, exact in what it measures.

The data's way through it, each step one file:

1. ``task``: a ledger-chain ``Problem``, with forks or without, and its verifier; seeded pools; the noisy
   ``demonstrator`` that the base copies.
2. ``tokenizer``: the 47-token vocabulary as a Hugging Face tokenizer.
3. ``policy``: a 200,640-parameter Qwen2; log-probabilities of completions; the exact success probability of a problem.
4. ``base``: the easy, medium, hard and forks base policies, trained once from scratch and cached.
5. ``sampler``, on ``decoder``: rollouts with their behaviour log-probabilities, verified; no prefix is computed twice.
6. ``loss``: groups to advantages to the clipped surrogate; ``critic``: PPO's; ``learner``: one update by ``settings``;
   ``trainer``: the loop around it, on one screen.
7. ``design``, ``worker``, ``display``, ``study``: allocators against each other, in parallel, resumable.
8. ``results``, ``variance``, ``report``, ``picture``: what came out, with intervals.
"""

from importlib.util import find_spec

if find_spec("torch") is None or find_spec("transformers") is None:
    raise ImportError("apportion.lab needs torch and transformers: pip install 'apportion[lab]'")
