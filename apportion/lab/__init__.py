"""The lab: an RLVR problem that trains on one core, with exact measurements.

Data goes through its rooms in this order, and each room imports only earlier ones:

1. ``world``: ledger-chain problems, their verifier and tokenizer, and the noisy demonstrator that base policies copy.
2. ``policy``: a 200,640-parameter Qwen2, its cached base weights, rollouts, and exact success probabilities.
3. ``training``: one run by its settings: groups to advantages to an update, and the loop around it.
4. ``study``: allocators against each other: settings, plan, and worker processes.
5. ``report``: results with intervals over seeds, as tables and sentences.
6. ``command``: carries out a study.
"""

from importlib.util import find_spec

if find_spec("torch") is None or find_spec("transformers") is None:
    raise ImportError("apportion.lab needs torch and transformers: pip install 'apportion[lab]'")
