"""One training run.

``settings`` checks how it trains and ``pool`` gives its problems. ``loss`` turns groups into rows and a loss, with a
``critic`` for PPO, and ``learner`` updates the policy. ``judge`` scores a run without labels. ``trainer`` is the loop.
"""
