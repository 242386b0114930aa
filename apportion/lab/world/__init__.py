"""The world that a policy acts in.

``task`` makes ledger-chain problems and verifies completions, ``tokenizer`` gives them to Hugging Face models, and
``demonstrator`` writes the noisy completions that a base policy learns from.
"""
