"""What another rule or belief would have done with a recorded run.

``foresight`` replays predictors along a run: each predicts a batch before it learns its recorded rewards. ``expected``
computes what counts would have got, in expectation.
"""
