"""Measure what an allocation does to one batch.

``gradients`` gives the gradient of each completion. ``variance`` samples the variance of the batch's gradient from
these, and ``moments`` computes it in closed form. ``hits`` counts the prompts that get a right rollout.
"""
