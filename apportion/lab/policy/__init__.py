"""The policy, a tiny Qwen2.

``network`` makes it and gives the log-probabilities of completions. ``recipes`` lists the base policies, and ``base``
trains and caches them. ``decoder`` is a fast forward pass, on which ``sampler`` draws rollouts and ``exact`` computes
success probabilities. ``export`` hands policies and problems to other trainers, and ``job_source`` to training jobs in
TRL.
"""
