"""A tiny Llama with random weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "vocab_size": 11,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "tie_word_embeddings": True,
}


def make_llama(**sizes):
    """Return the same model at each call, with ``sizes`` in place of some of ``SIZES``."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES | sizes)).eval()
