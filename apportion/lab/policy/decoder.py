"""A Qwen2 forward pass over a static key-value cache whose rows can be split, for the sampler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of one layer. Queries, keys and values share one matrix."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    out: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor


class Decoder:
    """Reads prompts, writes tokens and splits rows, with the policy's weights at construction.

    The cache is [layers, 2, rows, heads, positions, head size]. Prompts are padded on the left.
    """

    def __init__(self, policy: Qwen2ForCausalLM, max_prompt_tokens: int, max_new_tokens: int) -> None:
        config, model = policy.config, policy.model
        layers = [cast(Qwen2DecoderLayer, layer) for layer in model.layers]
        self.end = config.eos_token_id
        self.heads = config.num_attention_heads
        self.shared_heads = config.num_key_value_heads or config.num_attention_heads
        self.size = layers[0].self_attn.head_dim
        self.epsilon = config.rms_norm_eps
        self.embedding, self.norm, self.head = model.embed_tokens.weight, model.norm.weight, policy.lm_head.weight
        self.layers = [_weights(layer) for layer in layers]
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

    def split(self, parents: torch.Tensor) -> None:
        """Make row i a copy of row ``parents[i]``. Rows that are not named are dropped."""
        if torch.equal(parents, torch.arange(len(self.padding))):
            return
        self.cache, self.padding = self.cache[:, :, parents], self.padding[parents]
        if self.visible is not None:
            self.visible = self.visible[parents]

    def write(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [rows, V] after one more token in every row."""
        self.length += 1
        mask = None if self.visible is None else self.visible[:, None, None, : self.length]
        return self._forward(tokens[:, None], self.length - 1, self.length - 1 - self.padding[:, None], mask)

    def _forward(
        self, tokens: torch.Tensor, start: int, places: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the logits [rows, V] after the last of ``tokens`` [rows, T]. They fill the cache from ``start`` on."""
        cos, sin = self.cos[places][:, :, None], self.sin[places][:, :, None]
        hidden = F.embedding(tokens, self.embedding)
        end = start + tokens.shape[1]
        for index, layer in enumerate(self.layers):
            normed = F.rms_norm(hidden, hidden.shape[-1:], layer.attention_norm, self.epsilon)
            heads = F.linear(normed, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, self.size))
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
            hidden = hidden + F.linear(mixed.transpose(1, 2).flatten(2), layer.out)
            normed = F.rms_norm(hidden, hidden.shape[-1:], layer.mlp_norm, self.epsilon)
            gate = F.silu(F.linear(normed, layer.gate), inplace=True)
            hidden = hidden + F.linear(gate.mul_(F.linear(normed, layer.up)), layer.down)
        return F.linear(F.rms_norm(hidden[:, -1], hidden.shape[-1:], self.norm, self.epsilon), self.head)


def _weights(layer: Qwen2DecoderLayer) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return LayerWeights(
        qkv=torch.cat([projection.weight for projection in projections]),
        qkv_bias=torch.cat([projection.bias for projection in projections]),
        out=attention.o_proj.weight,
        gate=mlp.gate_proj.weight,
        up=mlp.up_proj.weight,
        down=mlp.down_proj.weight,
        attention_norm=layer.input_layernorm.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
    )
