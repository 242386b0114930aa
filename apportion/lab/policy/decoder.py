"""A Qwen2 forward pass over a static key-value cache whose rows can be split, for the sampler."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer


class Decoder:
    """Reads prompts, writes tokens and splits rows, with the policy's weights at construction.

    The cache is [layers, 2, rows, heads, positions, head size]. Prompts are padded on the left.
    """

    def __init__(self, policy: Qwen2ForCausalLM, max_prompt_tokens: int, max_new_tokens: int) -> None:
        config, model = policy.config, policy.model
        self.layers = [cast(Qwen2DecoderLayer, layer) for layer in model.layers]
        self.projections = [_projection_of(layer) for layer in self.layers]
        self.end, self.epsilon = config.eos_token_id, config.rms_norm_eps
        self.heads = config.num_attention_heads
        self.shared_heads = config.num_key_value_heads or config.num_attention_heads
        self.size = self.layers[0].self_attn.head_dim
        self.embedding, self.norm, self.head = model.embed_tokens.weight, model.norm.weight, policy.lm_head.weight
        cos, sin = model.rotary_emb(self.embedding, torch.arange(max_prompt_tokens + max_new_tokens)[None])
        # rotate_half(x) * sin equals x with its halves swapped, times sin with the sign of its first half flipped.
        half = self.size // 2
        self.cos, self.sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)
        self.max_new_tokens = max_new_tokens

    def read(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the logits [P, V] after each prompt. The cache then has one row for each prompt."""
        self.length = max(map(len, prompts))
        self.padding = torch.tensor([self.length - len(prompt) for prompt in prompts])
        tokens = torch.tensor([(*(0,) * (self.length - len(prompt)), *prompt) for prompt in prompts])
        positions = self.length + self.max_new_tokens
        steps = torch.arange(positions)
        self.visible = None
        mask = torch.ones(self.length, self.length, dtype=torch.bool).tril()[None]
        if self.padding.any():
            self.visible = steps >= self.padding[:, None]
            # A padding query sees itself, because attention to nothing is nan.
            mask = mask & self.visible[:, None, : self.length] | torch.eye(self.length, dtype=torch.bool)
        self.cache = torch.empty(len(self.layers), 2, len(prompts), self.shared_heads, positions, self.size)
        places = (steps[: self.length] - self.padding[:, None]).clamp(min=0)
        return self._forward(tokens, 0, places, mask[:, None])

    def write(self, rows: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write ``tokens`` [N] after the ``rows`` [N] of the cache. Return the logits of the new rows, and theirs [N].

        Equal tokens after one row share a new row. Rows that are not named are dropped.
        """
        prefixes, new_rows = (rows * len(self.head) + tokens).unique(return_inverse=True)
        parents = prefixes // len(self.head)
        if not torch.equal(parents, torch.arange(len(self.padding))):
            self.cache, self.padding = self.cache[:, :, parents], self.padding[parents]
            self.visible = None if self.visible is None else self.visible[parents]
        place, self.length = self.length, self.length + 1
        mask = None if self.visible is None else self.visible[:, None, None, : self.length]
        written = (prefixes % len(self.head))[:, None]
        return self._forward(written, place, place - self.padding[:, None], mask), new_rows

    def _forward(
        self, tokens: torch.Tensor, start: int, places: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the logits [rows, V] after the last of ``tokens`` [rows, T]. They fill the cache from ``start`` on."""
        cos, sin = self.cos[places][:, :, None], self.sin[places][:, :, None]
        hidden = F.embedding(tokens, self.embedding)
        end = start + tokens.shape[1]
        for index, (layer, projection) in enumerate(zip(self.layers, self.projections, strict=True)):
            attention, mlp = layer.self_attn, layer.mlp
            normed = F.rms_norm(hidden, hidden.shape[-1:], layer.input_layernorm.weight, self.epsilon)
            heads = F.linear(normed, *projection).unflatten(-1, (-1, self.size))
            turning, values = heads.split([self.heads + self.shared_heads, self.shared_heads], 2)
            turned = turning * cos + turning.roll(self.size // 2, -1) * sin
            queries, keys = turned.split([self.heads, self.shared_heads], 2)
            cache = self.cache[index, :, :, :, :end]
            cache[0, :, :, start:] = keys.transpose(1, 2)
            cache[1, :, :, start:] = values.transpose(1, 2)
            if index + 1 == len(self.layers):
                # Only the next token reads the last layer's output, so only its last query is needed.
                hidden, queries = hidden[:, -1:], queries[:, -1:]
                mask = None if mask is None else mask[:, :, -1:]
            mixed = F.scaled_dot_product_attention(
                queries.transpose(1, 2), cache[0], cache[1], attn_mask=mask, enable_gqa=self.heads != self.shared_heads
            )
            hidden = hidden + F.linear(mixed.transpose(1, 2).flatten(2), attention.o_proj.weight)
            normed = F.rms_norm(hidden, hidden.shape[-1:], layer.post_attention_layernorm.weight, self.epsilon)
            gate = F.silu(F.linear(normed, mlp.gate_proj.weight), inplace=True)
            hidden = hidden + F.linear(gate.mul_(F.linear(normed, mlp.up_proj.weight)), mlp.down_proj.weight)
        return F.linear(F.rms_norm(hidden[:, -1], hidden.shape[-1:], self.norm, self.epsilon), self.head)


def _projection_of(layer: Qwen2DecoderLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and biases of queries, keys and values in one matrix and one vector."""
    attention = layer.self_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
